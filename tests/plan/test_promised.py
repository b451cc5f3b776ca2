"""What an action hands on: the legs that a fork may run, and what the merged tree must have."""

from __future__ import annotations

import msgspec
import pytest

from conftest import torch_kernel
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import compute_matrix
from kci.plan.github_limits import only_hosted, only_own, untested
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Plan, RunnerGroup
from planning import hardware_leg

NAMES = ["torch213-cxx11-cpu-aarch64-linux", "torch213-cxx11-cpu-x86_64-linux"]


@pytest.fixture
def plan(catalog: Catalog) -> Plan:
    only = torch_kernel(["cpu"], torch='minver = "2.13"\nmaxver = "2.13"\n')
    made = make_plan(compute_matrix([only], catalog), None, PlanOptions(container=False))
    assert sorted(leg.name for leg in made.legs) == NAMES
    return made


@pytest.mark.rule("KCI315", triggers=True)
@pytest.mark.parametrize(
    "runner", [("self-hosted", "gpu"), ("ubuntu-24.04", "gpu"), RunnerGroup("g", ("ubuntu-24.04",))]
)
def test_legs_elsewhere_are_not_for_forks(
    plan: Plan, runner: tuple[str, ...] | RunnerGroup
) -> None:
    first, second = plan.legs
    other = msgspec.structs.replace(second, runner=runner)
    kept = only_hosted(msgspec.structs.replace(plan, legs=(first, other)))
    assert kept.legs == (first,)
    assert left(plan, kept) == [(second.name, "KCI315")]


def left(before: Plan, after: Plan) -> list[tuple[str, str]]:
    """What is left out besides."""
    return [(item.variant, item.rule) for item in after.left_out[len(before.left_out) :]]


OWN = hardware_leg("some-kernel", NAMES[0])
TEST = msgspec.structs.replace(OWN, runner=("ubuntu-24.04",))


@pytest.mark.rule("KCI316", triggers=True)
def test_legs_that_wait_for_a_maintainer_are_the_ones_of_the_other_run(plan: Plan) -> None:
    first, second = plan.legs
    elsewhere = msgspec.structs.replace(second, runner=("self-hosted", "gpu"))
    mixed = msgspec.structs.replace(plan, legs=(first, elsewhere))
    waiting, theirs = only_hosted(mixed, dispatched=True), only_own(mixed)
    assert (waiting.legs, theirs.legs) == ((first,), (elsewhere,))
    assert left(plan, waiting) == [(second.name, "KCI316")]
    assert left(plan, theirs) == [(first.name, "KCI316")]
    assert [kernel.planned for kernel in theirs.tree_plan().kernels] == [(second.name,)]


@pytest.mark.rule("KCI317", triggers=False)
@pytest.mark.rule("KCI316", triggers=False)
@pytest.mark.rule("KCI315", triggers=False)
def test_hosted_legs_are(plan: Plan) -> None:
    hosted = msgspec.structs.replace(plan, tests=(TEST,))
    assert only_hosted(hosted) == hosted
    assert untested(hosted, only_hosted(hosted)) == []


@pytest.mark.rule("KCI317", triggers=True)
def test_what_a_fork_leaves_untested_is_said(plan: Plan) -> None:
    whole = msgspec.structs.replace(plan, tests=(OWN,))
    kept = only_hosted(whole)
    assert kept.tests == ()
    (said,) = untested(whole, kept)
    assert said.rule == "KCI317"
    assert "some-kernel is not tested on cuda-x86_64-linux" in said.message


def test_the_tree_must_have_what_is_built_and_what_is_there(plan: Plan) -> None:
    (kernel,) = plan.kernels
    assert plan.tree_plan() == Plan(1, "release", (kernel,), loads=plan.loads)
    printed = msgspec.structs.replace(kernel, fingerprints={NAMES[0]: "1", NAMES[1]: "2"})
    built = msgspec.structs.replace(plan, legs=plan.legs[:1], kernels=(printed,), commit="c")
    one = plan.legs[0].name
    prints = {one: str(NAMES.index(one) + 1)}
    wanted = msgspec.structs.replace(printed, planned=(one,), fingerprints=prints)
    assert built.tree_plan() == Plan(1, "release", (wanted,), commit="c", loads=plan.loads)
    unbuilt = msgspec.structs.replace(plan, legs=())
    assert unbuilt.tree_plan().kernels == (), "nothing of it is built"
    written = msgspec.to_builtins(built.tree_plan())  # an output of a job is short
    assert written.keys() == {"schema", "tier", "kernels", "commit", "loads"}
