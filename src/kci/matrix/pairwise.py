"""Fewer variants for nearly the same: each pair of torch, compute version and system at least once.

A failure that two of the three cause together is found by a selection in which every pair occurs that occurs in the
full set; the full set only adds failures that need all three at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

from kci.matrix.variants import Variant

Pair = tuple[str, str]
"""Two aspects of a variant as text, such as `torch 2.13` and `cuda 13.0`."""


class Covered(msgspec.Struct, frozen=True):
    """A pair of the full set, and the first chosen variant that has it; none where no chosen one does."""

    first: str
    second: str
    variant: str | None
    system: str | None


def pairs(variant: Variant) -> list[Pair]:
    """The pairs of (torch, compute, system) that a variant has."""
    compute = f"{variant.backend} {variant.compute}" if variant.compute else str(variant.backend)
    aspects = [f"torch {variant.torch}"] if variant.torch else []
    return list(combinations([*aspects, compute, variant.system], 2))


def choose(variants: Sequence[Variant]) -> list[Variant]:
    """A small subset of the variants in which every pair of them occurs, in their order.

    Each step takes the variant with the most pairs that are still missing; of several, the one with the newest torch,
    then the first in order. In the end those go whose pairs the others have too, the oldest torch first.
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
    kept = {id(variant) for variant in chosen}
    return [variant for variant in variants if id(variant) in kept]


def _newest_first(variant: Variant) -> tuple[list[int], str, str]:
    torch = [-int(part) for part in variant.torch.split(".")] if variant.torch else []
    return torch, variant.name, variant.system


def coverage(full: Sequence[Variant], chosen: Sequence[Variant]) -> tuple[Covered, ...]:
    """Every pair that occurs in the full set, sorted, with the chosen variant that has it."""
    by_pair: dict[Pair, Variant] = {}
    for variant in chosen:
        for pair in pairs(variant):
            by_pair.setdefault(pair, variant)
    found = []
    for first, second in sorted({pair for variant in full for pair in pairs(variant)}):
        variant_of = by_pair.get((first, second))
        found.append(
            Covered(first, second, variant_of.name, variant_of.system)
            if variant_of
            else Covered(first, second, None, None)
        )
    return tuple(found)
