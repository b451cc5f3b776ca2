"""Shards: at most 256 legs, stable under change, and the machines split among them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import many
from kci.errors import FindingsError
from kci.plan.plan import Leg
from kci.plan.pools import Pool
from kci.plan.sharding import MAX_MATRIX, assign, key_of, shard_count, shard_of, shards, split
from planning import leg


def legs(count: int, start: int = 0) -> list[Leg]:
    return [leg(f"v{number}", f"k{number % 75}") for number in range(start, start + count)]


def test_one_matrix_while_everything_fits() -> None:
    assert shard_count([str(number) for number in range(256)]) == 1
    assert shard_count([str(number) for number in range(257)]) == 2
    assert assign([])[1] == 1


@pytest.mark.parametrize("count", [257, 453, 1000, 2000, 10_000])
def test_no_shard_is_too_large(count: int) -> None:
    placed, number = assign(legs(count))
    sizes = Counter(item.shard for item in placed)
    assert sorted(sizes) == list(range(number))
    assert sizes.total() == count
    assert max(sizes.values()) <= MAX_MATRIX


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@settings(max_examples=many(200))
@given(st.lists(NAMES, min_size=1, max_size=40, unique=True), NAMES, st.integers(1, 8))
def test_a_new_variant_moves_no_other(names: list[str], new: str, count: int) -> None:
    before = {item.name: item.shard for item in assign([leg(name) for name in names], count)[0]}
    after = {item.name: item.shard for item in assign([leg(name) for name in {*names, new}], count)[0]}
    assert all(after[name] == shard for name, shard in before.items())


@settings(max_examples=many(30))
@given(st.integers(200, 1200), st.integers(0, 10**6))
def test_without_a_fixed_number_they_move_only_into_a_new_shard(count: int, start: int) -> None:
    old, number = assign(legs(count, start))
    new, grown = assign(legs(count + 1, start))
    before, after = ({key_of(item): item.shard for item in placed} for placed in (old, new))
    assert grown >= number, "a plan that grows never gets fewer shards by less than the slack"
    for key, shard in before.items():
        assert after[key] == shard or after[key] >= number


@settings(max_examples=many(50))
@given(NAMES, st.integers(1, 20))
def test_one_more_shard_takes_from_all_and_mixes_none(key: str, count: int) -> None:
    assert shard_of(key, count + 1) in (shard_of(key, count), count)


def test_a_removed_leg_moves_no_other() -> None:
    before = {key_of(item): item.shard for item in assign(legs(500), 3)[0]}
    after = {key_of(item): item.shard for item in assign(legs(499, 1), 3)[0]}
    assert all(before[key] == shard for key, shard in after.items())


def test_where_a_kernel_lies_and_what_it_takes_do_not_matter() -> None:
    one, other = leg("v", path="a", minutes=5), leg("v", path="b/c", minutes=50, runner=("x",))
    assert assign([one], 7)[0][0].shard == assign([other], 7)[0][0].shard


@pytest.mark.rule("KCI305", triggers=True)
def test_too_few_shards_are_refused_and_the_right_number_named() -> None:
    with pytest.raises(FindingsError) as caught:
        assign(legs(700), 2)
    assert [item.rule for item in caught.value.diagnostics] == ["KCI305"]
    assert str(assign(legs(700))[1]) in caught.value.hint
    with pytest.raises(FindingsError, match="more than 64 matrices"):
        assign(legs(64 * 256 + 1))


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


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_all_shards_together_use_no_more_machines_than_a_pool_has(size: int, count: int) -> None:
    legs = [leg(f"own{number}", pool=Pool("gpu", size)) for number in range(40)]
    placed, found = assign(legs, count)
    parts = [item.max_parallel if item.max_parallel is not None else item.legs for item in shards(placed, found)]
    assert sum(parts) <= size
    assert sum(part > 0 for part in parts) == len({item.shard for item in placed}) == min(size, count)


def test_a_pool_that_is_large_enough_needs_no_limit() -> None:
    assert shards([leg(str(n), pool=Pool("gpu", 50)) for n in range(50)], 1)[0].max_parallel is None


@settings(max_examples=many(300))
@given(st.integers(1, 300), st.lists(st.integers(0, 256), min_size=1, max_size=8))
def test_a_split_gives_everybody_something_and_nobody_too_much(total: int, weights: list[int]) -> None:
    parts = split(total, weights)
    some = sum(weight > 0 for weight in weights)
    assert all((part > 0) == (weight > 0) and part <= weight for part, weight in zip(parts, weights, strict=True))
    assert sum(parts) == min(sum(weights), max(total, some))
