"""Variants in parts: how many, what each leg is told, and in which matrix of a workflow it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest

from kci.catalog.runners import default_runners
from kci.config.settings import Limit
from kci.config.values import Backend
from kci.errors import FindingsError
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.plan.budget import estimate, starts
from kci.plan.durations import NO_DURATIONS, Duration, Durations
from kci.plan.github import FINISH, check_callers, check_limits, github_matrix, work_of
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.machines import Pool
from kci.plan.object_work import ObjectCost, ObjectWork, Work
from kci.plan.plan import KeptObjects, KernelPlan, Leg, Plan, Role, promised
from kci.plan.sharding import MAX_MATRIX, assign, shards
from planning import leg, matrix, plan

NAMES = ("torch213-cxx11-cu130-x86_64-linux", "torch214-cxx11-cu130-x86_64-linux")


def work(heavy: int, *, torch: int = 0, seconds: float = 600.0) -> Work:
    """So many objects of 7 GiB, some of which read headers of torch, and one of a binding."""
    objects = [ObjectWork(f"{at:03}.cu", seconds, memory=7, torch=at < torch) for at in range(heavy)]
    return Work(Kind.FULL, (ObjectWork("binding.cpp", 20.0), *objects))


def made(
    of: Work,
    names: Sequence[str] = NAMES[:1],
    limits: Sequence[Limit] = (),
    took: Durations = NO_DURATIONS,
    **keys: Any,
) -> Plan:
    """A plan of variants of one kernel, on hosted machines of 4 cores and 16 GB."""
    variants = [
        Variant(
            name=name, kind=Kind.FULL, backend="cuda", system="x86_64-linux", torch=f"2.{name[6:8]}", compute="13.0",
            stable_abi=None, tvm_ffi=None, archs=("9.0a",), bundled=True,
        )
        for name in names
    ]  # fmt: skip
    runners = msgspec.structs.replace(default_runners(), limits=tuple(limits))
    works = {("flash", name): of for name in names}
    options = PlanOptions(split=True, works=works, **keys)
    return make_plan(matrix({"flash": variants}), runners, options, durations=took)


def split_leg(parts: int) -> list[Leg]:
    """A variant in so many parts."""
    return list(made(work(parts), limits=[Limit(parts=parts)]).legs)


def planned(legs: list[Leg]) -> Plan:
    placed, count = assign(legs)
    made: dict[str, list[str]] = {}
    for item in placed:
        made.setdefault(item.kernel, []).extend(item.variants)
    kernels = tuple(KernelPlan(name, name, 1, tuple(variants)) for name, variants in made.items())
    return msgspec.structs.replace(plan(placed, shards=shards(placed, count)), kernels=kernels)


def test_a_part_compiles_a_share_and_the_link_takes_all_of_them() -> None:
    plan = made(work(120))  # 120 * 600 s, two at once: 600 minutes
    *parts, link = sorted(plan.legs, key=lambda item: (item.role is Role.LINK, item.part))
    assert [item.name for item in parts] == [f"{NAMES[0]}.part{number}of4" for number in range(1, 5)]
    assert [(item.part, item.parts, item.variants, item.takes) for item in parts] == [
        (number, 4, (), ()) for number in range(1, 5)
    ]
    assert {item.variant for item in plan.legs} == {link.name} == {NAMES[0]}
    assert (link.part, link.parts, link.variants) == (None, 4, NAMES[:1])
    assert link.takes == tuple(item.name for item in parts)
    assert [item.artifact for item in parts] == [f"objects.flash.{item.name}" for item in parts]
    assert link.artifact == f"kci-flash.{NAMES[0]}"
    assert sum(item.minutes for item in parts) == pytest.approx(600 + 4 * 4, abs=6)
    assert max(item.minutes for item in plan.legs) < 350 / 2 + 10
    assert {item.memory for item in parts} == {9}
    (split,) = plan.splits
    assert (split.parts, split.objects, split.takes, split.saves) == (4, 121, "", 0)
    assert split.reason == "121 objects of 7 GiB, 2 at once: about 605 minutes (estimated), and a job has 350"


def test_what_fits_is_planned_as_it_was() -> None:
    plan = made(work(48, torch=48), NAMES)  # 240 minutes each
    (one, _) = plan.legs
    assert not plan.splits
    assert {item.role for item in plan.legs} == {Role.WHOLE}
    assert (one.part, one.parts, one.takes, one.memory, one.torch_only, one.objects_run) == (
        None,
        None,
        (),
        None,
        False,
        "",
    )


@pytest.mark.parametrize(
    ("parts", "legs"), [(None, 5), ("auto", 5), (1, 1), (2, 3), (7, 8)], ids=["none", "auto", "1", "2", "7"]
)
def test_a_number_in_kci_toml_is_a_number(parts: int | Literal["auto"] | None, legs: int) -> None:
    limits = [Limit(parts=3), Limit(kernel="flash", parts="auto"), Limit(backend=Backend.CUDA, parts=parts)]
    assert len(made(work(120), limits=limits).legs) == legs


def test_no_part_is_without_an_object() -> None:
    assert len(made(work(2), limits=[Limit(parts=50)]).legs) == 3 + 1


def test_a_short_timeout_makes_more_parts() -> None:
    plan = made(work(120), limits=[Limit(timeout_minutes=100)])
    assert max(item.minutes for item in plan.legs) < 100
    assert len(plan.legs) > 5


def test_what_was_recorded_decides_how_many_parts_there_are() -> None:
    took = Durations([Duration("flash", NAMES[0], 3600.0)])
    assert [item.role for item in made(work(120), took=took).legs] == [Role.WHOLE]
    took = Durations([Duration("flash", NAMES[0], 1200 * 60.0)])
    plan = made(work(120), took=took)
    assert len(plan.legs) == 1 + 8
    assert all(item.measured for item in plan.legs)


def test_objects_that_read_no_torch_are_compiled_once_for_all_variants_of_a_toolkit() -> None:
    alone, plan = made(work(120)), made(work(120, torch=10), NAMES)
    first, other = (item for item in sorted(plan.legs, key=lambda item: item.name) if item.role is Role.LINK)
    assert len(plan.legs) == len(alone.legs) + 1
    assert (first.name, other.name) == NAMES
    assert (other.parts, other.takes) == (0, first.takes), "it compiles the rest itself"
    assert other.minutes == pytest.approx(4 + 2 + 51, abs=1)
    assert [(item.variant, item.takes, item.shared) for item in plan.splits] == [
        (NAMES[0], "", 0),
        (NAMES[1], NAMES[0], 110),
    ]
    assert plan.splits[1].saves == 2 * sum(item.minutes for item in alone.legs) - sum(
        item.minutes for item in plan.legs
    )
    assert "110 objects that read no header of torch, by their includes" in plan.splits[1].reason


def test_a_variant_that_takes_objects_has_parts_for_the_rest_where_that_does_not_fit() -> None:
    plan = made(work(160, torch=100), NAMES)
    parts = [item for item in plan.legs if item.role is Role.PART and item.variant == NAMES[1]]
    (link,) = (item for item in plan.legs if item.name == NAMES[1])
    assert parts
    assert all(item.torch_only for item in parts)
    assert link.parts == len(parts)
    assert {item.name for item in parts} < {*link.takes}
    assert not any(item.torch_only for item in plan.legs if item.variant == NAMES[0])


def test_small_variants_share_too_where_that_saves_minutes() -> None:
    shared = made(work(12), NAMES)  # an hour each
    assert sorted((item.role, item.name) for item in shared.legs) == [
        (Role.LINK, NAMES[0]), (Role.LINK, NAMES[1]), (Role.PART, f"{NAMES[0]}.part1of1"),
    ]  # fmt: skip
    assert {item.role for item in made(work(2), NAMES).legs} == {Role.WHOLE}, "ten minutes: nothing is gained"
    assert {item.role for item in made(work(12, torch=12), NAMES).legs} == {Role.WHOLE}, "all of it reads torch"
    assert {item.role for item in made(work(12), NAMES, [Limit(parts=1)]).legs} == {Role.WHOLE}


def test_a_link_starts_when_its_parts_have_ended() -> None:
    plan = made(work(120))
    begins = dict(zip([item.name for item in plan.legs], starts(plan.legs), strict=True))
    last = max(item.minutes for item in plan.legs if item.role is Role.PART)
    assert begins[NAMES[0]] == last
    assert estimate(plan.legs).wall_minutes == last + 6
    parts = [item for item in plan.legs if item.role is Role.PART]
    uneven = [msgspec.structs.replace(item, minutes=1) if item is parts[0] else item for item in plan.legs]
    begins = dict(zip([item.name for item in uneven], starts(uneven), strict=True))
    assert begins[NAMES[0]] == max(item.minutes for item in parts[1:]), "the last one counts"
    own = [msgspec.structs.replace(item, pool=Pool("one", 1)) for item in plan.legs]
    assert estimate(own).wall_minutes == sum(item.minutes for item in own)


def test_each_part_starts_with_the_objects_of_its_variant() -> None:
    kept = KeptObjects("41", f"objects.flash.{NAMES[0]}-1")
    found = made(work(120), objects={("flash", NAMES[0]): kept, ("other", NAMES[0]): KeptObjects("42", "o")})
    assert {(item.objects_run, item.objects_from) for item in found.legs} == {(kept.run, kept.artifact)}
    assert {entry["objects_run"] for entry in json.loads(github_matrix(found, role=Role.PART))["include"]} == {"41"}


def test_each_role_has_a_matrix_that_says_what_its_jobs_need() -> None:
    whole = planned([*split_leg(2), leg("v", "flash")])
    found = {role: json.loads(github_matrix(whole, role=role))["include"] for role in (*Role, FINISH)}
    assert [entry["name"] for entry in found[Role.WHOLE]] == ["v"]
    assert {"part", "parts", "takes", "torch_only", "objects_run", "memory"}.isdisjoint(found[Role.WHOLE][0])
    assert sorted((entry["part"], entry["parts"]) for entry in found[Role.PART]) == [(1, 2), (2, 2)]
    assert [entry["takes"] for entry in found[Role.LINK]] == [[f"{NAMES[0]}.part1of2", f"{NAMES[0]}.part2of2"]]
    (caller,) = json.loads(work_of(whole, 1))
    assert {role: caller["include"][0]["work"][role]["include"] for role in found} == found


@pytest.mark.parametrize(("minutes", "timeout", "goes_on"), [(10, 350, False), (88, 350, True), (20, 30, True)])
def test_what_may_not_end_in_time_is_in_one_more_matrix(minutes: int, timeout: int, goes_on: bool) -> None:
    whole = msgspec.structs.replace(leg("v", "flash", minutes=minutes), timeout=timeout)
    noarch = msgspec.structs.replace(leg("n", "flash", minutes=minutes), timeout=timeout, kind=Kind.NOARCH)
    plan = planned([*split_leg(2), whole, noarch])
    again = json.loads(github_matrix(plan, role=FINISH))["include"]
    assert [entry["name"] for entry in again if not entry.get("part")] == (["v"] if goes_on else [])
    assert sorted(entry["part"] for entry in again if entry.get("part")) == [1, 2]
    assert all(entry[FINISH] for entry in again)
    entries = {entry["name"]: entry for entry in json.loads(github_matrix(plan))["include"]}
    assert (entries["v"].get(FINISH, False), FINISH in entries["n"]) == (goes_on, False)
    (link,) = json.loads(github_matrix(plan, role=Role.LINK))["include"]
    assert FINISH not in link


def test_of_too_many_that_may_go_on_the_longest_do() -> None:
    legs = [
        msgspec.structs.replace(leg(f"v{number:03}", "flash", minutes=100 + number), timeout=350)
        for number in range(200)
    ]
    plan = planned([*split_leg(100), *sorted(legs, key=lambda item: -item.minutes)])
    again = json.loads(github_matrix(plan, role=FINISH))["include"]
    assert len(again) == MAX_MATRIX
    entries = [entry for role in Role for entry in json.loads(github_matrix(plan, role=role))["include"]]
    assert [entry["name"] for entry in entries if entry.get(FINISH)] == [
        entry["name"] for entry in again if not entry.get("part")
    ] + [entry["name"] for entry in again if entry.get("part")]


def test_recorded_seconds_of_objects_decide_how_many_parts_there_are_and_what_is_in_them() -> None:
    slow = {
        "000.cu": ObjectCost(20 * 600.0, 9 * 2**30),
        **{f"{at:03}.cu": ObjectCost(300.0, 2**30) for at in range(1, 120)},
    }
    of = work(120).as_recorded({**slow, "binding.cpp": ObjectCost(5.0)}, 4 * 2**30)
    assert of.recorded == 121
    assert {item.memory for item in of.objects} == {9, 0}, "what takes no more than compilers usually do is not counted"
    plan = made(of)
    (split,) = plan.splits
    assert "(from recorded seconds), and a job has 350" in split.reason
    assert all(item.recorded and not item.measured for item in plan.legs)
    sizes = sorted(len(share.objects) for share in of.shares(split.parts))
    assert sizes[0] < sizes[1] / 2, "the slow one has fewer beside it"
    half = work(120).as_recorded({f"{at:03}.cu": ObjectCost(900.0, 8 * 2**30) for at in range(60)}, 4 * 2**30)
    (split,) = made(half).splits
    assert "(from recorded seconds of 60 objects, 61 estimated)" in split.reason
    assert not any(item.recorded for item in made(half).legs)


def test_a_link_that_has_no_parts_of_its_own_says_so() -> None:
    link = msgspec.structs.replace(split_leg(2)[-1], parts=0)
    (entry,) = json.loads(github_matrix(planned([link]), role=Role.LINK))["include"]
    assert entry["parts"] == 0


def test_what_is_promised_is_the_variant_and_no_part() -> None:
    (whole,) = made(work(120), limits=[Limit(parts=1)]).legs
    assert promised(planned(split_leg(3)))["kernels"] == promised(planned([whole]))["kernels"]


def test_more_parts_than_a_matrix_takes_are_in_several() -> None:
    full = planned([*split_leg(MAX_MATRIX), leg("v", "flash")])
    assert not [item for item in [*check_callers(full, 1, 1), *check_limits(full, 1)] if item.rule == "KCI305"]
    more = planned(split_leg(MAX_MATRIX + 1))
    assert not [item for item in [*check_callers(more, 1), *check_limits(more)] if item.rule == "KCI305"]
    assert len(more.shards) == 1
    for found in (check_callers(more, 1, 1), check_limits(more, 1)):
        (problem,) = [item for item in found if item.rule == "KCI305"]
        assert "the parts need 2 jobs with a matrix of up to 256" in problem.message
    (caller,) = json.loads(work_of(more, 1, jobs=3))
    work = caller["include"][0]["work"]
    sizes = [len(item["include"]) for item in (work["parts"], *work["more_parts"])]
    assert sizes == [MAX_MATRIX, 1, 0]
    assert len(work["finish"]["include"]) == MAX_MATRIX
    with pytest.raises(FindingsError, match="GitHub allows 256"):
        github_matrix(more, role=Role.PART)
    printed = [json.loads(github_matrix(more, number, Role.PART))["include"] for number in (0, 1)]
    assert printed == [work["parts"]["include"], work["more_parts"][0]["include"]]


def test_a_pool_is_shared_by_what_runs_at_once() -> None:
    legs = [msgspec.structs.replace(item, pool=Pool("own", 4)) for item in split_leg(7)]
    (shard,) = planned([*legs, *(leg(f"v{number}", "flash", pool=Pool("own", 4)) for number in range(8))]).shards
    assert (shard.max_parallel, shard.parts_parallel) == (2, 2)
