"""The main job on this machine: build the example kernels, merge, verify, load them, and check
their numbers.

Run it with `make demo`. What needs another machine is left, with the reason. Takes a few minutes,
most of it for fetching torch and compiling; a second run takes over what the first one built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kci.builders.toolchains.environment import ensure_runtime
from kci.errors import KciError
from kci.utils.cache import default_cache

EXAMPLES = Path(__file__).resolve().parent
KERNELS = ("relu", "rms-norm", "swiglu")
TORCH = "2.13"

# Torch for a GPU is gigabytes for each toolkit, so what the CPU runs is loaded. In this edition of
# the catalog that torch is the newest: the stable ABI builds then need no other to compile.
SETTINGS = """catalog = "2026-08-20"

[plan]
load = ["cpu"]
"""

# One torch is enough to see everything work: the newest CPU build, the stable ABI builds, and the
# Python-only ones.
ONLY = (
    f"torch{TORCH.replace('.', '')}-cxx11-cpu-*",
    "torch-stable-abi211-cpu-*",
    "torch-stable-abi211-cu130-*",
)
NOARCH = ("torch-cpu", "torch-cuda", "torch-rocm")


def main() -> int:
    """Build, then load; the exit code of whichever failed."""
    place = EXAMPLES.parent / "build" / "demo"
    for kernel in KERNELS:
        shutil.copytree(
            EXAMPLES / kernel,
            place / kernel,
            ignore=shutil.ignore_patterns("build"),
            dirs_exist_ok=True,
        )
    # It passes for a repository, since kci.toml counts at the root of one, and git looks no further
    # up.
    (place / ".git").mkdir(exist_ok=True)
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(place.parent)}
    (place / "kci.toml").write_text(SETTINGS, encoding="utf-8")
    command = [sys.executable, "-m", "kci", "run", *KERNELS]
    for glob in (*ONLY, *NOARCH):
        command += ["--only", glob]
    print(f"== kci run {' '.join(KERNELS)}, in build/demo", flush=True)
    if code := subprocess.run(command, cwd=place, env=environment, check=False).returncode:
        return code
    print(
        "\n== loading the trees in a fresh process, offline, with the `kernels` loader", flush=True
    )
    try:
        python = ensure_runtime(
            TORCH, cache=default_cache(), log=lambda line: print(f"   {line}", flush=True)
        )
    except KciError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return subprocess.run(
        [python, str(EXAMPLES / "check_loads.py"), str(place)], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
