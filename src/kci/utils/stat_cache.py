"""What earlier runs found out about files: digests by what the disk says of a file, and answers by digests."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from kci.errors import KciError
from kci.utils.atomic import write_atomic

SCHEMA = 5
_TICK_NS = 3_000_000_000
"""FAT counts in steps of two seconds; the clocks of a file server and of this machine may differ by a little."""
_FINE_TICK_NS = 20_000_000
"""The same for a file system that counts nanoseconds: Linux moves its clock 100 times a second at least."""
_COARSE_NS = 1_000_000
_KEPT = 64
"""Trees that have a record; the oldest records go."""
_MAX_BYTES = 256 * 1024 * 1024
_MAX_ENTRIES = 200_000


_T = TypeVar("_T")


class _Remembered(msgspec.Struct, frozen=True, array_like=True):
    seen: tuple[int, int, int, int, int]
    digest: str


class _CacheFile(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    root: str
    entries: dict[str, _Remembered]
    answers: dict[str, tuple[str, msgspec.Raw]]


class StatCache:
    """Digests of the files below one root, and what such files say, kept in a file in the directory `place`."""

    def __init__(self, root: Path, place: Path) -> None:
        self._root = os.path.realpath(root)
        self._path = place / f"{hashlib.sha256(self._root.encode(errors='surrogateescape')).hexdigest()[:16]}.msgpack"
        self._used: set[str] = set()
        self._changed = False

    def digest(self, place: str) -> str:
        """The SHA-256 of the content of the file at a real path, in hex; raises an OSError if it cannot be read."""
        path = place.removeprefix(f"{self._root}/")
        before = os.stat(place)  # noqa: PTH116
        known = self.get(path, before)
        if known is None:
            known = file_digest(place)
            self.put(path, before, os.stat(place), known)  # noqa: PTH116
        return known

    def answer(self, question: str, given: Callable[[], object], kind: type[_T], find: Callable[[], _T]) -> _T:
        """The answer to a question, which `find` gives unless it was asked before about the same things.

        It is kept unless these things, which `given` says, are others once it is there.
        """
        found = None
        with suppress(ValueError):  # a name that is not UTF-8, or a damaged record
            key = _key(given())
            known, answer = self._kept.answers.get(question, ("", msgspec.Raw()))
            if known == key:
                return msgspec.msgpack.decode(answer, type=kind)
            found = find()
            if _key(given()) == key:
                self._kept.answers[question] = key, msgspec.Raw(msgspec.msgpack.encode(found))
                self._changed = True
        return find() if found is None else found

    def get(self, path: str, now: os.stat_result) -> str | None:
        """The digest of a file; None if it may have changed."""
        entry = self._kept.entries.get(path)
        if entry is None or entry.seen != _seen(now):
            return None
        self._used.add(path)
        return entry.digest

    def put(self, path: str, before: os.stat_result, after: os.stat_result, digest: str) -> None:
        """Remember what a file held, if it was at rest while it was read."""
        if _seen(before) == _seen(after) and _at_rest_ns(before) < time.time_ns():
            self._used.add(path)
            self._kept.entries[path] = _Remembered(_seen(before), digest)
            self._changed = True

    def put_written(self, digests: Mapping[str, str]) -> None:
        """Remember files that were written just now, where the file system tells the next change from this one.

        `digests` are the hex SHA-256 by path below the root. Raises an OSError if a file is not there.
        """
        before = {path: Path(self._root, path).lstat() for path in digests}
        wait_ns = max(map(_at_rest_ns, before.values()), default=0) - time.time_ns() + 1
        if 0 < wait_ns <= _FINE_TICK_NS:
            time.sleep(wait_ns / 1e9)
        for path, status in before.items():
            self.put(path, status, Path(self._root, path).lstat(), digests[path])

    @cached_property
    def _kept(self) -> _CacheFile:
        # a file that cannot be read, or is of another root or schema, says nothing
        with suppress(OSError, ValueError, RecursionError), self._path.open("rb") as file:
            read = msgspec.msgpack.decode(file.read(_MAX_BYTES), type=_CacheFile)
            if read.schema == SCHEMA and read.root == self._root:
                return read
        return _CacheFile(SCHEMA, self._root, {}, {})

    def save(self) -> None:
        """Write down what is remembered; where that is impossible, the next run reads the files again."""
        if not self._changed:
            return
        many = len(self._kept.entries) > _MAX_ENTRIES
        entries = {path: self._kept.entries[path] for path in self._used} if many else self._kept.entries
        answers = {} if many else self._kept.answers
        try:
            data = msgspec.msgpack.encode(_CacheFile(SCHEMA, self._root, entries, answers))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, data)
            oldest = sorted(self._path.parent.glob("*.msgpack"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]
            for path in oldest:
                path.unlink(missing_ok=True)
        except (OSError, ValueError, KciError):
            return
        self._changed = False


def _key(given: object) -> str:
    return hashlib.sha256(msgspec.json.encode(given, order="deterministic")).hexdigest()


def _at_rest_ns(status: os.stat_result) -> int:
    """From when on a file that was changed again would show it."""
    tick = _TICK_NS if status.st_ctime_ns % _COARSE_NS == 0 else min(_TICK_NS, _FINE_TICK_NS)
    return max(status.st_mtime_ns, status.st_ctime_ns) + tick


def _seen(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def file_digest(place: str) -> str:
    """The SHA-256 of a file's content, in hex."""
    with open(place, "rb", buffering=0) as file:  # noqa: PTH123  - a Path for each file costs more than reading
        found = hashlib.sha256()  # `file_digest` makes a buffer of 256 KiB for each file, and most are small
        while part := file.read(1 << 20):
            found.update(part)
        return found.hexdigest()
