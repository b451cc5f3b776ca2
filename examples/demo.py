"""The main job on this machine: build the example kernels, merge, verify, load them, and check their numbers.

Run it with `make demo`. What needs another machine is left, with the reason. Takes a few minutes, most of it for
fetching torch and compiling; a second run takes over what the first one built.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kci.builders.toolchains.environment import ensure_runtime
from kci.utils.cache import default_cache

EXAMPLES = Path(__file__).resolve().parent
KERNELS = ("relu", "rms-norm", "swiglu")
TORCH = "2.13"
CATALOG = "2026-08-20"
"""The edition in which that torch is the newest: the stable ABI builds then need no second one."""

# One torch is enough to see everything work: the newest CPU build, the stable ABI builds, and the Python-only ones.
ONLY = (f"torch{TORCH.replace('.', '')}-cxx11-cpu-*", "torch-stable-abi211-cpu-*", "torch-stable-abi211-cu130-*")
NOARCH = ("torch-cpu", "torch-cuda", "torch-rocm")


def main() -> int:
    """Build, then load; the exit code of whichever failed."""
    into = EXAMPLES.parent / "build" / "demo"
    command = [sys.executable, "-m", "kci", "run", *(str(EXAMPLES / kernel) for kernel in KERNELS), "--into", str(into)]
    command += ["--catalog", CATALOG]
    for glob in (*ONLY, *NOARCH):
        command += ["--only", glob]
    print("== kci run", " ".join(f"examples/{kernel}" for kernel in KERNELS), flush=True)
    if code := subprocess.run(command, check=False).returncode:
        return code
    print("\n== loading the trees in fresh processes, offline, with the `kernels` loader", flush=True)
    python = ensure_runtime(TORCH, cache=default_cache(), log=lambda line: print(f"   {line}", flush=True))
    return subprocess.run([python, str(EXAMPLES / "check_loads.py"), str(into)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
