"""Runs of a setup.py in a sandbox, with setuptools and kci's torch; their answers are untrusted,
bounded and typed.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec

from kci.builders.process.run import Log
from kci.builders.toolchains.cuda import find_toolkit
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.environment import ensure_runtime, kci_environment
from kci.config.values import Backend, Version
from kci.diagnostics import printable
from kci.errors import FindingsError, MissingToolError
from kci.matrix.catalog.loading import load_catalog
from kci.scaffold import setup_driver
from kci.utils.bounded_json import read_record
from kci.utils.frozen import Frozen

SECONDS = 120
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
_APART = (
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",  # noqa: S108  - its own
)


def sandbox() -> str:
    """The isolation of foreign programs on this machine, as a phrase for messages."""
    if _bubblewrap():
        return (
            "in bubblewrap: without network, and with no files of yours but a copy of the project"
        )
    return (
        "without a sandbox (there is no bubblewrap): as pip would, with limits on time, memory "
        "and files"
    )


@contextmanager
def project_copy(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Yield a temporary directory with these files in `project`, and an empty `answers`;
    FindingsError on OSError.
    """
    place = Path(tempfile.mkdtemp(prefix="kci-setup-")).resolve()
    try:
        (place / "answers").mkdir()
        for name, content in files.items():
            path = place / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield place
    except OSError as error:
        raise FindingsError(
            f"cannot run a copy of the project in {place}: {error.strerror}"
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_sandboxed(
    place: Path, command: list[str], environment: Mapping[str, str], readable: Iterable[str] = ()
) -> int | None:
    """Run a command in `project`, the only writable folder but `answers`; its exit code, or None
    after `SECONDS`.
    """
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(place),
        "TMPDIR": str(place / "project"),
        "LANG": "C.UTF-8",
        "SYSTEMROOT": os.environ.get("SYSTEMROOT", ""),
        **environment,
    }
    if bwrap := _bubblewrap():
        shown = {
            *_SYSTEM,
            *(path for path in (sys.base_prefix, *readable) if not path.startswith("/usr/")),
        }
        binds = [word for path in sorted(shown) for word in ("--ro-bind-try", path, path)]
        binds += [
            "--ro-bind",
            str(place),
            str(place),
        ]  # a mounted folder cannot be exchanged for a link
        binds += [
            word
            for path in ("project", "answers")
            for word in ("--bind", str(place / path), str(place / path))
        ]
        command = [bwrap, *_APART, *binds, "--chdir", str(place / "project"), *command]
    process = subprocess.Popen(
        command,
        cwd=place / "project",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if sys.platform == "win32":  # pragma: no cover
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _bubblewrap() -> str | None:
    # Many containers have it and do not let it make a sandbox
    program = shutil.which("bwrap")
    if program is None:
        return None
    tried = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return (
        program if subprocess.run(tried, capture_output=True, check=False).returncode == 0 else None
    )


_MOST_ANSWER = 8 * 1024 * 1024
_NOT_INSTALLED = "/usr/local/cuda"
"""CUDA_HOME without a toolkit: it does not exist."""

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=20_000)]


class Extension(Frozen):
    """An extension, as setuptools has it."""

    name: _Text
    sources: _Texts
    include_dirs: _Texts = ()
    libraries: _Texts = ()
    extra_link_args: _Texts = ()
    define_macros: Annotated[
        tuple[tuple[_Text | int | float | None, ...], ...], msgspec.Meta(max_length=1000)
    ] = ()
    undef_macros: _Texts = ()
    extra_compile_args: Annotated[dict[_Text, _Texts], msgspec.Meta(max_length=20)] | _Texts = ()

    @property
    def backend(self) -> str:
        """The backend, by the libraries that torch adds; empty for a foreign extension."""
        linked = set(self.libraries)
        if "cudart" in linked:
            return "cuda"
        return "cpu" if {"torch", "c10"} <= linked and "c10_xpu" not in linked else ""

    def flags(self, language: str) -> tuple[str, ...]:
        arguments = self.extra_compile_args
        return arguments.get(language, ()) if isinstance(arguments, dict) else arguments


