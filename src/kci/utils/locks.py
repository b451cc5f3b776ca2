"""One lock for everything that two processes must not do at the same time.

The lock file is removed by whoever releases it, so that nothing is left in a user's repository. That is safe because a
process believes in its lock only if the file that it locked is still the one at the path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":  # pragma: no cover - shown by the project's own workflow on Windows
    import msvcrt
    import time

    def _try_lock(handle: int) -> bool:
        with suppress(OSError):
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            return True
        return False

    def _wait(handle: int) -> None:
        while not _try_lock(handle):
            time.sleep(0.1)

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def sibling_path(path: Path, purpose: str) -> Path:
    """A sibling of a path that belongs to it: hidden, and recognized as kci's."""
    return path.with_name(f".kci-{path.name}.{purpose}")


_HERE: set[Path] = set()
"""The locks that this process holds: who waits for one of them waits for nobody else."""


@contextmanager
def locked(path: Path, log: Callable[[str], None] = lambda _line: None) -> Iterator[int]:
    """Hold the lock of a path; another process waits.

    The lock file is next to the path, whose parent is made if it is missing, and ends with the process that holds it,
    however that ends.

    Args:
        path: what to work on; it need not exist.
        log: is told if there is something to wait for.

    Yields:
        The open lock file. A child process that inherits it holds the lock as well, beyond the end of this one.

    Raises:
        OSError: the parent cannot be made, or nothing can be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sibling_path(path, "lock")
    handle = _acquire(file, lambda: log(f"waiting for another {_holder(file)} that uses {path}"))
    _HERE.add(file)
    try:
        yield handle
    finally:
        _HERE.discard(file)
        if sys.platform == "win32":  # pragma: no cover - an open file cannot be removed there
            os.close(handle)
            with suppress(OSError):
                file.unlink()
        else:
            with suppress(OSError):
                file.unlink()
            os.close(handle)


def _holder(file: Path) -> str:
    return "build of this run" if file in _HERE else "kci process"


def in_use(path: Path) -> bool:
    """True if a process holds the lock of a path, or of something right inside of it; does not wait."""
    inside = list(path.glob(".kci-*.lock")) if path.is_dir() else []
    for file in [sibling_path(path, "lock"), *inside]:
        try:
            handle = os.open(file, os.O_RDWR)
        except OSError:
            continue
        try:
            if not _try_lock(handle):
                return True
        finally:
            os.close(handle)
    return False


def _acquire(file: Path, waiting: Callable[[], None]) -> int:
    said = False
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)  # not inherited by child processes (PEP 446)
        try:
            if not _try_lock(handle):
                if not said:
                    waiting()
                    said = True
                _wait(handle)
            if _is_at(handle, file):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner removed it in between: the next one makes a new file


def _is_at(handle: int, file: Path) -> bool:
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)
