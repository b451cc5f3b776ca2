"""Taking files over: as hard links where the file system has them, else as copies.

A hard link is safe for what is carried from an old tree to its successor: nothing writes into a tree, and the old
name goes away when the new tree takes its place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from kci.errors import FindingsError
from kci.files.full_disk import room_hint, unwritten
from kci.files.walk import is_bytecode

_Put = Callable[[str, str], object]


def carry(source: Path, target: Path) -> None:
    """Bring a file or directory of an old tree into its successor, without its content being copied."""
    _put(source, target, _linked)


def copy(source: Path, target: Path) -> None:
    """Copy a file or directory; the two share nothing that a later write to one of them could change in the other.

    Links are copied as links, so that nothing outside is read. Bytecode is left out.
    """
    _put(source, target, shutil.copy2)


def _put(source: Path, target: Path, put: _Put) -> None:
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


def _once(put: _Put, source: str, target: str) -> None:
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
        shutil.copy2(source, target)
