"""Variants in parts: how many, what each leg is told, and in which matrix of a workflow it is."""

from __future__ import annotations

import json

import msgspec
import pytest

from kci.errors import FindingsError
from kci.plan.github import check_callers, github_matrix, work_of
from kci.plan.machines import Pool
from kci.plan.plan import KernelPlan, Leg, Plan, Role, promised
from kci.plan.sharding import MAX_MATRIX, assign, shards
from kci.plan.splitting import parts_of, split_leg
from planning import leg, plan

WHOLE = leg("torch213-cxx11-cu130-x86_64-linux", "flash", minutes=900, timeout=350, artifact="kci-flash.v")
PARTS = split_leg(WHOLE, [100, 80], 4)


def planned(legs: list[Leg]) -> Plan:
    placed, count = assign(legs)
    made: dict[str, list[str]] = {}
    for item in placed:
        made.setdefault(item.kernel, []).extend(item.variants)
    kernels = tuple(KernelPlan(name, name, 1, tuple(variants)) for name, variants in made.items())
    return msgspec.structs.replace(plan(placed, shards=shards(placed, count)), kernels=kernels)


def test_a_part_compiles_a_share_and_the_link_takes_all_of_them() -> None:
    one, two, link = PARTS
    assert (one.name, two.name, link.name) == (f"{WHOLE.name}.part1of2", f"{WHOLE.name}.part2of2", WHOLE.name)
    assert (one.part, one.parts, two.part, link.part, link.parts) == (1, 2, 2, None, 2)
    assert (one.variant, one.variants, link.variants) == (WHOLE.variant, (), WHOLE.variants)
    assert (link.takes, one.takes) == ((one.name, two.name), ())
    assert (one.minutes, two.minutes) == (104, 84)
    assert one.artifact == f"objects.flash.{one.name}"
    assert link.artifact == WHOLE.artifact
    assert [item.role for item in PARTS] == [Role.PART, Role.PART, Role.LINK]


@pytest.mark.parametrize(
    ("minutes", "asked", "parts"),
    [(280, None, 1), (290, None, 2), (900, None, 6), (900, "auto", 6), (900, 1, 1), (10, 3, 3)],
)
def test_what_does_not_fit_is_split_and_a_number_is_a_number(minutes: int, asked: int | str | None, parts: int) -> None:
    assert parts_of(minutes, 360, 4, asked) == parts


def test_each_role_has_a_matrix_that_says_what_its_jobs_need() -> None:
    whole = planned([*PARTS, leg("v", "flash")])
    found = {role: json.loads(github_matrix(whole, role=role))["include"] for role in Role}
    assert [entry["name"] for entry in found[Role.WHOLE]] == ["v"]
    assert {"part", "parts", "takes", "torch_only", "objects_run", "memory"}.isdisjoint(found[Role.WHOLE][0])
    assert [(entry["part"], entry["parts"]) for entry in found[Role.PART]] == [(1, 2), (2, 2)]
    assert [entry["takes"] for entry in found[Role.LINK]] == [[PARTS[0].name, PARTS[1].name]]
    (caller,) = json.loads(work_of(whole, 1))
    assert {role: caller["include"][0]["work"][role]["include"] for role in Role} == found


def test_a_link_that_has_no_parts_of_its_own_says_so() -> None:
    link = msgspec.structs.replace(PARTS[2], parts=0)
    (entry,) = json.loads(github_matrix(planned([link]), role=Role.LINK))["include"]
    assert entry["parts"] == 0


def test_what_is_promised_is_the_variant_and_no_part() -> None:
    assert promised(planned(PARTS))["kernels"] == promised(planned([WHOLE]))["kernels"]


def test_each_matrix_may_have_so_many_jobs() -> None:
    full = split_leg(WHOLE, [9] * MAX_MATRIX, 4)
    assert not [item for item in check_callers(planned([*full, leg("v", "flash")]), 1) if item.rule == "KCI305"]
    (found,) = [item for item in check_callers(planned(split_leg(WHOLE, [9] * 257, 4)), 1) if item.rule == "KCI305"]
    assert "257 part legs" in found.message
    with pytest.raises(FindingsError, match="257 part legs"):
        github_matrix(planned(split_leg(WHOLE, [9] * 257, 4)))


def test_a_pool_is_shared_by_what_runs_at_once() -> None:
    pool = Pool("own", 4)
    legs = [msgspec.structs.replace(item, pool=pool) for item in split_leg(WHOLE, [9] * 7, 4)]
    (shard,) = planned([*legs, *(leg(f"v{number}", "flash", pool=pool) for number in range(8))]).shards
    assert (shard.max_parallel, shard.parts_parallel) == (2, 2)
