"""The cache: where what can be used again lies, making it once, and removing it; what is known of unchanged files.

kci removes only what it put there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from kci.errors import FindingsError, KciError
from kci.utils.atomic import in_use, replacing, write_atomic

CACHE_VARIABLE = "KCI_CACHE"
"""What names another place, for hints."""


"""How long getting what lies beside it took."""


def default_cache() -> Path:
    """The cache directory: `KCI_CACHE` if it is set, else `kci` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification: ignore a relative path.
    root = base if Path(base).is_absolute() else "~/.cache"
    # A settings file has no shell that replaces a tilde; pathlib fails for a user who has no home.
    return Path(os.path.expanduser(os.environ.get(CACHE_VARIABLE) or f"{root}/kci")).absolute()  # noqa: PTH111


def make_once(
    folder: Path, is_there: Callable[[], bool], make: Callable[[Path], None], log: Callable[[str], None]
) -> None:
    """Make a folder of the cache unless it is there; it appears only when it is whole, and several may ask at once.

    `make` makes it at the path that it is given; `log` takes a line if another process is waited for.

    Raises:
        FindingsError: nothing can be written there.
    """
    if not is_there():
        with replacing(folder, log) as replacement:
            if not is_there():
                make(replacement.staging)
                replacement.commit()


def work_dir(cache: Path, kernel_dir: Path, variant: str) -> Path:
    """Where the objects of a variant stay between builds: outside of the kernel's directory, which may be read-only."""
    return cache / "work" / f"{kernel_dir.resolve().name}-{place_digest(kernel_dir)}" / variant


def place_digest(directory: Path) -> str:
    """What tells directories of one name apart."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]


PARTS = {
    "builds": ("run", "work", "trees", "inputs"),
    "toolchains": ("envs", "cuda", "headers", "wheels", "test-packages", "test-tools"),
    "compiler-caches": ("ccache",),
}
"""Folders of the cache by what they are for: builds, what builds are made with, and objects."""


WHAT_PARTS_ARE = {
    "builds": "built variants and their objects",
    "toolchains": "torch, CUDA, headers and what tests need",
    "compiler-caches": "compiled objects, by ccache",
}
"""The same for people."""


class KeptFolder(msgspec.Struct, frozen=True):
    """One thing in the cache that can be removed by itself."""

    part: str
    path: Path
    size: int
    used: float
    """When something in it last changed, in seconds since the epoch."""

    @property
    def days(self) -> int:
        """How many days ago that was."""
        return max(0, int((time.time() - self.used) // 86400))


def kept_folders(cache: Path, parts: tuple[str, ...] = ()) -> list[KeptFolder]:
    """What is in the cache, the largest first. Folders that kci does not know and links are not listed.

    Args:
        cache: the cache directory.
        parts: names of `PARTS`; all of them by default.
    """
    found = []
    for part, folders in PARTS.items():
        if parts and part not in parts:
            continue
        for folder in folders:
            for path in _entries(cache / folder):
                size, used = _measured(path)
                found.append(KeptFolder(part, path, size, used))
    return sorted(found, key=lambda item: (-item.size, str(item.path)))


def remove_kept(cache: Path, folder: KeptFolder) -> bool:
    """Remove one; False if it is in use. It is moved aside first, so that no process finds half of it.

    Raises:
        FindingsError: it lies outside of the cache, or cannot be removed.
    """
    inside = folder.path.parent.resolve().is_relative_to(cache.resolve())
    if not inside or folder.path.is_symlink() or folder.path.parent.name not in sum(PARTS.values(), ()):
        raise FindingsError(f"{folder.path} is not in the cache {cache}", hint="nothing of it was removed")
    if in_use(folder.path):
        return False
    aside = folder.path.with_name(f".kci-{folder.path.name}.removed")
    try:
        folder.path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
    except OSError as error:
        raise FindingsError(f"{folder.path} cannot be removed: {error.strerror}") from error
    return True


def _entries(folder: Path) -> Iterator[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return
    yield from sorted(path for path in folder.iterdir() if not path.is_symlink() and _counts(path.name))


def _counts(name: str) -> bool:
    return not name.endswith(".lock")


def _measured(path: Path) -> tuple[int, float]:
    stat = path.lstat()
    if not path.is_dir():
        return stat.st_size, stat.st_mtime
    size, used = 0, stat.st_mtime
    for place, _, names in os.walk(path):
        for name in names:
            try:
                inner = os.lstat(os.path.join(place, name))  # noqa: PTH118  - many thousand of them
            except OSError:
                continue
            size += inner.st_size
            used = max(used, inner.st_mtime)
    return size, used


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
