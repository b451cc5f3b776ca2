"""Kernels stay with their caller job, and the machines are split among the matrices."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import many
from kci.matrix.catalog.runners import Pool
from kci.plan.plan import Leg, allowances, shard_of, split
from planning import leg

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@settings(max_examples=many(50))
@given(NAMES, st.integers(1, 20))
def test_one_more_caller_takes_from_all_and_mixes_none(key: str, count: int) -> None:
    assert shard_of(key, count + 1) in (shard_of(key, count), count)


def at_once(legs: list[Leg], groups: int) -> list[int | None]:
    """How many legs of each matrix may run at once."""
    most = allowances((str(number % groups), item) for number, item in enumerate(legs))
    return [most.get((str(group), False)) for group in range(groups)]


def test_machines_of_ones_own_are_split_over_the_matrices() -> None:
    assert at_once([leg(f"v{number}", pool=Pool("gpu", 5)) for number in range(30)], 3) == [2, 2, 1]


def test_machines_of_github_or_of_unknown_number_hold_nothing_back() -> None:
    for pool in (Pool("github-hosted", 20, queued=True), Pool("", None)):
        assert at_once([leg(str(number), pool=pool) for number in range(50)], 1) == [None]
    own = [leg(f"v{number}", pool=Pool("gpu", 2)) for number in range(10)]
    mixed = own + [leg(f"w{number}") for number in range(10)]
    # Two at a time on self-hosted runners, and none of the others waits.
    assert at_once(mixed, 1) == [12]


@settings(max_examples=many(300))
@given(st.integers(1, 300), st.lists(st.integers(0, 256), min_size=1, max_size=8))
def test_a_split_gives_everybody_something_and_nobody_too_much(
    total: int, weights: list[int]
) -> None:
    parts = split(total, weights)
    some = sum(weight > 0 for weight in weights)
    for part, weight in zip(parts, weights, strict=True):
        assert (part > 0) == (weight > 0)
        assert part <= weight
    assert sum(parts) == min(sum(weights), max(total, some))
