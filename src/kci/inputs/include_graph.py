"""Which files of a repository a component's sources may read: includes followed from file to file.

Every directory in which a compiler might look is searched, not only the first that has the file: too much is found
rather than too little. Paths are those of a `SourceTree`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kci.inputs.include_scan import quoted_includes
from kci.inputs.source_tree import EntryKind, SourceTree

_WORK_LINKS = ("kernel", "hip")
"""How a builder's work directory calls the kernel; an include or a flag may go by that name."""
_FROM_BUILDERS = ("EMBEDDED_METALLIB_HEADER",)
"""Macros that the reference builder defines, as a header that it generates."""

# `-Wp,-include,x.h` and `-DX=y` have parts; `-Iinclude` has its path right behind the option
_FLAG_PARTS = re.compile(r"[,=@\s]")
_PATH_FLAGS = re.compile(r"-(?:I|L|B|isystem|iquote|idirafter|iprefix|include|imacros|isysroot|F|J)")


_DOTS = (".", "..")


class _Place(NamedTuple):
    prefix: str
    entries: Mapping[str, EntryKind]


class Escape(msgspec.Struct, frozen=True, order=True):
    """An include that leads to a file outside of the kernel's directory."""

    file: str
    name: str
    leads_to: str
    """The file; its absolute path where it is outside of the tree as well."""


class Reached(msgspec.Struct, frozen=True):
    """What some sources may read."""

    files: frozenset[tuple[str, str]]
    """Paths, and the real path behind each."""
    unknown: str = ""
    """An include that cannot be followed, as in `a.cu: #include MACRO`: it may stand for any file."""
    escapes: tuple[Escape, ...] = ()
    unlisted: frozenset[str] = frozenset()
    """Real paths of files that are read without a compiler saying so: named by flags, or by assembler."""
    refused: frozenset[tuple[str, str]] = frozenset()
    """Sources that are missing, or lie where none may lie; the real path is empty where no file is."""


