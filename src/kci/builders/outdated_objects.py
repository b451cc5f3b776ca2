"""Objects that ninja would keep although they would be others now.

ninja compares when files were last written. One that was moved into place or unpacked may have been written long ago, a
link can lead elsewhere now, and a new header can be found before the one that was read. And while a compiler reads a
file, it can be replaced: a build that finishes has looked whether that happened, one that was ended has not.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from kci.builders.commands import KERNEL
from kci.builders.hipify import FOLDER
from kci.builders.ninjafile import Step
from kci.builders.read_files import dependencies
from kci.inputs.include_scan import scan

_OWN = (f"{KERNEL}/", f"{FOLDER}/")
_BEGUN = "begun"
"""A file of the work directory, as long as a build is unfinished."""


class OutdatedObjects:
    """Finds the objects of a work directory that have to be compiled anew and that ninja would keep; a build begins."""

    def __init__(self, work: Path, may_be_read: Iterable[str]) -> None:
        """Note that a build begins; nothing else is read yet. `may_be_read` are absolute paths of the kernel.

        Raises:
            OSError: it cannot be noted.
        """
        self._work = work
        self._may_be_read = may_be_read
        self._begun = work / _BEGUN
        if not self._begun.exists():
            self._begun.touch()
        self._begun_ns = self._begun.stat().st_mtime_ns
        self._links: dict[str, int] = {"": 0, "/": 0}
        self._included: dict[str, set[str]] = {}

    def remove(self, steps: Iterable[Step]) -> None:
        """Remove them.

        Raises:
            OSError: one cannot be removed.
        """
        for step in steps:
            made, depfile = self._work / step.output, self._work / f"{step.output}.d"
            if made.is_file() and depfile.is_file():
                # What builds made that did not finish counts as made when the first of them began.
                made_ns = min(made.stat().st_mtime_ns, self._begun_ns)
                if self._is_outdated(step, made_ns, depfile):
                    made.unlink()

    def finish(self) -> None:
        """The build has finished, and nothing changed while it ran."""
        self._begun.unlink(missing_ok=True)

    def _is_outdated(self, step: Step, made_ns: int, depfile: Path) -> bool:
        read = dependencies(depfile)
        if any(self._since_ns(path) > made_ns for path in read):
            return True
        newer = {posixpath.basename(path) for path, since_ns in self._placed.items() if since_ns > made_ns}
        # None of these was read; one that was wanted by its name, or by that of another, would be now.
        own = [path for path in read if path.startswith(_OWN)] if newer else []
        wanted = {posixpath.basename(path) for path in read if path not in step.inputs}.union(*map(self._names_in, own))
        return not newer.isdisjoint(wanted)

    @cached_property
    def _placed(self) -> dict[str, int]:
        return {path: self._since_ns(path) for path in self._may_be_read}

    def _since_ns(self, path: str) -> int:
        """Since when a file is where it is: no program can set this time. 0 if it is not there, which ninja sees."""
        try:
            own = (self._work / path).stat().st_ctime_ns
        except OSError:
            return 0
        return max(own, self._links_ns(path))

    def _links_ns(self, path: str) -> int:
        """Since when the links on the way to a file lead where they do."""
        if path not in self._links:
            here = (self._work / path).lstat()
            own = here.st_ctime_ns if stat.S_ISLNK(here.st_mode) else 0
            self._links[path] = max(own, self._links_ns(posixpath.dirname(path)))
        return self._links[path]

    def _names_in(self, path: str) -> set[str]:
        if path not in self._included:
            self._included[path] = {posixpath.basename(name) for name in scan((self._work / path).read_bytes()).names}
        return self._included[path]
