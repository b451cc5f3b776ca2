"""Running a setup.py to see what it would build: in a separate process, among stand-ins, once for each backend.

It is a program that somebody else wrote. In bubblewrap it sees a copy of its project and the system's files, and has no
network; elsewhere only limits hold it (`setup_stand_ins`), as nothing holds it when pip runs it. What it answers is
hostile: it is bounded, typed, and each path in it is looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import packaging

from kci.catalog.loading import load_catalog
from kci.config.values import Backend
from kci.errors import FindingsError
from kci.files.bounded_json import read_record
from kci.files.walk import is_own, walk

SETUP_PY = "setup.py"
RUN_FOR = ("cpu", "cuda", "rocm")
_SECONDS = 60
_TMP = "/tmp"  # noqa: S108  - of the sandbox
_TOO_LONG = "TimeoutError: it takes longer than kci waits"
_MOST_BYTES = 64 * 1024 * 1024
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


def sandbox() -> str:
    """What holds a setup.py on this machine, for people."""
    if _bubblewrap():
        return "in bubblewrap: without network, and with no files of yours but a copy of the project"
    return "without a sandbox (there is no bubblewrap): as pip would, with limits on time, memory and files"


def run_setup(files: Mapping[str, bytes]) -> SetupRuns:
    """Run the setup.py of a project, given as files by their path, once for each backend.

    Raises:
        FindingsError: the answer is not one that setup.py can lead to, or there is no room for a copy.
    """
    rows = load_catalog().rows
    newest = {
        backend: max((row.compute for row in rows if row.backend is kind and row.compute is not None), default=None)
        for backend, kind in (("cuda", Backend.CUDA), ("hip", Backend.ROCM))
    }
    facts = {
        "torch": f"{max(row.torch for row in rows if row.torch).minor_text}.0",
        "cuda": newest["cuda"].minor_text if newest["cuda"] else "13.0",
        "hip": f"{newest['hip'].minor_text}.0" if newest["hip"] else "7.2.0",
        "seconds": str(_SECONDS),
        "bytes": str(_MOST_BYTES),
        **_HOMES,
    }
    place = Path(tempfile.mkdtemp(prefix="kci-setup-"))
    try:
        project = place / "project"
        (place / "answers").mkdir()
        for name, content in files.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        shutil.copytree(Path(packaging.__file__).parent, place / "modules" / "packaging")
        starter = place / "modules" / "kci" / "starter"
        starter.mkdir(parents=True)
        for folder in (starter, starter.parent):
            (folder / "__init__.py").touch()
        for name in ("module_stand_ins.py", "setup_stand_ins.py"):
            shutil.copy(Path(__file__).with_name(name), starter)
        facts["modules"] = str(place / "modules")
        by_backend: dict[str, Recorded] = {}
        for backend in RUN_FOR:
            ended = next((run for run in by_backend.values() if run.error == _TOO_LONG), None)
            by_backend[backend] = ended or _run(place, backend, facts)
        written = _written(project, files)
        python = [name for name in sorted(files.keys() & written.keys()) if name.endswith(".py")]
        left = tuple(f"{name}: {_REWRITTEN}" for name in python)
        made = {name: data for name, data in written.items() if name not in python}
        return SetupRuns(by_backend, made, f"run {sandbox()}", left=left)
    except OSError as error:
        raise FindingsError(f"cannot run a copy of the project in {place}: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(place: Path, backend: str, facts: Mapping[str, str]) -> Recorded:
    answer = place / "answers" / f"{backend}.json"
    python = Path(sys.executable).resolve()
    begin = "import sys; sys.path.append(sys.argv[3]); from kci.starter.setup_stand_ins import main; main()"
    command = [str(python), "-I", "-S", "-B", "-c", begin, backend, str(answer), facts["modules"]]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "TMPDIR": str(place / "project"),
                   "LANG": "C.UTF-8", "MAX_JOBS": "1", **_variables(backend)}  # fmt: skip
    if sys.platform == "win32":  # pragma: no cover - Python does not start without it there
        environment["SYSTEMROOT"] = os.environ.get("SYSTEMROOT", "")
    if bwrap := _bubblewrap():
        seen = {"/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", sys.base_prefix, str(python.parent.parent)}
        binds = [word for path in sorted(seen) for word in ("--ro-bind-try", path, path)]
        kept = [
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            *("--proc", "/proc", "--dev", "/dev"),
            "--tmpfs",
            _TMP,
        ]
        binds += ["--ro-bind", str(place), str(place)]  # a folder that is mounted cannot be exchanged for a link
        binds += [word for path in ("project", "answers") for word in ("--bind", str(place / path), str(place / path))]
        command = [bwrap, *kept, *binds, "--chdir", str(place / "project"), *command]
    process = subprocess.Popen(
        command, cwd=place / "project", env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        process.communicate(msgspec.json.encode(facts), timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Recorded(error=_TOO_LONG)
    finally:
        _end(process)
    try:
        if answer.lstat().st_size == 0:
            raise FileNotFoundError
        return read_record(answer, Recorded, _MOST_ANSWER)
    except FileNotFoundError:
        return Recorded(error=f"its process ended early, with {process.returncode}")
    except (OSError, ValueError) as error:
        raise FindingsError(f"{SETUP_PY}: what it recorded for {backend} cannot be used: {str(error)[:200]}") from None


def _variables(backend: str) -> dict[str, str]:
    """What such files ask for; `setup_stand_ins.Environment` answers variants of FORCE_CUDA."""
    if backend == "cuda":
        home = _HOMES["cuda_home"]
        return {"CUDA_HOME": home, "CUDA_PATH": home, "TORCH_CUDA_ARCH_LIST": "9.0", "FORCE_CUDA": "1"}
    if backend == "rocm":
        home = _HOMES["rocm_home"]
        archs = dict.fromkeys(("PYTORCH_ROCM_ARCH", "GPU_ARCHS", "HIP_ARCHITECTURES"), "gfx942")
        return {"ROCM_HOME": home, "ROCM_PATH": home, "FORCE_CUDA": "1", **archs}
    return {"FORCE_CUDA": "0", "FORCE_CPU": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if sys.platform == "win32":  # pragma: no cover
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _bubblewrap() -> str | None:
    """The program, if it can make a sandbox here: in many containers it may not."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    tried = [found, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return found if subprocess.run(tried, capture_output=True, check=False).returncode == 0 else None


def _written(project: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What is new below the project and may be a source, or was written anew; links and anything large are left."""
    found: dict[str, bytes] = {}
    room = _MOST_BYTES
    if project.is_symlink():
        raise FindingsError(
            f"{SETUP_PY} puts a link in place of its own project", hint="look at what it does before you run it"
        )
    for entry in walk(project):
        if entry.link or not entry.regular or not is_own(entry.name):
            continue
        if PurePosixPath(entry.name).suffix in _SOURCES and (size := entry.path.stat().st_size) <= room:
            room -= size
            data = entry.path.read_bytes()
            if data != files.get(entry.name):
                found[entry.name] = data
    return found


_REWRITTEN = "setup.py writes it when it builds, and no kernel has a setup.py: look at what it says, and who reads it"
_SOURCES = frozenset((".cpp", ".cc", ".cxx", ".c", ".cu", ".cuh", ".h", ".hpp", ".inc", ".hip", ".py"))
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
