"""What earlier runs found out about the Python files of a package, so that only those that changed are parsed again."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic
from kci.errors import KciError
from kci.files.replace import write_atomic
from kci.sources.imports import PackageModule

_MAX_BYTES = 64 * 1024 * 1024


class FileFacts(msgspec.Struct, frozen=True):
    """What one file says."""

    module: PackageModule | None
    """What the import graph needs; None if it cannot be parsed."""
    found: tuple[Diagnostic, ...]
    """What is to be said about the file alone, without its path."""


class _FactsFile(msgspec.Struct, frozen=True):
    judge: str
    entries: dict[str, FileFacts]


class PackageFacts:
    """The facts of the files of one package, by name and content."""

    def __init__(self, folder: Path | None = None, package: Path | None = None) -> None:
        """Read what is remembered; a file that cannot be read, or that another kci wrote, says nothing.

        Args:
            folder: where facts are kept from run to run; None keeps nothing.
            package: the directory of the package.
        """
        self._path: Path | None = None
        self._known: dict[str, FileFacts] = {}
        self._used: dict[str, FileFacts] = {}
        if folder is None or package is None:
            return
        place = hashlib.sha256(os.path.realpath(package).encode(errors="surrogateescape")).hexdigest()[:16]
        self._path = folder / f"{place}.python.msgpack"
        try:
            with self._path.open("rb") as file:
                read = msgspec.msgpack.decode(file.read(_MAX_BYTES), type=_FactsFile)
        except (OSError, ValueError, RecursionError):
            return
        self._known = read.entries if read.judge == _judge() else {}

    def of(self, name: str, text: bytes) -> FileFacts | None:
        """What a file says, if that is known; its name is relative to the package."""
        key = _key(name, text)
        known = self._known.get(key)
        if known is not None:
            self._used[key] = known
        return known

    def put(self, name: str, text: bytes, facts: FileFacts) -> FileFacts:
        """Remember what a file says."""
        self._used[_key(name, text)] = facts
        return facts

    def save(self) -> None:
        """Keep it for the next run; where that is impossible, the next run parses the files again."""
        if self._path is None or self._used.keys() == self._known.keys():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, msgspec.msgpack.encode(_FactsFile(_judge(), self._used)))
        except (OSError, ValueError, KciError):
            return


def _key(name: str, text: bytes) -> str:
    return f"{hashlib.sha256(text).hexdigest()} {name}"


@cache
def _judge() -> str:
    """What decides besides the files: the code and the data of this room, and the Python that parses."""
    room = Path(__file__).parent
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted([*room.glob("*.py"), *room.glob("data/*")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()
