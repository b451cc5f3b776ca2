"""The files of a repository: links followed in memory, directories listed and files hashed once.

Paths are relative to the tree's root, with `/`; the root itself is empty. What leads out of the root is not there.
A tree is read when it is asked and remembers what it read, so it shows one moment of the disk: make a new one for the
next.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from kci.config.discovery import find_root
from kci.errors import FindingsError
from kci.utils.cache import StatCache, file_digest
from kci.utils.walk import is_bytecode

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
        try:
            return self.remembered.digest(place) if self.remembered is not None else file_digest(place)
        except OSError as error:
            raise _unreadable(self.root, real, error) from error


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
        self._of: dict[str, SourceTree] = {}

    def of(self, directory: str) -> SourceTree:
        """The tree that a kernel lies in; outside of a repository that is its directory, or the one of its kci.toml."""
        if directory not in self._of:
            root = find_root(Path(directory))[0]
            if root not in self._trees:
                cache = StatCache(root, self.remember) if self.remember is not None else None
                self._trees[root] = SourceTree(root, cache)
            self._of[directory] = self._trees[root]
        return self._of[directory]

    def save(self) -> None:
        """Keep what was read for the next run."""
        for tree in self._trees.values():
            if tree.remembered is not None:
                tree.remembered.save()
