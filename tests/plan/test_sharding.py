"""Shards: at most 256 legs, stable under change, and the machines split among them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import many
from kci.matrix.catalog.runners import Pool
from kci.plan.github_limits import check_limits
from kci.plan.plan import MAX_MATRIX, Leg, assign, shard_of, shards, split
from planning import leg, plan


def legs(count: int, start: int = 0) -> list[Leg]:
    return [leg(f"v{number}", f"k{number % 75}") for number in range(start, start + count)]


@pytest.mark.parametrize("count", [257, 453, 1000, 2000])
def test_no_shard_is_too_large_and_no_kernel_is_divided(count: int) -> None:
    placed, number = assign(legs(count))
    sizes = Counter(item.shard for item in placed)
    assert max(sizes) < number
    assert sizes.total() == count
    assert max(sizes.values()) <= MAX_MATRIX
    assert len({(item.kernel, item.shard) for item in placed}) == len({item.kernel for item in placed})


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@settings(max_examples=many(50))
@given(NAMES, st.integers(1, 20))
def test_one_more_shard_takes_from_all_and_mixes_none(key: str, count: int) -> None:
    assert shard_of(key, count + 1) in (shard_of(key, count), count)


@pytest.mark.rule("KCI305", triggers=True)
def test_a_kernel_that_no_number_of_shards_helps_is_told_another_way() -> None:
    placed, number = assign([leg(f"v{index}", "large") for index in range(300)])
    assert number == 1
    problems = check_limits(plan(placed, shards=shards(placed, number)))
    assert [item.rule for item in problems] == ["KCI305"]
    assert "group" in problems[0].hint


def test_machines_of_ones_own_are_split_over_the_matrices() -> None:
    own = Pool("gpu", 5)
    placed = [leg(f"v{number}", pool=own, shard=number % 3) for number in range(30)]
    found = shards(placed, 3)
    assert [item.legs for item in found] == [10, 10, 10]
    assert sum(item.max_parallel or 0 for item in found) == 5


def test_machines_of_github_or_of_unknown_number_hold_nothing_back() -> None:
    for pool in (Pool("github-hosted", 20, queued=True), Pool("", None)):
        assert [item.max_parallel for item in shards([leg(str(n), pool=pool) for n in range(50)], 1)] == [None]
    own = [leg(f"v{number}", pool=Pool("gpu", 2)) for number in range(10)]
    mixed = shards(own + [leg(f"w{number}") for number in range(10)], 1)
    assert mixed[0].max_parallel == 12, "two at a time on self-hosted runners, and none of the others waits"


@settings(max_examples=many(300))
@given(st.integers(1, 300), st.lists(st.integers(0, 256), min_size=1, max_size=8))
def test_a_split_gives_everybody_something_and_nobody_too_much(total: int, weights: list[int]) -> None:
    parts = split(total, weights)
    some = sum(weight > 0 for weight in weights)
    assert all((part > 0) == (weight > 0) and part <= weight for part, weight in zip(parts, weights, strict=True))
    assert sum(parts) == min(sum(weights), max(total, some))
