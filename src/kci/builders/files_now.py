"""What the files that compilers name are now: digests, whether they were at rest, and which others are in the way.

A compiler names files as it found them, from the work directory on. The links in there make the names the same on every
machine (`kernel/csrc/a.h`, `torch/include/...`); what lies elsewhere has the system's name.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kci.builders.commands import KERNEL
from kci.builders.hipify import FOLDER
from kci.inputs.include_scan import asked_names, scan
from kci.inputs.stat_cache import StatCache

OWN = (f"{KERNEL}/", f"{FOLDER}/")
"""How the names of the kernel's own files begin, and of their translations."""

_Seen = tuple[int, int, int, int, int]
_MISSING: _Seen = (0, 0, 0, 0, 0)


class FilesNow:
    """Files as a work directory shows them, each read once. A build begins when this is made."""

    def __init__(self, work: Path, remembered: StatCache) -> None:
        """Note that a build begins; what was written before it is older by a tick of the clock.

        Raises:
            OSError: nothing can be written to the work directory.
        """
        self.work = work
        self._remembered = remembered
        self._known: dict[str, tuple[_Seen, str, tuple[str, ...]]] = {}
        self._folders: dict[str, str] = {}
        begun = work / "begun"
        begun.touch()
        first = begun.stat().st_mtime_ns
        while (now := begun.stat().st_mtime_ns) == first:
            time.sleep(0.001)
            begun.touch()
        self._begun_ns = now

    def digest(self, path: str) -> str:
        """The SHA-256 of a file; empty if there is none."""
        return (self._known.get(path) or self._look(path))[1]

    def digests(self, paths: Iterable[str]) -> dict[str, str]:
        """The same of several, without those that are not there."""
        return {path: digest for path in paths if (digest := self.digest(path))}

    def asked(self, path: str) -> tuple[str, ...]:
        """The names that a file asks for by `__has_include`: no compiler tells of those that it did not find."""
        return (self._known.get(path) or self._look(path))[2]

    def changed(self, paths: Iterable[str]) -> set[str]:
        """Those that are not what they were as the build began, as far as the system tells."""
        links = {"": 0, "/": 0}
        found = set()
        for path in paths:
            seen = self._stat(path)
            known = self._known.get(path)
            if known is None:  # read by a compiler first: then its way must have been the same
                since = max(seen[2], self._links_ns(posixpath.dirname(path), links))
                same = self._look(path)[0] == seen
            else:
                since, same = seen[2], known[0] == seen
            # No program can set the time of inode change, which a rename moves on as well.
            if not same or not 0 < since < self._begun_ns:
                found.add(path)
        return found

    def text(self, path: str) -> bytes:
        """The content of a file."""
        return (self.work / path).read_bytes()

    def assembled(self, path: str) -> list[str]:
        """The files that assembler in one of the kernel's files reads from the work directory on."""
        return [name for name in scan(self.text(path)).embedded if self.digest(name)]

    def save(self) -> None:
        """Remember the digests for other builds."""
        self._remembered.save()

    def _look(self, path: str) -> tuple[_Seen, str, tuple[str, ...]]:
        # remembered by its folder's real path, so that other work directories know it as well
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(self.work / folder)
        place = f"{self._folders[folder]}/{name}"
        try:
            before = os.stat(place)  # noqa: PTH116  - a Path for each file costs more than all the rest
            remembered = self._remembered.get(place, before)
            raw = Path(place).read_bytes()
            if remembered is None:
                remembered = hashlib.sha256(raw).hexdigest()
                self._remembered.put(place, before, os.stat(place), remembered)  # noqa: PTH116
            found = (_seen(before), remembered, asked_names(raw))
        except OSError:
            found = (_MISSING, "", ())
        self._known[path] = found
        return found

    def _stat(self, path: str) -> _Seen:
        try:
            return _seen(os.stat(f"{self.work}/{path}" if path[:1] != "/" else path))  # noqa: PTH116
        except OSError:
            return _MISSING

    def _links_ns(self, folder: str, found: dict[str, int]) -> int:
        # since when the links on a way lead where they do
        if folder not in found:
            here = (self.work / folder).lstat()
            own = here.st_ctime_ns if stat.S_ISLNK(here.st_mode) else 0
            found[folder] = max(own, self._links_ns(posixpath.dirname(folder), found))
        return found[folder]


class InTheWay:
    """Which files have the name of one that was wanted, and were not it: one more of them would be found first.

    Among the kernel's files the last part of a name counts, because an include can be relative to the file that has it,
    or be asked for and not made; where a macro stands for a name, all count. Elsewhere it is what the directories in
    which the compiler looks have under the rest of a path, or under a name that is asked for.
    """

    def __init__(self, files: FilesNow, own: Iterable[str], directories: Iterable[str]) -> None:
        self._files = files
        self._all_own = frozenset(own)
        self._own: dict[str, set[str]] = defaultdict(set)
        for path in self._all_own:
            self._own[posixpath.basename(path)].add(path)
        self._first: dict[str, list[str]] = defaultdict(list)
        for folder in directories:
            if not folder.startswith(OWN):
                for name in _listed(files.work / folder):
                    self._first[name].append(folder)
        self._of: dict[tuple[str, bool], frozenset[str]] = {}
        self._of_lists: dict[str, frozenset[str]] = {}

    def of(self, source: str, reads: Iterable[str], headers: Collection[str], listed: str) -> set[str]:
        """The files that are in the way of one object.

        Args:
            source: what is compiled, which nothing looks for by its name.
            reads: what it read of the kernel.
            headers: what else it read.
            listed: the name of the list of that.
        """
        if listed not in self._of_lists:
            self._of_lists[listed] = frozenset().union(*(self._one(path, wanted=True) for path in headers))
        found = self._of_lists[listed].union(*(self._one(path, wanted=path != source) for path in reads))
        return {path for path in found if path not in headers}

    def _one(self, path: str, *, wanted: bool) -> frozenset[str]:
        if (path, wanted) not in self._of:
            self._of[path, wanted] = frozenset(self._look(path, wanted))
        return self._of[path, wanted]

    def _look(self, path: str, wanted: bool) -> Iterable[str]:
        asked: Iterable[str] = self._files.asked(path)
        names = {posixpath.basename(path)} if wanted else set()
        if path.startswith(OWN):
            included = scan(self._files.text(path))
            asked = (*included.names, *(name for _, name in included.defined))
            if not {macro for macro, _ in included.defined}.issuperset(included.macros):
                yield from self._all_own
        for name in (*names, *map(posixpath.basename, asked)):
            yield from self._own.get(name, ())
        yield from self._asked(path, asked)
        parts = path.split("/")
        for number, part in enumerate(parts):
            for folder in self._first.get(part, ()):
                other = posixpath.join(folder, *parts[number:])
                if other != path and not _one_file(self._files.work / other, self._files.work / path):
                    yield other

    def _asked(self, path: str, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            folders = list(self._first.get(name.partition("/")[0], ()))
            if not path.startswith(OWN):
                folders.append(posixpath.dirname(path))
            for folder in folders:
                other = posixpath.join(folder, name)
                if other != path and (self._files.work / other).is_file():
                    yield other


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _one_file(one: Path, other: Path) -> bool:
    # also where the first is not there: then it is in nobody's way
    try:
        return os.path.samestat(one.stat(), other.stat())
    except OSError:
        return True


def _seen(status: os.stat_result) -> _Seen:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
