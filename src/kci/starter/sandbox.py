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
from pathlib import Path

from kci.errors import FindingsError

SECONDS = 120
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
_APART = ("--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")  # noqa: S108  - its own


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
    place = Path(tempfile.mkdtemp(prefix="kci-setup-")).resolve()
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


def run_in(place: Path, command: list[str], environment: Mapping[str, str], seen: Iterable[str] = ()) -> int | None:
    """Run a command in the project of a place of `project_copy`: its exit code, or None if it took too long.

    It can write to `project` and `answers`, and sees the system's folders, Python's and those that are `seen`.
    """
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "TMPDIR": str(place / "project"),
                   "LANG": "C.UTF-8", "SYSTEMROOT": os.environ.get("SYSTEMROOT", ""), **environment}  # fmt: skip
    if bwrap := _bubblewrap():
        shown = {*_SYSTEM, *(path for path in (sys.base_prefix, *seen) if not path.startswith("/usr/"))}
        binds = [word for path in sorted(shown) for word in ("--ro-bind-try", path, path)]
        binds += ["--ro-bind", str(place), str(place)]  # a folder that is mounted cannot be exchanged for a link
        binds += [word for path in ("project", "answers") for word in ("--bind", str(place / path), str(place / path))]
        command = [bwrap, *_APART, *binds, "--chdir", str(place / "project"), *command]
    process = subprocess.Popen(
        command, cwd=place / "project", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
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
    """The program, if it can make a sandbox here: in many containers it may not."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    tried = [found, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return found if subprocess.run(tried, capture_output=True, check=False).returncode == 0 else None
