"""Atomic replacement of a directory or file, also if the process is killed, and locks.

While the lock of a target is held, `.kci-<name>.new` is the staging place and `.kci-<name>.old` the
old directory, where the system cannot exchange two. The next holder restores or removes leftovers.
A holder removes its lock file, so a process trusts its lock only if the locked file is still the
one at the path.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kci.errors import ClientError

Log = Callable[[str], None]

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
    """The hidden sibling of a path for a purpose: `.kci-<name>.<purpose>`."""
    return path.with_name(f".kci-{path.name}.{purpose}")


_OWN_LOCKS: set[Path] = set()


@contextmanager
def locked(path: Path, log: Log = lambda _line: None) -> Iterator[int]:
    """Hold the lock of a path, which need not exist; `log` gets a line if another process is waited
    for.

    Yields the lock file's handle: a child that inherits it holds the lock too. OSError if the
    parent is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sibling_path(path, "lock")
    holder = "build of this run" if file in _OWN_LOCKS else "kci process"
    handle = _acquire(file, lambda: log(f"waiting for another {holder} that uses {path}"))
    _OWN_LOCKS.add(file)
    try:
        yield handle
    finally:
        _OWN_LOCKS.discard(file)
        if sys.platform == "win32":  # pragma: no cover - an open file cannot be removed there
            os.close(handle)
            with suppress(OSError):
                file.unlink()
        else:
            with suppress(OSError):
                file.unlink()
            os.close(handle)


def in_use(path: Path) -> bool:
    """True if a process holds the lock of a path or of an entry in it; does not wait."""
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
    is_logged = False
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _try_lock(handle):
                if not is_logged:
                    waiting()
                    is_logged = True
                _wait(handle)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), file.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner removed it in between: the next attempt makes a new file


_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_WRITABLE_PLACE_HINT = "name a place that you can write; for kci's cache with KCI_CACHE"
_FULL_DISK_MESSAGES = ("No space left on device", "Disk quota exceeded")


@contextmanager
def writing(place: str | os.PathLike[str]) -> Iterator[None]:
    """Raise ClientError, which names the path, for an OSError; `place` is for errors that name
    none.
    """
    try:
        yield
    except OSError as error:
        raise ClientError(
            f"cannot write {failed_path(error, place)}: {error.strerror or error}",
            full_disk_hint(error) or _WRITABLE_PLACE_HINT,
        ) from error


def failed_path(error: OSError, otherwise: str | os.PathLike[str]) -> str:
    """The path of a failed write.

    A failed copy names its source first; `otherwise` is for errors that name none.
    """
    path = (error.filename2 if error.errno in _FULL else None) or error.filename
    return (
        os.fsdecode(path)
        if path is not None and not isinstance(path, int)
        else os.fspath(otherwise)
    )


def full_disk_hint(error: OSError, option: str = "") -> str:
    """The hint for a full disk, empty for other errors; `option` is the one that names another
    place.
    """
    another = "free space there, or name another place"
    return (f"{another} with {option}" if option else another) if error.errno in _FULL else ""


def full_disk_program_hint(output: str, place: str | os.PathLike[str], option: str) -> str:
    """The hint for a program that met a full disk at `place`, which `option` replaces; empty for
    other output.
    """
    if not any(message in output for message in _FULL_DISK_MESSAGES):
        return ""
    where = f"{os.fspath(place)} or {tempfile.gettempdir()}"
    return f"free space in {where}; {option} names another place for the first"


