"""Filters of variants: of the command line, and custom tiers of kci.toml.

A custom tier narrows a built-in one, optionally to pairwise coverage: each pair of torch, compute
version and system occurs once. That finds failures which two of the three cause.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from kci.config.discovery import RepositorySettings
from kci.config.document import refuse
from kci.config.reader import Kernel
from kci.config.values import SYSTEMS, Tier
from kci.errors import UsageError
from kci.matrix.catalog.expressions import Where, WhereError, parse_where
from kci.matrix.catalog.loading import FIELDS as ROW_FIELDS
from kci.matrix.catalog.loading import subject, where_problem
from kci.matrix.catalog.rows import Decision
from kci.matrix.selection import Narrow
from kci.matrix.variants import Kind, Variant
from kci.utils.frozen import Frozen
from kci.utils.suggest import one_of, suggestion


def tier_of(
    name: str, repository: RepositorySettings, *, thinned: bool = True
) -> tuple[Tier, list[Narrow]]:
    """The base tier and filters of a custom tier; UsageError if unknown, FindingsError (KCI128) for
    its expression.
    """
    tier = repository.settings.tiers.get(name)
    if tier is None or repository.document is None:
        names = [*(str(tier) for tier in Tier), *sorted(repository.settings.tiers)]
        raise UsageError(
            f"there is no tier {name[:60]!r}", hint=suggestion(name, names) or one_of(names)
        )
    place = repository.document.place(("tiers", name))
    origin = FilterOrigin("KCI214", f"tier {name}: ", place)
    filters = [by_choice(tier.systems, tier.backends, tier.only, origin)]
    if tier.where is not None:
        try:
            where = parse_where(tier.where, FIELDS)
        except WhereError as error:
            raise refuse(
                where_problem(repository.document, ("tiers", name, "where"), tier.where, error)
            ) from None
        filters.append(by_expression(where, origin))
    if tier.pairwise and thinned:
        reason = f"tier {name}: other variants cover each of its pairs"
        filters.append(_pairwise(Decision("KCI215", reason, place=place)))
    return tier.base, filters


def _pairwise(left_out: Decision) -> Narrow:
    def narrow(_: Kernel, variants: Sequence[Variant]) -> list[Decision | None]:
        chosen = {id(variant) for variant in choose(variants)}
        return [None if id(variant) in chosen else left_out for variant in variants]

    return narrow


FIELDS = {**ROW_FIELDS, "kind": [str(kind) for kind in Kind], "name": (), "stable-abi": ()}
"""The fields of expressions about variants."""


class FilterOrigin(Frozen):
    """Where a filter stands, by default on the command line."""

    rule: str = "KCI211"
    prefix: str = "--"
    place: tuple[str, int] = ("", 0)

    def excludes(self, what: str) -> Decision:
        return Decision(self.rule, f"{self.prefix}{what} excludes it", place=self.place)


_COMMAND_LINE = FilterOrigin()


def by_choice(
    systems: Collection[str] = (),
    backends: Collection[str] = (),
    only: Sequence[str] = (),
    origin: FilterOrigin = _COMMAND_LINE,
) -> Narrow:
    """A filter by system, backend and name patterns."""

    def judge(variant: Variant) -> Decision | None:
        for name, chosen, fits in (
            ("system", systems, variant.system in systems),
            ("backend", backends, variant.backend in backends),
            ("only", only, any(fnmatch.fnmatchcase(variant.name, glob) for glob in only)),
        ):
            if chosen and not fits:
                return origin.excludes(f"{name} {' '.join(chosen)}")
        return None

    return lambda _, variants: [judge(variant) for variant in variants]


def by_expression(where: Where, origin: FilterOrigin = _COMMAND_LINE) -> Narrow:
    """A filter by an expression; `newest` and `oldest` refer to the variants of one kernel."""
    left_out = origin.excludes(f"where {where.text!r}")

    def narrow(_: Kernel, variants: Sequence[Variant]) -> list[Decision | None]:
        subjects = [subject(variant) for variant in variants]
        test = where.over(subjects)
        return [None if test(fields) else left_out for fields in subjects]

    return narrow


def by_scope(scopes: Mapping[str, Collection[str]]) -> Narrow:
    """A filter by the backends of arguments such as `kernels/relu[cuda,rocm]`, by kernel
    directory.
    """

    def narrow(kernel: Kernel, variants: Sequence[Variant]) -> list[Decision | None]:
        backends = scopes.get(kernel.directory)
        left_out = FilterOrigin(prefix="").excludes(
            f"{kernel.directory}[{','.join(backends or ())}]"
        )
        return [
            None if backends is None or item.backend in backends else left_out for item in variants
        ]

    return narrow


Pair = tuple[str, str]
"""Two aspects of a variant, such as `torch 2.13` and `cuda 13.0`."""

_STEPS = 5000
"""Steps of the search for the smallest selection, about 0.1 seconds."""


def pairs(variant: Variant) -> list[Pair]:
    """The pairs of torch, compute version and system in a variant."""
    compute = f"{variant.backend} {variant.compute}" if variant.compute else str(variant.backend)
    aspects = [f"torch {variant.torch}"] if variant.torch else []
    return list(combinations([*aspects, compute, variant.system], 2))


def choose(variants: Sequence[Variant]) -> list[Variant]:
    """A small subset of the variants with all of their pairs, in their order.

    It is greedy by missing pairs, then newest torch, and drops redundant variants, oldest torch
    first; `_STEPS` steps of branch and bound may improve it.
    """
    ranked = sorted(variants, key=_newest_first)
    missing = {pair for variant in ranked for pair in pairs(variant)}
    chosen: list[Variant] = []
    while missing:
        best = max(ranked, key=lambda variant: len(missing.intersection(pairs(variant))))
        chosen.append(best)
        missing.difference_update(pairs(best))
    for variant in sorted(chosen, key=_newest_first, reverse=True):
        others = {pair for other in chosen if other is not variant for pair in pairs(other)}
        if others.issuperset(pairs(variant)):
            chosen = [other for other in chosen if other is not variant]
    identities = {id(variant) for variant in _fewest(ranked, chosen)}
    return [variant for variant in variants if id(variant) in identities]


def _fewest(ranked: Sequence[Variant], chosen: Sequence[Variant]) -> Sequence[Variant]:
    # Branch and bound; `chosen` if nothing smaller is found
    have = [frozenset(pairs(variant)) for variant in ranked]
    having: dict[Pair, list[int]] = {}
    for index, own in enumerate(have):
        for pair in own:
            having.setdefault(pair, []).append(index)
    waiting: list[tuple[frozenset[Pair], tuple[int, ...]]] = [(frozenset(having), ())]
    best = chosen
    for _ in range(_STEPS):
        if not waiting:
            break
        missing, selection = waiting.pop()
        # A variant has one pair of a kind, so as many are needed as pairs of one kind are missing.
        if len(selection) + max(Counter(map(_kind_of, missing)).values(), default=0) >= len(best):
            continue
        if not missing:
            best = [ranked[index] for index in selection]
            continue
        rarest = min(missing, key=lambda pair: (len(having[pair]), pair))
        order = sorted(
            having[rarest], key=lambda index: (-len(have[index].intersection(missing)), index)
        )
        waiting += [(missing - have[index], (*selection, index)) for index in reversed(order)]
    return best


def _kind_of(pair: Pair) -> tuple[bool, bool]:
    return pair[0].startswith("torch "), pair[1] in SYSTEMS


def _newest_first(variant: Variant) -> tuple[list[int], str, str]:
    torch = [-part for part in variant.torch] if variant.torch else []
    return torch, variant.name, variant.system
