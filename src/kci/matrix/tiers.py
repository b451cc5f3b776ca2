"""Custom tiers: a built-in tier, narrowed, and optionally reduced to pairwise coverage.

kci.toml defines them; `narrowing` turns a definition into filters of `compute_matrix`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kci.catalog.comparisons import WhereError
from kci.catalog.overlay import where_problem
from kci.catalog.where import Where, parse_where
from kci.config.document import refuse
from kci.config.find_settings import FoundSettings
from kci.config.reader import Kernel
from kci.config.values import Tier
from kci.errors import UsageError
from kci.matrix.filters import FIELDS, by_choice, by_expression
from kci.matrix.pairwise import choose
from kci.matrix.selection import Filtered, Narrow
from kci.matrix.variants import Variant
from kci.suggest import one_of, suggestion


class TierDefinition(msgspec.Struct, frozen=True):
    """A custom tier. Different settings narrow, entries of one list widen; empty means all."""

    name: str
    base: Tier = Tier.RELEASE
    backends: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    where: Where | None = None
    pairwise: bool = False
    place: tuple[str, int] = ("", 0)
    """File and line of the definition."""


def tier_of(name: str, found: FoundSettings) -> Tier | TierDefinition:
    """What a tier's name stands for: a built-in tier, or one that kci.toml defines.

    Raises:
        UsageError: there is no such tier.
        FindingsError: its expression cannot be read (KCI128).
    """
    if name in list(Tier):
        return Tier(name)
    table = found.settings.tiers.get(name)
    if table is None or found.document is None:
        known = [*(str(tier) for tier in Tier), *sorted(found.settings.tiers)]
        raise UsageError(f"there is no tier {name[:60]!r}", hint=suggestion(name, known) or one_of(known))
    where = None
    if table.where is not None:
        try:
            where = parse_where(table.where, FIELDS)
        except WhereError as error:
            raise refuse(where_problem(found.document, ("tiers", name, "where"), table.where, error)) from None
    span = found.document.key_span(("tiers", name))
    return TierDefinition(
        name=name,
        base=Tier(table.base),
        backends=tuple(str(backend) for backend in table.backends),
        systems=tuple(str(system) for system in table.systems),
        only=table.only,
        where=where,
        pairwise=table.pairwise,
        place=(found.document.path, span.line if span else 0),
    )


def narrowing(tier: TierDefinition, *, thinned: bool = True) -> list[Narrow]:
    """The filters that make a tier out of its base tier.

    Args:
        tier: the definition.
        thinned: whether to reduce a pairwise tier; without, the result is the full set that it has to cover.
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
    left_out = Filtered("KCI215", f"tier {tier.name}: other variants cover each of its pairs", *tier.place)

    def narrow(_: Kernel, variants: Sequence[Variant]) -> list[Filtered | None]:
        chosen = {id(variant) for variant in choose(variants)}
        return [None if id(variant) in chosen else left_out for variant in variants]

    return narrow
