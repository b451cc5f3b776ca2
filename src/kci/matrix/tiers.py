"""Tiers of one's own: a tier that kci knows, narrowed, and perhaps thinned to pairwise coverage.

kci.toml defines them; `narrowing` turns a definition into filters of `compute_matrix`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kci.catalog.where import Where
from kci.config.reader import Kernel
from kci.matrix.filters import by_choice, by_expression
from kci.matrix.pairwise import choose
from kci.matrix.selection import Filtered, Narrow
from kci.matrix.types import Tier, Variant


class TierDefinition(msgspec.Struct, frozen=True):
    """A tier of one's own. Different settings narrow, entries of one list widen; empty means all."""

    name: str
    base: Tier = Tier.RELEASE
    backends: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    where: Where | None = None
    pairwise: bool = False
    place: tuple[str, int] = ("", 0)
    """File and line of the definition."""


def narrowing(tier: TierDefinition, *, thinned: bool = True) -> list[Narrow]:
    """The filters that make a tier out of its base tier.

    Args:
        tier: the definition.
        thinned: whether to thin a pairwise tier; without, the result is the full set that it has to cover.
    """
    asked = f"tier {tier.name}: {{}}"
    filters = [
        by_choice(
            systems=tier.systems, backends=tier.backends, only=tier.only, rule="KCI214", asked=asked, place=tier.place
        )
    ]
    if tier.where is not None:
        filters.append(by_expression(tier.where, rule="KCI214", asked=asked.format("where"), place=tier.place))
    if tier.pairwise and thinned:
        filters.append(_pairwise(tier))
    return filters


def _pairwise(tier: TierDefinition) -> Narrow:
    left_out = Filtered("KCI215", f"tier {tier.name}: other variants have each of its pairs", *tier.place)

    def narrow(_: Kernel, variants: Sequence[Variant]) -> list[Filtered | None]:
        chosen = {id(variant) for variant in choose(variants)}
        return [None if id(variant) in chosen else left_out for variant in variants]

    return narrow
