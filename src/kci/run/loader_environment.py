"""Which variants a Python can load, by its torch and backend."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import msgspec

from kci.errors import MissingToolError
from kci.matrix.variants import Kind, VariantName, this_system
from kci.utils.bounded_json import decode_json

_SECONDS = 300
_MARK = "kci-load-result:"
_PASSED_ON = (
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PATH", "ROCM_PATH", "SYSTEMROOT",
)  # fmt: skip

_PROBE = """
import json, sys
try:
    import kernels, torch
except ImportError as error:
    print("MARK" + json.dumps({"lacks": str(error)})); sys.exit()
try:
    from kernels.backends import _backend
    backend = str(getattr(_backend(), "name", "cpu")).lower()
except Exception:
    backend = "cuda" if torch.version.cuda and torch.cuda.is_available() else "cpu"
print("MARK" + json.dumps({"torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda or "",
    "rocm": getattr(torch.version, "hip", None) or "", "backend": backend}))
""".replace("MARK", _MARK)


class LoaderEnvironment(msgspec.Struct, frozen=True):
    """A Python that can load kernels."""

    torch: str = ""
    cuda: str = ""
    rocm: str = ""
    backend: str = "cpu"
    lacks: str = ""


def probe(python: Path) -> LoaderEnvironment:
    """Inspect a Python. Raises MissingToolError if it lacks torch or the loader."""
    try:
        environment = decode_json(_answer(python), LoaderEnvironment)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MissingToolError(f"{python} does not answer: {error}", hint="name a Python with --python") from error
    if environment.lacks:
        hint = "pip install torch kernels there, or name another Python with --python"
        raise MissingToolError(f"{python} cannot load kernels: {environment.lacks}", hint=hint)
    return environment


def why_incompatible(name: VariantName, environment: LoaderEnvironment) -> str:
    """The reason why the loader rejects a variant; empty if it does not."""
    needed, system = [], this_system()
    if name.system is not None and name.system != system:
        needed.append(f"a {name.system} machine")
    if name.backend not in ("universal", "cpu") and name.backend != environment.backend:
        needed.append(f"the backend {name.backend}" + (f" {name.compute_version}" if name.compute_version else ""))
    have, needs = _minor(environment.torch), _minor(name.framework_version or "0")
    compute = _minor(name.compute_version or "")
    driver = _minor({"cuda": environment.cuda, "rocm": environment.rocm}.get(name.backend, ""))
    known = bool(compute and driver) and name.backend == environment.backend
    if name.kind is Kind.FULL and have != needs:
        needed.append(f"torch {name.framework_version}")
    elif name.kind is Kind.STABLE_ABI and have < needs:
        needed.append(f"torch {name.framework_version} or newer")
    elif known and name.backend == "cuda" and not (compute[0] == driver[0] and compute <= driver):
        needed.append(f"CUDA {name.compute_version}, or a newer minor version of it")
    elif known and name.backend == "rocm" and compute != driver:
        needed.append(f"ROCm {name.compute_version}")
    if not needed:
        return ""
    here = f"torch {environment.torch} for {environment.backend} on {system}"
    return f"it needs {' and '.join(needed)}; this is {here}"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:2])


def _answer(python: Path) -> str:
    # the probe gets no secrets
    with tempfile.TemporaryDirectory(prefix="kci-load-") as home:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": home, "TMPDIR": home, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [str(python), "-I", "-B", "-c", _PROBE],
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    answers = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    if not answers:
        shown = "; ".join(lines[-3:])[-300:]
        raise ValueError(f"exit status {done.returncode}: {shown}")
    return answers[-1]
