"""Variants in parts, kernels at their caller job, and the machines split among the matrices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import many
from kci.config.settings import Limit
from kci.config.values import Backend, Version
from kci.diagnostics import Diagnostic
from kci.matrix.catalog.runners import Pool, default_runners
from kci.matrix.variants import Kind, Variant
from kci.plan.budget import end_minutes, estimate
from kci.plan.durations import Duration
from kci.plan.estimates import Size
from kci.plan.github_limits import caller_matrices, check_limits
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import MAX_MATRIX, KeptObjects, Leg, Plan, Role, allowances, shard_of, split
from planning import leg, matrix, whole_plan

NAME = "torch213-cxx11-cu130-x86_64-linux"


def made(
    many: int = 120,
    limits: Sequence[Limit] = (Limit(kernel="flash", parts=4),),
    took: Sequence[Duration] = (),
    **keys: Any,
) -> Plan:
    """A plan of a variant of so many objects, on hosted machines of 4 cores and 16 GB."""
    variant = Variant(
        name=NAME, kind=Kind.FULL, backend=Backend.CUDA, system="x86_64-linux",
        torch=Version.parse("2.13"), compute=Version.parse("13.0"),
        stable_abi=None, tvm_ffi=None, archs=("9.0a",), bundled=True,
    )  # fmt: skip
    runners = msgspec.structs.replace(default_runners(), limits=tuple(limits))
    options = PlanOptions(**({"split": True, "sizes": {("flash", NAME): Size(many)}} | keys))
    return make_plan(matrix({"flash": [variant]}), runners, options, durations=took)


def split_leg(parts: int) -> list[Leg]:
    """A variant in so many parts."""
    return list(made(parts, [Limit(parts=parts)]).legs)


def test_a_part_compiles_a_share_and_the_link_takes_all_of_them() -> None:
    (whole,) = made(limits=[]).legs
    *parts, link = sorted(made().legs, key=lambda item: (item.role is Role.LINK, item.part))
    assert [item.name for item in parts] == [f"{NAME}.part{number}of4" for number in range(1, 5)]
    said = [(item.part, item.parts, item.variants, item.takes) for item in parts]
    assert said == [(number, 4, (), ()) for number in range(1, 5)]
    assert {item.variant for item in [*parts, link]} == {link.name} == {NAME}
    assert (link.part, link.parts, link.variants) == (None, 4, (NAME,))
    assert link.takes == tuple(item.name for item in parts)
    assert [item.artifact for item in parts] == [f"objects.flash.{item.name}" for item in parts]
    assert link.artifact == f"kci-flash.{NAME}"
    assert sum(item.minutes - 4 for item in parts) == pytest.approx(whole.minutes - 4, abs=4)
    assert link.ends == (4 + 2, 4 + 2)


@pytest.mark.parametrize(
    ("parts", "legs"), [(None, 4), (1, 1), (2, 3), (7, 8)], ids=["none", "1", "2", "7"]
)
def test_as_many_legs_compile_as_kci_toml_says(parts: int | None, legs: int) -> None:
    general, own = Limit(parts=9), Limit(kernel="flash", parts=3)
    limits = [general, own, Limit(backend=Backend.CUDA, parts=parts)]
    assert len(made(limits=limits).legs) == legs


def test_without_a_number_one_leg_compiles_whatever_it_takes() -> None:
    slow = made(took=[Duration("flash", NAME, 1e5)], limits=[])
    for planned in (made(100_000, []), slow, made(split=False)):
        (one,) = planned.legs
        assert one.role is Role.WHOLE
        assert (one.part, one.parts, one.takes, one.objects_run) == (None, None, (), "")


def test_no_part_is_without_an_object() -> None:
    assert len(made(3, limits=[Limit(parts=50)]).legs) == 3 + 1
    assert len(made(0, limits=[Limit(parts=50)]).legs) == 1


def test_a_link_starts_when_its_parts_have_ended() -> None:
    def ends(legs: Sequence[Leg]) -> int:
        return end_minutes(legs, [item.minutes for item in legs])["flash", NAME]

    plan = made()
    last = max(item.minutes for item in plan.legs if item.role is Role.PART)
    assert ends(plan.legs) == estimate(plan.legs).wall_minutes == last + 6
    parts = [item for item in plan.legs if item.role is Role.PART]
    first = msgspec.structs.replace(parts[0], minutes=1)
    uneven = [first if item is parts[0] else item for item in plan.legs]
    assert ends(uneven) == max(item.minutes for item in parts[1:]) + 6, "the last one counts"
    own = [msgspec.structs.replace(item, pool=Pool("one", 1)) for item in plan.legs]
    assert estimate(own).wall_minutes == sum(item.minutes for item in own)


def test_each_part_starts_with_the_objects_of_its_variant() -> None:
    kept = KeptObjects("41", f"objects.flash.{NAME}-1")
    found = made(objects={("flash", NAME): kept, ("other", NAME): KeptObjects("42", "o")})
    places = {(item.objects_run, item.objects_from) for item in found.legs}
    assert places == {(kept.run, kept.artifact)}
    (caller,) = json.loads(caller_matrices(found, 1))
    parts = caller["include"][0]["work"]["parts"]["include"]
    assert {entry["objects_run"] for entry in parts} == {"41"}


def test_each_role_has_a_matrix_that_says_what_its_jobs_need() -> None:
    whole = whole_plan([*split_leg(2), leg("v", "flash")])
    (caller,) = json.loads(caller_matrices(whole, 1))
    found = {role: caller["include"][0]["work"][role]["include"] for role in Role}
    assert [entry["name"] for entry in found[Role.WHOLE]] == ["v"]
    assert {"part", "parts", "takes", "objects_run"}.isdisjoint(found[Role.WHOLE][0])
    assert sorted((entry["part"], entry["parts"]) for entry in found[Role.PART]) == [(1, 2), (2, 2)]
    (link,) = found[Role.LINK]
    assert link["takes"] == [f"{NAME}.part1of2", f"{NAME}.part2of2"]


def test_more_parts_than_a_matrix_takes_are_in_several() -> None:
    full = whole_plan([*split_leg(MAX_MATRIX), leg("v", "flash")])

    def problems(plan: Plan, *callers: int) -> list[Diagnostic]:
        return [item for item in check_limits(plan, *callers) if item.rule == "KCI305"]

    assert not problems(full, 1, 1)
    own, split = Pool("own", 8), split_leg(MAX_MATRIX + 1)
    more = whole_plan(msgspec.structs.replace(item, pool=own) for item in split)
    assert not problems(more)
    (problem,) = problems(more, 1, 1)
    assert "the parts need 2 jobs with a matrix of up to 256" in problem.message
    (caller,) = json.loads(caller_matrices(more, 1, jobs=3))
    work = caller["include"][0]["work"]
    sizes = [len(item["include"]) for item in (work["parts"], *work["more_parts"])]
    assert sizes == [MAX_MATRIX, 1, 0]
    assert work["parts_parallel"] == 4, "two matrices run at once"


def test_a_pool_is_shared_by_what_runs_at_once() -> None:
    legs = [msgspec.structs.replace(item, pool=Pool("own", 4)) for item in split_leg(7)]
    legs += [leg(f"v{number}", "flash", pool=Pool("own", 4)) for number in range(8)]
    assert allowances(("", leg) for leg in legs) == {("", False): 2, ("", True): 2}


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
def test_a_split_gives_all_something_and_nobody_too_much(total: int, weights: list[int]) -> None:
    parts = split(total, weights)
    some = sum(weight > 0 for weight in weights)
    for part, weight in zip(parts, weights, strict=True):
        assert (part > 0) == (weight > 0)
        assert part <= weight
    assert sum(parts) == min(sum(weights), max(total, some))
