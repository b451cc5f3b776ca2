"""Compares expected with published variants: which are missing, stale, corrupt or surplus, and what
closes each gap.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Collection

from kci.matrix.variants import KernelMatrix
from kci.publish.listing import ListedVariant, TreeListing
from kci.utils.frozen import Frozen
from kci.utils.suggest import command_line


class CoverageState(enum.StrEnum):
    """The state of a variant: expected, published, current."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    """Published and unusable: its digest does not match, or it belongs to another kernel."""
    STALE = "stale"
    """Published from other sources, settings or toolchains, or for another version of the
    kernel."""
    PRESENT = "present"
    SURPLUS = "surplus"
    """Published and not expected: from an older catalog, and harmless to a loader."""


class CoveredVariant(Frozen):
    """The state of one variant."""

    variant: str
    state: CoverageState
    reason: str = ""
    command: str = ""
    """The command that closes the gap; empty without a gap."""


class Coverage(Frozen):
    """A kernel's matrix compared with what is published, sorted by state and name."""

    kernel: str
    source: str
    variants: tuple[CoveredVariant, ...]

    def names(self, state: CoverageState) -> tuple[str, ...]:
        return tuple(item.variant for item in self.variants if item.state is state)

    @property
    def has_gaps(self) -> bool:
        return any(self.names(state) for state in _GAPS)


_GAPS = (CoverageState.MISSING, CoverageState.CORRUPT, CoverageState.STALE)


def coverage(kernel: KernelMatrix, listing: TreeListing, stale: Collection[str] = ()) -> Coverage:
    """Compare a kernel's matrix with what is published; `stale` names variants whose fingerprint
    differs today.
    """
    expected = {variant.name for variant in kernel.variants}
    published = {entry.variant: entry for entry in listing.variants}
    states = []
    for name in expected | published.keys():
        entry = published.get(name)
        state, reason = _state(kernel, entry, name in expected, name in stale)
        command = ""
        if state in _GAPS and name in expected:
            into = [f"--into={listing.tree}"] if listing.tree else []
            command = command_line("run", f"--only={name}", *into, place=kernel.path)
        elif state is not CoverageState.PRESENT and listing.tree:
            command = f"rm -r {shlex.quote(str(listing.tree / name))}"
        states.append(CoveredVariant(name, state, reason, command))
    order = list(CoverageState)
    ordered = sorted(states, key=lambda item: (order.index(item.state), item.variant))
    return Coverage(kernel.name, listing.source, tuple(ordered))


def _state(
    kernel: KernelMatrix, entry: ListedVariant | None, expected: bool, outdated: bool
) -> tuple[CoverageState, str]:
    if not entry:
        return CoverageState.MISSING, ""
    if entry.problem:
        return CoverageState.CORRUPT, entry.problem
    if entry.kernel not in (None, kernel.name):
        return CoverageState.CORRUPT, f"it is a variant of {entry.kernel}"
    if not expected:
        why = "the catalog and build.toml do not ask for it; older users may still load it"
        return CoverageState.SURPLUS, why
    if entry.version not in (None, kernel.version):
        why = f"it is of version {entry.version}, build.toml has {kernel.version}"
        return CoverageState.STALE, why
    if outdated:
        why = "it was built from other sources, settings or toolchains than today's"
        return CoverageState.STALE, why
    return CoverageState.PRESENT, ""
