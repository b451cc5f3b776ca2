"""Which headers one source asks for, itself or through the files that it includes: by the names that they write."""

from __future__ import annotations

import posixpath
from collections.abc import Hashable

from kci.inputs.kernel_inputs import KernelInputs


class HeaderNames:
    """The names of headers that the sources of one kernel ask for."""

    def __init__(self, inputs: KernelInputs) -> None:
        self._inputs = inputs
        self._known: dict[tuple[Hashable, ...], frozenset[str] | None] = {}

    def of(self, label: str, source: str) -> frozenset[str] | None:
        """What a source of a component asks for; None if not all of it can be told.

        Raises:
            FindingsError: a file cannot be read.
        """
        tree, graph = self._inputs.tree, self._inputs.graph
        _, directories, flags = self._inputs.asked[label]
        real = tree.file(graph.inside(source))
        if real is None:
            return None
        # Generated sources often include the same.
        alike = (label, posixpath.dirname(source), posixpath.dirname(real), tree.scan(real))
        if alike not in self._known:
            found = graph.follow((source,), directories, flags)
            names = frozenset(name for _, path in found.files for name in tree.scan(path).names)
            self._known[alike] = None if found.unknown or found.refused else names
        return self._known[alike]
