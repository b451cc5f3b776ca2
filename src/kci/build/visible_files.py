"""The files that a build sees: a folder of links to those that build.toml lists, and no others.

The reference builds in a sandbox of the same files (docs/format.md#visible-files). Compilers look for an include beside
the path that they were given, not beside the file that a link leads to: so what is not listed is not found.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kci.build.kernel_files import refused
from kci.build.native.command_lines import KERNEL
from kci.build.request import Request
from kci.errors import BuildFailedError
from kci.plan.inputs.source_tree import SourceTree

_TREE = "tree"
"""The links in a work directory, as their files lie in the repository: `..` leads to declared inputs."""


class VisibleFiles:
    """The files of one build."""

    def __init__(self, request: Request) -> None:
        """Look at the files before anything reads them.

        Raises:
            FindingsError: a file cannot be read.
        """
        self.inputs = request.files()
        self.variant = request.variant
        self._before = {real: self.inputs.tree.digest(real) for _, real in self.inputs.of(self.variant) if real}

    def before(self, real: str) -> str | None:
        """The SHA-256 that one of the files had, by its absolute path; None for any other."""
        root = f"{self.inputs.tree.root}/"
        return self._before.get(real.removeprefix(root)) if real.startswith(root) else None

    def link(self, work: Path) -> None:
        """Make the folder of links in a work directory; what was there goes.

        Raises:
            OSError: it cannot be written.
        """
        tree, root = work / _TREE, Path(self.inputs.tree.root)
        shutil.rmtree(tree, ignore_errors=True)
        (tree / self.inputs.kernel).mkdir(parents=True)
        places = {place: real for path, real in self.inputs.of(self.variant) if real for place in (path, real)}
        for place, real in places.items():
            link = tree / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / real)
        kernel = work / KERNEL
        kernel.unlink(missing_ok=True)
        kernel.symlink_to(Path(_TREE, self.inputs.kernel))

    def require_unchanged(self) -> None:
        """The build has read them: refuse it if one is another now; BuildFailedError (KCI511)."""
        now = SourceTree(Path(self.inputs.tree.root))
        for real, digest in sorted(self._before.items()):
            if now.file(real) is None or now.digest(real) != digest:
                message = f"{self.inputs.shown(real)} changed while {self.variant.name} was built from it"
                raise refused("KCI511", message, self.inputs.shown(real), BuildFailedError)