class SetupRun(Frozen):
    """The result of a run of setup.py."""

    extensions: Annotated[tuple[Extension, ...], msgspec.Meta(max_length=500)] = ()
    license: str = ""
    packages: _Texts = ()
    package_dir: dict[_Text, _Text] = {}
    error: _Text = ""
    line: int = 0

    @property
    def end(self) -> str:
        return printable(f"setup.py:{self.line} ends with {self.error}")


class SetupRuns(Frozen):
    """The runs of setup.py, by backend."""

    by_backend: dict[str, SetupRun]
    where: str
    project: str
    own_folders: tuple[str, ...]
    """Folders outside of the project that each build has: torch's, Python's, CUDA's."""

    def inside(self, path: str) -> str | None:
        """A path relative to the project; None if it leads outside."""
        full = posixpath.normpath(posixpath.join(self.project, path.replace("\\", "/")))
        return (
            posixpath.relpath(full, self.project)
            if f"{full}/".startswith(f"{self.project}/")
            else None
        )


def run_setup(files: Mapping[str, bytes], cache: Path, log: Log) -> SetupRuns:
    """Run a project's setup.py for CPU and CUDA; FindingsError for a bad answer, MissingToolError
    without torch.
    """
    python, torch = _torch(cache, log)
    home = (
        _cuda_home(python, cache, log)
        if any(name.endswith(".cu") for name in files)
        else _NOT_INSTALLED
    )
    own_folders = (str(python.parent.parent), home)
    with project_copy(files) as place:
        by_backend = {
            backend: _run(place, backend, python, cuda_home, own_folders)
            for backend, cuda_home in (("cpu", ""), ("cuda", home))
        }
        where = f"run with torch {torch} for the CPU, {sandbox()}"
        return SetupRuns(by_backend, where, (place / "project").as_posix(), own_folders)


def _torch(cache: Path, log: Log) -> tuple[Path, str]:
    versions = [one.text for one in sorted(map(Version.parse, toolchains().torch), reverse=True)]
    *others, last = sorted(
        versions, key=lambda one: not kci_environment(cache, one, "cpu").complete
    )
    for version in others:
        with suppress(MissingToolError):
            return ensure_runtime(version, cache=cache, log=log), version
    return ensure_runtime(last, cache=cache, log=log), last


def _cuda_home(python: Path, cache: Path, log: Log) -> str:
    # setup.py asks nvcc for its version
    newest = max(
        row.compute for row in load_catalog().rows if row.backend is Backend.CUDA and row.compute
    )
    try:
        toolkit = find_toolkit(newest.minor_text, cache, log)
        toolkit.ensure(python, log)
    except MissingToolError as error:
        log(f"setup.py finds no CUDA toolkit: {error.message}")
        return _NOT_INSTALLED
    return str(toolkit.root)


def _run(
    place: Path, backend: str, python: Path, cuda_home: str, readable: tuple[str, ...]
) -> SetupRun:
    answer = place / "answers" / f"{backend}.json"
    driver = Path(setup_driver.__file__).read_text(encoding="utf-8")
    command = [str(python), "-I", "-B", "-c", driver, str(answer), cuda_home]
    variables = {"CUDA_HOME": cuda_home, "CUDA_PATH": cuda_home, "FORCE_CUDA": "1"}
    variables = {"MAX_JOBS": "1", **(variables if cuda_home else {})}
    code = run_sandboxed(place, command, variables, readable)
    if code is None:
        return SetupRun(error="TimeoutError: it takes longer than kci waits")
    try:
        return read_record(answer, SetupRun, _MOST_ANSWER)
    except FileNotFoundError:
        return SetupRun(error=f"its process ended early, with {code}")
    except (OSError, ValueError) as error:
        raise FindingsError(
            f"setup.py: what it made for {backend} cannot be used: {str(error)[:200]}"
        ) from None
