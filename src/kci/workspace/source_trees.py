"""The files of the repositories that a workspace's kernels are in, read once for one question."""

from __future__ import annotations

from pathlib import Path

from kci.config.reader import Kernel
from kci.config.settings import FoundSettings, locate
from kci.files.source_tree import SourceTree
from kci.files.stat_cache import StatCache


class SourceTrees:
    """A tree of files for each repository; kernels of one repository share it."""

    def __init__(self, settings: FoundSettings, digests: Path | None = None) -> None:
        """Nothing is read yet.

        Args:
            settings: those of the workspace; with a kci.toml, its folder is the root of every kernel.
            digests: a folder in which digests are kept from one question to the next.
        """
        self._root = settings.root if settings.document is not None else None
        self._digests = digests
        self._trees: dict[Path, SourceTree] = {}
        self._remembered: list[StatCache] = []

    def of(self, kernel: Kernel) -> SourceTree:
        """The tree that a kernel is in."""
        root = self._root or locate(Path(kernel.directory))[0]
        if root not in self._trees:
            remembered = StatCache(root, self._digests) if self._digests is not None else None
            self._remembered += [remembered] if remembered is not None else []
            self._trees[root] = SourceTree(root, remembered)
        return self._trees[root]

    def save(self) -> None:
        """Keep the digests for the next question."""
        for remembered in self._remembered:
            remembered.save()