class IncludeGraph:
    """Follows includes inside one kernel; each file is searched once, whoever includes it.

    `kernel` is its directory in the tree, and `allowed` the files and directories outside of it that may be included.
    """

    def __init__(self, tree: SourceTree, kernel: str, allowed: Sequence[str] = ()) -> None:
        self.tree = tree
        self.kernel = kernel
        self.allowed = allowed
        self.beyond: list[str] = []
        """Paths that the tree does not have, and that the file system was asked for."""
        self._places: dict[str, _Place] = {}
        self._files: dict[str, tuple[str, str] | None] = {}
        self._looked_up: dict[tuple[str, tuple[str, ...]], tuple[set[tuple[str, str]], list[_Place]]] = {}
        self._answers: dict[tuple[tuple[str, str], tuple[str, ...]], Reached] = {}

    def follow(self, sources: Iterable[str], directories: Iterable[str], flags: Sequence[str]) -> Reached:
        """Everything that sources may read.

        Sources and directories are relative to the kernel. Flags may name files and directories as well.
        """
        words = dict.fromkeys(_words(flags))
        places, named = self._flagged(words)
        named_places = dict.fromkeys([*(posixpath.normpath(self.inside(entry)) for entry in directories), *places])
        shared = tuple(named_places)
        # `-include x.h` is looked for where `#include "x.h"` is
        named |= {file for word in words for file in self._shared(word, shared)[0]}
        found_at = {path: self._file(path) for path in map(self.inside, sources)}
        missing = [path for path, there in found_at.items() if there is None]
        refused = {(posixpath.normpath(path), self.tree.file(path) or "") for path in missing}
        seen = {*named, *filter(None, found_at.values())}
        unlisted = {real for _, real in named}
        escapes: set[Escape] = set()
        macros: dict[str, str] = {}
        searched: set[str] = set()
        waiting = list(seen)
        while waiting or (macros and (waiting := self._defined(macros, searched, shared, seen))):
            item = waiting.pop()
            searched.add(item[1])
            for macro in self.tree.scan(item[1]).macros:
                macros[macro] = min(item[1], macros.get(macro, item[1]))
            found = self._included(item, shared)
            unlisted |= found.unlisted
            escapes.update(found.escapes)
            new = found.files - seen
            waiting.extend(new)
            seen |= new
        unknown = self._unresolved(macros, searched, flags)
        return Reached(frozenset(seen), unknown, tuple(sorted(escapes)), frozenset(unlisted), frozenset(refused))

    def _included(self, item: tuple[str, str], shared: tuple[str, ...]) -> Reached:
        # components with the same directories share the answer
        if (item, shared) not in self._answers:
            path, real = item
            beside = [self._place(folder) for folder in {path.rpartition("/")[0], real.rpartition("/")[0]}]
            scan = self.tree.scan(real)
            files: set[tuple[str, str]] = set()
            escapes: list[Escape] = []
            for name in scan.names:
                near, odd = self._candidates(name, beside)
                far, odder = self._shared(name, shared)
                files |= near
                files |= far
                if (odd or odder) and not (near or far):
                    escapes += self._escapes(real, name, [*odd, *odder])
            unlisted: set[str] = set()
            for name in scan.embedded:
                places = [*beside, *(self._place(directory) for directory in (*shared, self.kernel))]
                found = self._candidates(name, places)[0]
                files |= found
                unlisted |= {behind for _, behind in found}
            self._answers[item, shared] = Reached(frozenset(files), "", tuple(escapes), frozenset(unlisted))
        return self._answers[item, shared]

    def inside(self, path: str) -> str:
        """A path of build.toml in the tree."""
        return f"{self.kernel}/{path}" if self.kernel else path

    def _file(self, path: str) -> tuple[str, str] | None:
        # a path without detours, and the real path behind it; None if no file is there that may be read
        if path not in self._files:
            real = self.tree.file(path)
            allowed = real is not None and any(
                not place or f"{real}/".startswith(f"{place}/") for place in (self.kernel, *self.allowed)
            )
            self._files[path] = (posixpath.normpath(path), real) if real is not None and allowed else None
        return self._files[path]

    def _place(self, directory: str) -> _Place:
        # most names are of no file of the kernel, which the entries of a directory tell fast
        if directory not in self._places:
            here = self.tree.real(directory)
            there = self.tree.entries(here) if here is not None and self.tree.is_directory(directory) else {}
            self._places[directory] = _Place(f"{directory}/" if directory else "", there)
        return self._places[directory]

    def _shared(self, name: str, directories: tuple[str, ...]) -> tuple[set[tuple[str, str]], list[_Place]]:
        # many files include the same
        if (name, directories) not in self._looked_up:
            places = [self._place(directory) for directory in directories]
            self._looked_up[name, directories] = self._candidates(name, places)
        return self._looked_up[name, directories]

    def _candidates(self, name: str, places: Iterable[_Place]) -> tuple[set[tuple[str, str]], list[_Place]]:
        """The files that a name can mean when it is looked up in some places, and where it leads somewhere else."""
        found: set[tuple[str, str]] = set()
        suspects: list[_Place] = []
        if name.startswith("/"):
            inside = name.removeprefix(f"{self.tree.root}/")
            there = self._file(inside) if inside != name else None
            return ({there} if there is not None else set()), []
        first = name.partition("/")[0]
        walks = first in _DOTS
        for place in places:
            if walks or first in place.entries:
                if (there := self._file(place.prefix + name)) is not None:
                    found.add(there)
                else:
                    suspects.append(place)
        if first in _WORK_LINKS and "/" in name and (there := self._file(self.inside(name.partition("/")[2]))):
            found.add(there)
        return found, suspects

    def _escapes(self, file: str, name: str, places: Iterable[_Place]) -> Iterator[Escape]:
        for place in places:
            path = place.prefix + name
            real = self.tree.file(path)
            if real is None:
                outside = f"{self.tree.root}/{path}"
                self.beyond.append(outside)
                real = os.path.realpath(outside) if os.path.isfile(outside) else None  # noqa: PTH113
                if real is None or real.startswith(f"{self.tree.root}/"):
                    continue
            if name in quoted_includes(self.tree.content(file)):  # and not in a comment, or in angle brackets
                yield Escape(file, name, real)
            return

    def _defined(
        self, macros: dict[str, str], searched: set[str], shared: Sequence[str], seen: set[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """The files that included macros stand for, as far as the files read so far define them; now seen as well."""
        found: set[tuple[str, str]] = set()
        for file in searched:
            for macro, name in self.tree.scan(file).defined:
                if macro in macros:
                    users = {posixpath.dirname(item) for item in searched if macro in self.tree.scan(item).macros}
                    places = [self._place(directory) for directory in (*users, posixpath.dirname(file), *shared)]
                    found |= self._candidates(name, places)[0]
        new = sorted(found - seen)
        seen.update(new)
        return new

    def _unresolved(self, macros: dict[str, str], searched: set[str], flags: Sequence[str]) -> str:
        """The first included macro that no file defines as a name, or that a flag may define anew."""
        macros = {macro: file for macro, file in macros.items() if macro not in _FROM_BUILDERS}
        known = {macro for file in searched for macro, _ in self.tree.scan(file).defined} if macros else set()
        for macro, file in sorted(macros.items()):
            if not macro or macro not in known or any(macro in flag for flag in flags):
                return f"{file}: #include {macro}".strip()
        return ""

    def _flagged(self, words: Iterable[str]) -> tuple[list[str], set[tuple[str, str]]]:
        # every part of a flag that is a directory or a file counts
        places: list[str] = []
        files: set[tuple[str, str]] = set()
        for word in words:
            for path in self._seen_as(word):
                if self.tree.is_directory(path):
                    places.append(path)
                elif (found := self._file(path)) is not None:
                    files.add(found)
        return list(dict.fromkeys(places)), files

    def _seen_as(self, text: str) -> Iterator[str]:
        if text.startswith("/"):
            if text.startswith(f"{self.tree.root}/"):
                yield text[len(self.tree.root) + 1 :]
            return
        yield self.inside(text)
        for link in _WORK_LINKS:
            if f"{text}/".startswith(f"{link}/"):
                yield self.inside(text[len(link) + 1 :] or ".")


def _words(flags: Iterable[str]) -> Iterator[str]:
    """The parts of flags that may name a file or a directory."""
    for flag in flags:
        for part in _FLAG_PARTS.split(flag):
            word = part.strip("\"'\\")
            shorter = _PATH_FLAGS.match(word)
            for text in (word, word[shorter.end() :] if shorter else word):
                if text and not text.startswith("-") and "\0" not in text:
                    yield text
