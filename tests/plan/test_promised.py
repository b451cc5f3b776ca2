"""What an action hands on: the legs that a fork may run, and what the merged tree must have."""

from __future__ import annotations

import msgspec
import pytest

from conftest import torch_kernel
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import compute_matrix
from kci.plan.github_limits import only_hosted, only_own, untested
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Plan, RunnerGroup, TestLeg

NAMES = ["torch213-cxx11-cpu-aarch64-linux", "torch213-cxx11-cpu-x86_64-linux"]


@pytest.fixture
def plan(catalog: Catalog) -> Plan:
    matrix = compute_matrix(
        [torch_kernel(["cpu"], torch='minver = "2.13"\nmaxver = "2.13"\n')], catalog
    )
    made = make_plan(matrix, None, PlanOptions(container=False))
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
    mixed = msgspec.structs.replace(
        plan, legs=(first, msgspec.structs.replace(second, runner=runner))
    )
    kept = only_hosted(mixed)
    assert kept.legs == (first,)
    assert [(item.variant, item.rule) for item in kept.left_out[len(plan.left_out) :]] == [
        (second.name, "KCI315")
    ]


TEST = TestLeg(
    "some-kernel",
    ".",
    "cpu-x86_64-linux",
    "cpu",
    "x86_64-linux",
    (NAMES[0],),
    ("ubuntu-24.04",),
    30,
)


@pytest.mark.rule("KCI316", triggers=True)
def test_legs_that_wait_for_a_maintainer_are_the_ones_of_the_other_run(plan: Plan) -> None:
    first, second = plan.legs
    elsewhere = msgspec.structs.replace(second, runner=("self-hosted", "gpu"))
    mixed = msgspec.structs.replace(plan, legs=(first, elsewhere))
    waiting, theirs = only_hosted(mixed, dispatched=True), only_own(mixed)
    assert (waiting.legs, theirs.legs) == ((first,), (elsewhere,))
    new = len(plan.left_out)
    assert [(item.variant, item.rule) for item in waiting.left_out[new:]] == [
        (second.name, "KCI316")
    ]
    assert [(item.variant, item.rule) for item in theirs.left_out[new:]] == [(first.name, "KCI316")]
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
    own = msgspec.structs.replace(TEST, runner=("self-hosted", "gpu"))
    whole = msgspec.structs.replace(plan, tests=(own,))
    kept = only_hosted(whole)
    assert kept.tests == ()
    (said,) = untested(whole, kept)
    assert (said.rule, "some-kernel is not tested on cpu-x86_64-linux" in said.message) == (
        "KCI317",
        True,
    )


def test_the_tree_must_have_what_is_built_and_what_is_there(plan: Plan) -> None:
    (kernel,) = plan.kernels
    assert plan.tree_plan() == Plan(1, "release", (kernel,), loads=plan.loads)
    printed = msgspec.structs.replace(kernel, fingerprints={NAMES[0]: "1", NAMES[1]: "2"})
    built = msgspec.structs.replace(plan, legs=plan.legs[:1], kernels=(printed,), commit="c")
    one = plan.legs[0].name
    wanted = msgspec.structs.replace(
        printed, planned=(one,), fingerprints={one: str(NAMES.index(one) + 1)}
    )
    assert built.tree_plan() == Plan(1, "release", (wanted,), commit="c", loads=plan.loads)
    assert msgspec.structs.replace(plan, legs=()).tree_plan().kernels == (), (
        "nothing of it is built"
    )
    written = msgspec.to_builtins(built.tree_plan())
    assert written.keys() == {"schema", "tier", "kernels", "commit", "loads"}, (
        "an output of a job is short"
    )
