"""Taking files over without copying them, where the file system can: as hard links, as clones, and as copies at last.

A hard link is safe for what is carried from an old tree to its successor: nothing writes into a tree, and the old
name goes away when the new tree takes its place.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kci.errors import FindingsError
from kci.files.full_disk import room_hint, unwritten
from kci.files.walk import is_bytecode

_FICLONE = 0x40049409  # Linux: include/uapi/linux/fs.h

Put = Callable[[str, str], None]


def carry(source: Path, target: Path) -> None:
    """Bring a file or directory of an old tree into its successor, without its content being copied.

    Raises:
        FindingsError: it cannot be read or written.
    """
    _put(source, target, _linked)


def copy(source: Path, target: Path) -> None:
    """Copy a file or directory; the two share nothing that a later write to one of them could change in the other.

    Links are copied as links, so that nothing outside is read. Bytecode is left out.

    Raises:
        FindingsError: it cannot be read or written.
    """
    _put(source, target, _cloned)


def _put(source: Path, target: Path, put: Put) -> None:
    try:
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(
                source, target, symlinks=True, ignore=_bytecode, copy_function=lambda *two: _once(put, *two)
            )
        elif source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            _once(put, str(source), str(target))
    except (OSError, shutil.Error) as error:
        raise FindingsError(f"cannot copy {source}: {error}") from error


def _once(put: Put, source: str, target: str) -> None:
    """The first file that fails ends it: `copytree` would go on, and report all of them together."""
    try:
        put(source, target)
    except OSError as error:
        message = f"cannot copy {source} to {unwritten(error, target)}: {error.strerror or error}"
        raise FindingsError(message, hint=room_hint(error)) from error


def _bytecode(_directory: str, names: list[str]) -> list[str]:
    return [name for name in names if is_bytecode(name)]


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):  # another file system, one without links, a count at its limit, Windows
        _cloned(source, target)


def _cloned(source: str, target: str) -> None:
    if _clone(source, target):
        shutil.copystat(source, target)
    else:
        shutil.copy2(source, target)


def _clone(source: str, target: str) -> bool:
    """Whether the target could be made to share the source's blocks until one of them is written."""
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        with Path(source).open("rb") as old, Path(target).open("xb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except FileExistsError:
        raise
    except OSError:
        with suppress(OSError):
            Path(target).unlink()
        return False
    return True
