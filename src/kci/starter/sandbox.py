"""Running a program that somebody else wrote on a copy of a project.

In bubblewrap it sees that copy and the system's files, and has no network; elsewhere only limits hold it, as nothing
holds it when pip runs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from kci.errors import FindingsError
from kci.files.walk import is_own, walk

SECONDS = 60
MOST_BYTES = 64 * 1024 * 1024
_TMP = "/tmp"  # noqa: S108  - of the sandbox
_SOURCES = frozenset((".cpp", ".cc", ".cxx", ".c", ".cu", ".cuh", ".h", ".hpp", ".inc", ".hip", ".py"))


def sandbox() -> str:
    """What holds a program of somebody else on this machine, for people."""
    if _bubblewrap():
        return "in bubblewrap: without network, and with no files of yours but a copy of the project"
    return "without a sandbox (there is no bubblewrap): as pip would, with limits on time, memory and files"


@contextmanager
def project_copy(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A place with a copy of a project, given as files by their path, below `project`, and a folder `answers`.

    Raises:
        FindingsError: there is no room for it, or the program cannot be started.
    """
    place = Path(tempfile.mkdtemp(prefix="kci-setup-"))
    try:
        (place / "answers").mkdir()
        for name, content in files.items():
            path = place / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield place
    except OSError as error:
        raise FindingsError(f"cannot run a copy of the project in {place}: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_in(
    place: Path, command: list[str], environment: Mapping[str, str], given: bytes = b"", seen: Iterable[str] = ()
) -> int | None:
    """Run a command in the project of a place: its exit code, or None if it was ended since it took too long.

    Args:
        place: from `project_copy`; its `project` and `answers` can be written to.
        command: the program, and what it is given.
        environment: variables besides those that it gets anyway.
        given: what it can read.
        seen: folders of this machine that it can see besides those of the system and of Python.
    """
    python = Path(sys.executable).resolve()
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "TMPDIR": str(place / "project"),
                   "LANG": "C.UTF-8", **environment}  # fmt: skip
    if sys.platform == "win32":  # pragma: no cover - Python does not start without it there
        environment["SYSTEMROOT"] = os.environ.get("SYSTEMROOT", "")
    if bwrap := _bubblewrap():
        shown = {
            "/usr",
            "/lib",
            "/lib64",
            "/bin",
            "/etc/ld.so.cache",
            sys.base_prefix,
            str(python.parent.parent),
            *seen,
        }
        binds = [word for path in sorted(shown) for word in ("--ro-bind-try", path, path)]
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
        process.communicate(given, timeout=SECONDS)
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
    """The program, if it can make a sandbox here: in many containers it may not."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    tried = [found, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return found if subprocess.run(tried, capture_output=True, check=False).returncode == 0 else None


def written(place: Path, files: Mapping[str, bytes], program: str) -> dict[str, bytes]:
    """What a program has made in the project and may be a source, or has changed; links and anything large are left.

    Raises:
        FindingsError: it has exchanged the project for a link.
    """
    found: dict[str, bytes] = {}
    room = MOST_BYTES
    project = place / "project"
    if project.is_symlink():
        raise FindingsError(
            f"{program} puts a link in place of its own project", hint="look at what it does before you run it"
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
