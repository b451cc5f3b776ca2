"""A snapshot of a repository's files.

Paths are relative to the root, with `/`; links out of it lead nowhere.
"""

from __future__ import annotations

import enum
import hashlib
import os
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path

from kci.config.discovery import find_root
from kci.config.sources.package_rules import checker_version
from kci.errors import FindingsError
from kci.utils.cache import StatCache, file_digest
from kci.utils.walk import is_bytecode

_MOST_LINKS = 40


class EntryKind(enum.Enum):
    """The type of a directory entry."""

    FILE = enum.auto()
    DIRECTORY = enum.auto()
    LINK = enum.auto()
    OTHER = enum.auto()


class SourceTree:
    """Files below a directory, usually a repository; `remembered` caches their digests."""

    def __init__(self, root: Path, remembered: StatCache | None = None) -> None:
        self.root = os.path.realpath(root)
        self.remembered = remembered
        self.memory: StatCache | None = None
        self._entries: dict[str, Mapping[str, EntryKind]] = {}
        self._directories: dict[str, str | None] = {"": ""}
        self._digests: dict[str, str] = {}

    def entries(self, directory: str) -> Mapping[str, EntryKind]:
        """The entries of a real directory; empty if it does not exist."""
        listed = self._entries.get(directory)
        if listed is None:
            listed = self._entries[directory] = self._list(directory)
        return listed

    def real(self, path: str) -> str | None:
        """The path with all links resolved; None if it does not exist or leaves the root."""
        return self._follow(path, _MOST_LINKS)

    def file(self, path: str) -> str | None:
        """The real path of a regular file; None for anything else."""
        folder, _, name = path.rpartition("/")
        if self._directories.get(folder) == folder and folder in self._entries:
            kind = self._entries[folder].get(name)
            if kind is EntryKind.FILE:
                return path
            if kind is None and name not in ("", ".", ".."):
                return None
        real = self.real(path)
        return real if real and self.kind(real) is EntryKind.FILE else None

    def kind(self, real: str) -> EntryKind | None:
        """The type of the entry at a real path; None for nothing."""
        if not real:
            return EntryKind.DIRECTORY
        folder, _, name = real.rpartition("/")
        return self.entries(folder).get(name)

    def digest(self, real: str) -> str:
        cached = self._digests.get(real)
        if cached is None:
            cached = self._digests[real] = self._digest(real)
        return cached

    def content(self, real: str) -> bytes:
        try:
            with open(f"{self.root}/{real}", "rb") as file:  # noqa: PTH123  - a Path for each file costs more than reading
                return file.read()
        except OSError as error:
            raise self._unreadable(real, error) from error

    def parsed(self, path: str, parse: Callable[[bytes], list[str]]) -> list[str]:
        """The names that a function finds in a file, remembered by the file's digest; none if there
        is no such file.
        """
        real = self.file(path)
        if real is None or self.memory is None:
            return parse(self.content(real)) if real is not None else []
        place = f"{self.root}/{real}"
        question = f"{parse.__name__} of {place}"
        return self.memory.answer(
            question,
            lambda: (checker_version(), self.digest(real)),
            list[str],
            lambda: parse(self.content(real)),
        )

    def files(self, path: str) -> dict[str, str]:
        """The file at a path, or all below it, each with its real file or an empty text."""
        real = self.real(path)
        if real is None or self.kind(real) is not EntryKind.DIRECTORY:
            return {path: self.file(path) or ""}
        start = len(real) + 1 if real else 0
        below = self.below(real).items()
        return {posixpath.join(path, name[start:]): behind for name, behind in below}

    def at(self, directory: Path) -> SourceTree:
        """The files of a directory in it, with the same memory."""
        tree = SourceTree(directory, self.remembered)
        tree.memory = self.memory
        return tree

    def below(self, directory: str) -> dict[str, str]:
        """All paths below a directory but directories, bytecode and .git, with their real files or
        an empty text.
        """
        paths: dict[str, str] = {}
        for name, kind in sorted(self.entries(directory).items()):
            path = f"{directory}/{name}" if directory else name
            if is_bytecode(name) or name == ".git":
                continue
            if kind is EntryKind.DIRECTORY:
                paths |= self.below(path)
            else:
                paths[path] = path if kind is EntryKind.FILE else self.file(path) or ""
        return paths

    def target(self, path: str) -> str:
        try:
            return os.readlink(f"{self.root}/{path}")  # noqa: PTH115
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _list(self, directory: str) -> Mapping[str, EntryKind]:
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                return {entry.name: _entry_kind(entry) for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise self._unreadable(directory, error) from error

    def _follow(self, path: str, links: int) -> str | None:
        if path == self.root:
            return ""
        if path.startswith("/"):
            if not path.startswith(f"{self.root}/"):
                return None
            path = path[len(self.root) + 1 :]
        folder, slash, name = path.rpartition("/")
        here = self._directory(folder, links) if slash else ""
        if here is None or name in ("", "."):
            return here
        if name == "..":
            return here.rpartition("/")[0] if here else None
        place = f"{here}/{name}" if here else name
        kind = self.entries(here).get(name)
        if kind is not EntryKind.LINK:
            return place if kind is not None else None
        if links == 0:
            return None
        target = self.target(place)
        start = f"{here}/" if here and not target.startswith("/") else ""
        return self._follow(f"{start}{target}", links - 1)

    def _directory(self, path: str, links: int) -> str | None:
        if path not in self._directories:
            real = self._follow(path, links) if "\0" not in path else None
            known = real is not None and self.kind(real) is EntryKind.DIRECTORY
            self._directories[path] = real if known else None
        return self._directories[path]

    def _digest(self, real: str) -> str:
        place = f"{self.root}/{real}"
        try:
            return (
                self.remembered.digest(place) if self.remembered is not None else file_digest(place)
            )
        except OSError as error:
            raise self._unreadable(real, error) from error

    def _unreadable(self, path: str, error: OSError) -> FindingsError:
        return FindingsError(f"cannot read {self.root}/{path}: {error.strerror}")


class PatchedTree(SourceTree):
    """A tree with some paths of another time: `patch` has the type and content of each, None if it
    was absent.
    """

    def __init__(
        self, now: SourceTree, patch: Mapping[str, tuple[EntryKind, bytes] | None]
    ) -> None:
        super().__init__(Path(now.root))
        self._now = now
        self._patch = patch
        self._patched: dict[str, dict[str, EntryKind | None]] = {}
        # Absent paths first: a present file may have been a directory.
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
        # A directory that was none: its present entries were absent.
        parent, _, name = directory.rpartition("/")
        then = (
            self._patched.get(parent, {}).get(name, EntryKind.DIRECTORY)
            if directory
            else EntryKind.DIRECTORY
        )
        still = then is EntryKind.DIRECTORY and self._now.kind(directory) is EntryKind.DIRECTORY
        entries = dict(self._now.entries(directory)) if still else {}
        for entry, kind in self._patched.get(directory, {}).items():
            if kind is None:
                entries.pop(entry, None)
            else:
                entries[entry] = kind
        return entries

    def _digest(self, real: str) -> str:
        entry = self._patch.get(real)
        return hashlib.sha256(entry[1]).hexdigest() if entry is not None else self._now.digest(real)


def _entry_kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_file(follow_symlinks=False):
        return EntryKind.FILE
    if entry.is_symlink():
        return EntryKind.LINK
    return EntryKind.DIRECTORY if entry.is_dir(follow_symlinks=False) else EntryKind.OTHER


class SourceTrees:
    """The source trees of several kernels, one per repository; digests are kept below
    `remember`.
    """

    def __init__(self, remember: Path | None = None) -> None:
        self.remember = remember
        self._trees: dict[Path, SourceTree] = {}
        self._of: dict[str, SourceTree] = {}

    def of(self, directory: str) -> SourceTree:
        """The tree around a kernel: its repository, else the directory of its kci.toml or
        its own.
        """
        if directory not in self._of:
            root = find_root(Path(directory))[0]
            if root not in self._trees:
                self._trees[root] = tree = SourceTree(root)
                if self.remember is not None:
                    tree.remembered = StatCache(root, self.remember)
                    tree.memory = StatCache(
                        root, self.remember / "parsed"
                    )  # what a plan does not read
            self._of[directory] = self._trees[root]
        return self._of[directory]

    def save(self) -> None:
        for tree in self._trees.values():
            for kept in (tree.remembered, tree.memory):
                if kept is not None:
                    kept.save()
