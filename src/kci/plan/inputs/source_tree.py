"""The files of a repository: links followed in memory, directories listed and files hashed once.

Paths are relative to the tree's root, with `/`; the root itself is empty. What leads out of the root is not there.
A tree is read when it is asked and remembers what it read, so it shows one moment of the disk: make a new one for the
next.
"""

from __future__ import annotations

import enum
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kci.config.discovery import find_root
from kci.errors import FindingsError, KciError
from kci.utils.atomic import write_atomic
from kci.utils.walk import is_bytecode

SCHEMA = 4
_TICK_NS = 3_000_000_000
"""FAT counts in steps of two seconds; the clocks of a file server and of this machine may differ by a little."""
_FINE_TICK_NS = 20_000_000
"""The same for a file system that counts nanoseconds: Linux moves its clock 100 times a second at least."""
_COARSE_NS = 1_000_000
_KEPT = 64
"""Trees that have a record; the oldest records go."""
_MAX_BYTES = 256 * 1024 * 1024
_MAX_ENTRIES = 200_000


class _Remembered(msgspec.Struct, frozen=True, array_like=True):
    seen: tuple[int, int, int, int, int]
    digest: str


class _CacheFile(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    root: str
    entries: dict[str, _Remembered]


class StatCache:
    """Digests of the files below one root, kept in a file in the directory `place`."""

    def __init__(self, root: Path, place: Path) -> None:
        # a file that cannot be read, or is of another root or schema, says nothing
        self._root = os.path.realpath(root)
        self._path = place / f"{hashlib.sha256(self._root.encode(errors='surrogateescape')).hexdigest()[:16]}.msgpack"
        self._entries: dict[str, _Remembered] = {}
        self._used: set[str] = set()
        self._changed = False
        try:
            with self._path.open("rb") as file:
                read = msgspec.msgpack.decode(file.read(_MAX_BYTES), type=_CacheFile)
        except (OSError, ValueError, RecursionError):
            return
        if read.schema == SCHEMA and read.root == self._root:
            self._entries = read.entries

    def get(self, path: str, now: os.stat_result) -> str | None:
        """The digest of a file; None if it may have changed."""
        entry = self._entries.get(path)
        if entry is None or entry.seen != _seen(now):
            return None
        self._used.add(path)
        return entry.digest

    def put(self, path: str, before: os.stat_result, after: os.stat_result, digest: str) -> None:
        """Remember what a file held, if it was at rest while it was read."""
        if _seen(before) == _seen(after) and _at_rest_ns(before) < time.time_ns():
            self._used.add(path)
            self._entries[path] = _Remembered(_seen(before), digest)
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

    def save(self) -> None:
        """Write down what is remembered; where that is impossible, the next run reads the files again."""
        if not self._changed:
            return
        many = len(self._entries) > _MAX_ENTRIES
        entries = {path: self._entries[path] for path in self._used} if many else self._entries
        try:
            data = msgspec.msgpack.encode(_CacheFile(SCHEMA, self._root, entries))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, data)
            oldest = sorted(self._path.parent.glob("*.msgpack"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]
            for path in oldest:
                path.unlink(missing_ok=True)
        except (OSError, ValueError, KciError):
            return
        self._changed = False


def _at_rest_ns(status: os.stat_result) -> int:
    """From when on a file that was changed again would show it."""
    tick = _TICK_NS if status.st_ctime_ns % _COARSE_NS == 0 else min(_TICK_NS, _FINE_TICK_NS)
    return max(status.st_mtime_ns, status.st_ctime_ns) + tick


def _seen(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


_MOST_LINKS = 40


class EntryKind(enum.Enum):
    """What a name in a directory is."""

    FILE = enum.auto()
    DIRECTORY = enum.auto()
    LINK = enum.auto()
    OTHER = enum.auto()


class SourceTree:
    """Files below a directory of this machine, usually a repository; `remembered` is what earlier runs read of it."""

    def __init__(self, root: Path, remembered: StatCache | None = None) -> None:
        self.root = os.path.realpath(root)
        self.remembered = remembered
        self._entries: dict[str, Mapping[str, EntryKind]] = {}
        self._directories: dict[str, str | None] = {"": ""}
        self._digests: dict[str, str] = {}

    def entries(self, directory: str) -> Mapping[str, EntryKind]:
        """What is in a real directory; nothing if it does not exist."""
        found = self._entries.get(directory)
        if found is None:
            found = self._entries[directory] = self._list(directory)
        return found

    def real(self, path: str) -> str | None:
        """Where a path leads, with every link followed; None if there is nothing, or it is outside of the root."""
        return self._follow(path, _MOST_LINKS)

    def file(self, path: str) -> str | None:
        """The real path of a regular file; None if a path leads to no file."""
        folder, _, name = path.rpartition("/")
        if self._directories.get(folder) == folder and folder in self._entries:
            kind = self._entries[folder].get(name)
            if kind is EntryKind.FILE:
                return path
            if kind is None and name not in ("", ".", ".."):
                return None
        found = self.real(path)
        return found if found and self.kind(found) is EntryKind.FILE else None

    def kind(self, real: str) -> EntryKind | None:
        """What is at a path in which no directory is a link; None if nothing is."""
        if not real:
            return EntryKind.DIRECTORY
        folder, _, name = real.rpartition("/")
        return self.entries(folder).get(name)

    def digest(self, real: str) -> str:
        """The SHA-256 of a regular file's content, in hex."""
        found = self._digests.get(real)
        if found is None:
            found = self._digests[real] = self._digest(real)
        return found

    def content(self, real: str) -> bytes:
        """The bytes of a regular file."""
        try:
            with open(f"{self.root}/{real}", "rb") as file:  # noqa: PTH123  - a Path for each file costs more than reading
                return file.read()
        except OSError as error:
            raise _unreadable(self.root, real, error) from error

    def below(self, directory: str) -> dict[str, str]:
        """Every path below a directory but those of directories, bytecode and .git, with the file that it leads to.

        The file is empty for a link to none, and for what is neither a file nor a link.
        """
        found: dict[str, str] = {}
        for name, kind in sorted(self.entries(directory).items()):
            path = f"{directory}/{name}" if directory else name
            if is_bytecode(name) or name == ".git":
                continue
            if kind is EntryKind.DIRECTORY:
                found |= self.below(path)
            else:
                found[path] = path if kind is EntryKind.FILE else self.file(path) or ""
        return found

    def target(self, path: str) -> str:
        """What a link says."""
        try:
            return os.readlink(f"{self.root}/{path}")  # noqa: PTH115
        except OSError as error:
            raise _unreadable(self.root, path, error) from error

    def _list(self, directory: str) -> Mapping[str, EntryKind]:
        try:
            with os.scandir(f"{self.root}/{directory}") as found:
                return {entry.name: _entry_kind(entry) for entry in found}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise _unreadable(self.root, directory, error) from error

    def _follow(self, path: str, links: int) -> str | None:
        folder, slash, name = path.rpartition("/")
        here = self._directory(folder, links) if slash else ""
        if here is None:
            return None
        return self._step(here, name, links)

    def _directory(self, path: str, links: int) -> str | None:
        # remembered, because sources name few directories, and each of them often
        if path not in self._directories:
            if "\0" in path or (path.startswith("/") and not path.startswith(f"{self.root}/")):
                return None
            found = self._follow(path.removeprefix(f"{self.root}/"), links)
            here = found if found is not None and self.kind(found) is EntryKind.DIRECTORY else None
            self._directories[path] = here
        return self._directories[path]

    def _step(self, here: str, name: str, links: int) -> str | None:
        if name in ("", "."):
            return here
        if name == "..":
            return here.rpartition("/")[0] if here else None
        path = f"{here}/{name}" if here else name
        kind = self.entries(here).get(name)
        if kind is not EntryKind.LINK:
            return path if kind is not None else None
        if links == 0:
            return None
        target = self.target(path)
        if target.startswith("/"):
            if target != self.root and not target.startswith(f"{self.root}/"):
                return None
            target = target[len(self.root) + 1 :]
            return self._follow(target, links - 1) if target else ""
        return self._follow(f"{here}/{target}" if here else target, links - 1)

    def _digest(self, real: str) -> str:
        place = f"{self.root}/{real}"
        remembered = self.remembered
        try:
            before = os.stat(place) if remembered is not None else None  # noqa: PTH116
            if remembered is not None and before is not None and (known := remembered.get(real, before)) is not None:
                return known
            with open(place, "rb", buffering=0) as file:  # noqa: PTH123
                found = hashlib.file_digest(file, "sha256").hexdigest()
                after = os.fstat(file.fileno())
        except OSError as error:
            raise _unreadable(self.root, real, error) from error
        if remembered is not None and before is not None:
            remembered.put(real, before, after, found)
        return found


class PatchedTree(SourceTree):
    """A tree in which some paths are as they were at another time, and everything else as it is now.

    `patch` has the kind and the content of each path that differs, or None if it was not there. The content of a link
    is where it leads; that of anything else that is no file, what tells it from others.
    """

    def __init__(self, now: SourceTree, patch: Mapping[str, tuple[EntryKind, bytes] | None]) -> None:
        super().__init__(Path(now.root))
        self._now = now
        self._patch = patch
        self._patched: dict[str, dict[str, EntryKind | None]] = {}
        # What was not there comes first: a file of now may have been a directory then, with files in it.
        for path, entry in sorted(patch.items(), key=lambda item: item[1] is not None):
            folder, _, name = path.rpartition("/")
            self._patched.setdefault(folder, {})[name] = entry[0] if entry is not None else None
            while entry is not None and folder:
                folder, _, name = folder.rpartition("/")
                self._patched.setdefault(folder, {})[name] = EntryKind.DIRECTORY

    def content(self, real: str) -> bytes:
        entry = self._patch.get(real)
        return entry[1] if entry is not None else self._now.content(real)

    def target(self, path: str) -> str:
        entry = self._patch.get(path)
        return os.fsdecode(entry[1]) if entry is not None else self._now.target(path)

    def _list(self, directory: str) -> Mapping[str, EntryKind]:
        # A directory that was no directory then: what is in it now was not there.
        parent, _, name = directory.rpartition("/")
        then = self._patched.get(parent, {}).get(name, EntryKind.DIRECTORY) if directory else EntryKind.DIRECTORY
        still = then is EntryKind.DIRECTORY and self._now.kind(directory) is EntryKind.DIRECTORY
        found = dict(self._now.entries(directory)) if still else {}
        for entry, kind in self._patched.get(directory, {}).items():
            if kind is None:
                found.pop(entry, None)
            else:
                found[entry] = kind
        return found

    def _digest(self, real: str) -> str:
        entry = self._patch.get(real)
        return hashlib.sha256(entry[1]).hexdigest() if entry is not None else self._now.digest(real)


def _entry_kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_file(follow_symlinks=False):
        return EntryKind.FILE
    if entry.is_symlink():
        return EntryKind.LINK
    return EntryKind.DIRECTORY if entry.is_dir(follow_symlinks=False) else EntryKind.OTHER


def _unreadable(root: str, path: str, error: OSError) -> FindingsError:
    return FindingsError(f"cannot read {root}/{path}: {error.strerror}")


class SourceTrees:
    """The files of the repositories that some kernels lie in: one tree for each, read once.

    The digests of files are kept from run to run in the directory `remember`, if there is one.
    """

    def __init__(self, remember: Path | None = None) -> None:
        self.remember = remember
        self._trees: dict[Path, SourceTree] = {}
        self._caches: list[StatCache] = []

    def of(self, directory: str) -> SourceTree:
        """The tree that a kernel lies in; outside of a repository that is its directory, or the one of its kci.toml."""
        root = find_root(Path(directory))[0]
        if root not in self._trees:
            cache = StatCache(root, self.remember) if self.remember is not None else None
            self._caches += [cache] if cache is not None else []
            self._trees[root] = SourceTree(root, cache)
        return self._trees[root]

    def save(self) -> None:
        for cache in self._caches:
            cache.save()
