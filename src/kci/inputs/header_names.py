"""Which headers one source asks for, itself or through the listed files that it includes."""

from __future__ import annotations

import posixpath
from functools import cached_property

from kci.inputs.includes import included
from kci.inputs.kernel_inputs import KernelInputs


class HeaderNames:
    """The names of headers that the sources of one kernel ask for."""

    def __init__(self, inputs: KernelInputs) -> None:
        self._inputs = inputs
        self._names: dict[str, list[str]] = {}
        self._known: dict[tuple[str, ...], frozenset[str]] = {}

    def of(self, source: str) -> frozenset[str] | None:
        """What a source asks for; None if it is not there. A file counts by the last part of its name.

        Raises:
            FindingsError: a file cannot be read.
        """
        real = self._inputs.tree.file(self._inputs.inside(source))
        if real is None:
            return None
        alike = tuple(self._of(real))  # generated sources often include the same
        if alike not in self._known:
            waiting, seen, names = [real], {real}, set()
            while waiting:
                new = self._of(waiting.pop())
                names.update(new)
                more = {file for name in new for file in self._by_name.get(posixpath.basename(name), ())} - seen
                seen |= more
                waiting += more
            self._known[alike] = frozenset(names)
        return self._known[alike]

    def _of(self, real: str) -> list[str]:
        if real not in self._names:
            self._names[real] = included(self._inputs.tree.content(real))
        return self._names[real]

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in sorted(self._inputs.visible()):
            if real := self._inputs.tree.file(path):
                found.setdefault(posixpath.basename(path), []).append(real)
        return found
