"""Running a setup.py to see what it would build: in a separate process, among stand-ins, once for each backend.

It is a program that somebody else wrote (`sandbox`). What it answers is hostile: it is bounded, typed, and each path
in it is looked at.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import packaging

from kci.catalog.loading import load_catalog
from kci.config.values import Backend
from kci.errors import FindingsError
from kci.files.bounded_json import read_record
from kci.starter.sandbox import MOST_BYTES, SECONDS, project_copy, run_in, sandbox, written

SETUP_PY = "setup.py"
RUN_FOR = ("cpu", "cuda", "rocm")
TOO_LONG = "TimeoutError: it takes longer than kci waits"
_MOST_ANSWER = 8 * 1024 * 1024
_HOMES = {"cuda_home": "/usr/local/cuda", "rocm_home": "/opt/rocm", "site": "/usr/lib/python3/site-packages"}

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=20_000)]


class RecordedExtension(msgspec.Struct, frozen=True):
    """One extension as setup.py made it."""

    kind: Annotated[str, msgspec.Meta(pattern="^(cpp|cuda|xpu|plain)$")]
    name: _Text
    sources: _Texts
    line: int
    file: _Text = SETUP_PY
    include_dirs: _Texts = ()
    libraries: _Texts = ()
    link_args: _Texts = ()
    define_macros: Annotated[tuple[tuple[_Text | int | float | None, ...], ...], msgspec.Meta(max_length=1000)] = ()
    undef_macros: _Texts = ()
    flags: Annotated[dict[_Text, _Texts], msgspec.Meta(max_length=20)] = {}


class SaidInSetup(msgspec.Struct, frozen=True):
    """What `setup(...)` was called with."""

    name: _Text | None = None
    license: str | None = None
    license_expression: _Text | None = None
    classifiers: _Texts | _Text | None = ()
    packages: _Texts | _Text | None = ()
    package_dir: dict[_Text, _Text] | _Text | None = None


class Recorded(msgspec.Struct, frozen=True):
    """What one run of setup.py called."""

    extensions: Annotated[tuple[RecordedExtension, ...], msgspec.Meta(max_length=500)] = ()
    setup: SaidInSetup = SaidInSetup()
    error: _Text = ""
    line: int = 0


class SetupRuns(msgspec.Struct, frozen=True):
    """What setup.py called for each backend, and what it wrote besides."""

    by_backend: dict[str, Recorded]
    written: dict[str, bytes]
    """Files that it made, by their path in the project."""
    where: str
    """How that was found out, for people."""
    file: str = SETUP_PY
    left: tuple[str, ...] = ()
    """What was not followed, a line each, with its place."""


def facts_of_today() -> dict[str, str]:
    """What stand-ins say of torch, CUDA and ROCm: the newest that the catalog has, and where they would be."""
    rows = load_catalog().rows
    newest = {
        backend: max((row.compute for row in rows if row.backend is kind and row.compute is not None), default=None)
        for backend, kind in (("cuda", Backend.CUDA), ("hip", Backend.ROCM))
    }
    return {
        "torch": f"{max(row.torch for row in rows if row.torch).minor_text}.0",
        "cuda": newest["cuda"].minor_text if newest["cuda"] else "13.0",
        "hip": f"{newest['hip'].minor_text}.0" if newest["hip"] else "7.2.0",
        "seconds": str(SECONDS),
        "bytes": str(MOST_BYTES),
        **_HOMES,
    }


def put_stand_ins(place: Path) -> Path:
    """Copy what stands in for Python's modules into the modules of a place, and return these."""
    modules = place / "modules"
    starter = modules / "kci" / "starter"
    starter.mkdir(parents=True)
    for folder in (starter, starter.parent):
        (folder / "__init__.py").touch()
    for name in ("module_stand_ins.py", "setup_stand_ins.py"):
        shutil.copy(Path(__file__).with_name(name), starter)
    return modules


def run_setup(files: Mapping[str, bytes]) -> SetupRuns:
    """Run the setup.py of a project, given as files by their path, once for each backend.

    Raises:
        FindingsError: the answer is not one that setup.py can lead to, or there is no room for a copy.
    """
    with project_copy(files) as place:
        modules = put_stand_ins(place)
        shutil.copytree(Path(packaging.__file__).parent, modules / "packaging")
        facts = {**facts_of_today(), "modules": str(modules)}
        by_backend: dict[str, Recorded] = {}
        for backend in RUN_FOR:
            ended = next((run for run in by_backend.values() if run.error == TOO_LONG), None)
            by_backend[backend] = ended or _run(place, backend, facts)
        new = written(place, files, SETUP_PY)
    python = [name for name in sorted(files.keys() & new.keys()) if name.endswith(".py")]
    left = tuple(f"{name}: {_REWRITTEN}" for name in python)
    made = {name: data for name, data in new.items() if name not in python}
    return SetupRuns(by_backend, made, f"run {sandbox()}", left=left)


def _run(place: Path, backend: str, facts: Mapping[str, str]) -> Recorded:
    answer = place / "answers" / f"{backend}.json"
    python = Path(sys.executable).resolve()
    begin = "import sys; sys.path.append(sys.argv[3]); from kci.starter.setup_stand_ins import main; main()"
    command = [str(python), "-I", "-S", "-B", "-c", begin, backend, str(answer), facts["modules"]]
    code = run_in(place, command, {"MAX_JOBS": "1", **variables(backend)}, msgspec.json.encode(facts))
    if code is None:
        return Recorded(error=TOO_LONG)
    try:
        if answer.lstat().st_size == 0:
            raise FileNotFoundError
        return read_record(answer, Recorded, _MOST_ANSWER)
    except FileNotFoundError:
        return Recorded(error=f"its process ended early, with {code}")
    except (OSError, ValueError) as error:
        raise FindingsError(f"{SETUP_PY}: what it recorded for {backend} cannot be used: {str(error)[:200]}") from None


def variables(backend: str) -> dict[str, str]:
    """What such files ask for; `setup_stand_ins.Environment` answers variants of FORCE_CUDA."""
    if backend == "cuda":
        home = _HOMES["cuda_home"]
        return {"CUDA_HOME": home, "CUDA_PATH": home, "TORCH_CUDA_ARCH_LIST": "9.0", "FORCE_CUDA": "1"}
    if backend == "rocm":
        home = _HOMES["rocm_home"]
        archs = dict.fromkeys(("PYTORCH_ROCM_ARCH", "GPU_ARCHS", "HIP_ARCHITECTURES"), "gfx942")
        return {"ROCM_HOME": home, "ROCM_PATH": home, "FORCE_CUDA": "1", **archs}
    return {"FORCE_CUDA": "0", "FORCE_CPU": "1"}


_REWRITTEN = "setup.py writes it when it builds, and no kernel has a setup.py: look at what it says, and who reads it"
_ABOUT_ROCM = re.compile(rb"(?i)rocm|\bhip\b|is_hip|[._]hip\b")


def knows_rocm(files: Mapping[str, bytes]) -> bool:
    """Whether a setup.py says anything about ROCm: what never thought of it is not taken for a kernel for it."""
    return _ABOUT_ROCM.search(files[SETUP_PY]) is not None


def relative(path: str) -> str | None:
    """A path of a setup.py in its project, or None if it leads out of it."""
    text = path.replace("\\", "/")
    if (found := re.match(r".*/kci-setup-[^/]+/project(/.*)?$", text)) is not None:
        text = (found[1] or "/.").lstrip("/")
    parts: list[str] = []
    if text.startswith("/") or "\0" in text:
        return None
    for part in text.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