class Replacement:
    """A directory or file in the making, and its target."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.staging = sibling_path(target, "new")

    def commit(self) -> None:
        """Replace the target, all or nothing; ClientError if the system refuses."""
        try:
            flush(self.staging)
            if self.staging.is_dir() and os.path.lexists(self.target):
                if not _exchange(self.staging, self.target):
                    self._swap()
            else:
                self.staging.replace(self.target)
            _flush_one(self.target.parent, folder=True)
        except OSError as error:
            raise ClientError(
                f"cannot replace {self.target}: {error.strerror}",
                full_disk_hint(error) or "it must be a plain file or directory, not a mount point",
            ) from error

    def _swap(self) -> None:
        # `recover` cleans up if the process is killed between the two renames
        old = sibling_path(self.target, "old")
        self.target.rename(old)
        try:
            self.staging.rename(self.target)
        except BaseException:
            old.rename(self.target)
            raise


@contextmanager
def replacing(target: Path, log: Log = lambda _line: None) -> Iterator[Replacement]:
    """Make something at `staging`, then `commit()`; without a commit the target stays.

    Concurrent replacements of a target wait, so it can be read inside. `log` gets lines about
    waiting and leftovers. ClientError if the target's parent is not writable.
    """
    target = target.absolute()
    with writing(target), locked(target, log):
        recover(target, log)
        replacement = Replacement(target)
        try:
            yield replacement
        finally:
            try:
                recover(target, lambda _line: None)
            except OSError as error:
                log(
                    f"cannot clean up beside {target} ({error.strerror}); the next kci that works "
                    "on it will"
                )


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file atomically; ClientError if that fails."""
    with replacing(path) as replacement:
        replacement.staging.write_bytes(data)
        replacement.commit()


def recover(target: Path, log: Log) -> None:
    """Remove or restore leftovers of a killed process next to a target; the caller holds
    its lock.
    """
    old, new = sibling_path(target, "old"), sibling_path(target, "new")
    if os.path.lexists(old):
        if os.path.lexists(target):
            remove(old)
        else:
            old.rename(target)
            log(f"{target} was restored: a kci process that was killed had moved it")
    if os.path.lexists(new):
        remove(new)
        log(f"removed what a kci process that was killed left next to {target}")


def remove(path: Path) -> None:
    """Remove a file or directory, also a read-only one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_make_writable)
    else:
        path.unlink(missing_ok=True)


def _make_writable(remove: Callable[..., object], path: str, _error: object) -> None:
    # a read-only directory keeps its files; it is ours, so retry
    with suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)  # noqa: PTH101, PTH120
        os.chmod(path, 0o700)  # noqa: PTH101
    if remove in (os.unlink, os.rmdir):
        remove(path)
    else:
        shutil.rmtree(path)


_WRITERS = 8


def flush(path: Path) -> None:
    """Call fsync on all below a path before its rename, which can otherwise outlive the data;
    OSError on failure.
    """
    if not path.is_dir() or path.is_symlink():
        _flush_one(path)
        return
    from concurrent.futures import ThreadPoolExecutor

    folders = [(Path(directory), names) for directory, _, names in os.walk(path)]
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(
            _flush_one, (directory / name for directory, names in folders for name in names)
        ):
            pass
    for directory, _ in folders:
        _flush_one(directory, folder=True)


def start_writing(file: IO[bytes]) -> None:
    """Start the writeback of a file without waiting, so that `flush` is fast."""
    file.flush()
    if sys.platform == "linux":
        os.posix_fadvise(
            file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # the kernel writes what is dirty before


def _flush_one(path: Path, *, folder: bool = False) -> None:
    # opening a pipe would wait for its other end; Windows opens no directory
    if sys.platform == "win32" if folder else path.is_symlink() or not path.is_file():
        return
    handle = os.open(path, os.O_RDONLY if sys.platform != "win32" else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if not folder or error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
        ):  # file systems without a flush
            raise
    finally:
        os.close(handle)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # Linux: include/uapi/linux/fs.h
_RENAME_SWAP = 2  # macOS: sys/stdio.h
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)


def _exchange(one: Path, other: Path) -> bool:
    # False where the system or the file system cannot exchange two directories
    if sys.platform == "win32":
        return False
    failed: int
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform.startswith("linux") and hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(first, second, _RENAME_SWAP)
    else:
        return False
    if failed and (code := ctypes.get_errno()) not in _CANNOT:
        raise OSError(code, os.strerror(code), str(other))
    return not failed
