"""Which kernels of a run can be published, and what the gate says of tests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kci.plan.hardware_tests import tree_under_test
from kci.plan.plan import KernelPlan, Plan, SkippedVariant
from kci.run import gate
from kci.run.gate import RunUploads, TreeIndex, TreePlace
from kci.run.records import KernelRecord, TestRecord
from planning import hardware_leg, leg, manifest_of, plan

TEST = hardware_leg("a", "torch-cuda", "dir/a")
CARRIED = msgspec.structs.replace(TEST, run="41")
MANIFEST, OTHER_MANIFEST = (
    manifest_of("a", ("torch-cuda",), {"torch-cuda": digest}) for digest in ("d1", "d2")
)
GOOD = KernelRecord("a", 1, True, ("torch-cuda",), manifest=MANIFEST)
SAME = (SkippedVariant("a", "torch-cuda", "published already"),)


def outcome(passed: bool, **keys: str) -> dict[tuple[str, str], TestRecord]:
    return {("a", TEST.name): TestRecord("a", TEST.name, 1, passed, **keys)}


PASSED, OTHER = (
    outcome(True, tree=tree_under_test(manifest.digests, TEST.variants))
    for manifest in (MANIFEST, OTHER_MANIFEST)
)
FAILED = outcome(False, error="boom", replay="kci test dir/a")


def run_plan(**more: Any) -> Plan:
    made = plan(more.pop("legs", (leg("torch-cuda", "a"),)), **more)
    kernels = (KernelPlan("a", "dir/a", 1, ("torch-cuda",)),)
    return msgspec.structs.replace(made, kernels=kernels)


def judge(*uploaded: Any) -> list[gate.GateRow]:
    return gate.missing_results(RunUploads(*uploaded))


def names(
    plan: Plan, records: dict[str, KernelRecord], tests: Any = None, index: TreeIndex | None = None
) -> list[str]:
    """The runs whose trees can be published, of the kernel `a`."""
    uploads = RunUploads(plan, records, tests or {}, index or TreeIndex())
    found = gate.publishable_kernels(uploads, "77")
    assert {item.digest for item in found} <= {MANIFEST.digest}, "the very tree that was judged"
    assert {item.kernel for item in found} <= {"a"}
    return [item.run for item in found]


def but(**keys: Any) -> dict[str, KernelRecord]:
    return {"a": msgspec.structs.replace(GOOD, **keys)}


BUILT, TESTED = run_plan(), run_plan(tests=(TEST,))
SKIPPED = run_plan(legs=(), skipped=SAME)
INDEX, OLDER = (
    TreeIndex({"a": TreePlace("41", 1, msgspec.structs.replace(MANIFEST, version=version))})
    for version in (MANIFEST.version, 2)
)


@pytest.mark.parametrize(
    ("plan", "records", "tests", "index", "run"),
    [
        (BUILT, but(), None, None, ["77"]),
        (BUILT, {}, None, None, []),
        (BUILT, but(complete=False), None, None, []),
        (BUILT, but(manifest=None), None, None, []),  # it does not say of which tree
        (run_plan(attempt=2), but(), None, None, []),
        (run_plan(legs=()), {}, None, INDEX, []),  # nothing of it was planned
        (TESTED, but(), PASSED, None, ["77"]),
        (TESTED, but(), FAILED, None, []),
        (TESTED, but(), OTHER, None, []),  # what passed is not what would be published
        (TESTED, but(), None, None, []),
        (SKIPPED, {}, None, INDEX, ["41"]),
        (SKIPPED, {}, None, None, []),
        (SKIPPED, {}, None, OLDER, []),
        # A kernel that was only fetched is published if it is the tree that passed.
        (SKIPPED, but(), None, INDEX, ["41"]),
        (SKIPPED, but(manifest=OTHER_MANIFEST), None, INDEX, []),
        (SKIPPED, but(complete=False, manifest=None), None, INDEX, []),
    ],
)
def test_which_kernels_can_be_published(
    plan: Plan, records: dict[str, KernelRecord], tests: Any, index: TreeIndex, run: list[str]
) -> None:
    assert names(plan, records, tests, index) == run


def test_the_tree_of_an_earlier_run_is_published_once_it_has_passed_in_this_one() -> None:
    plan = run_plan(legs=(), skipped=SAME, tests=(CARRIED,))
    index = INDEX
    assert names(plan, {}, PASSED, index) == ["41"]
    for tests in (FAILED, OTHER, {}):
        assert names(plan, {}, tests, index) == []
        assert [row.job for row in judge(plan, {}, tests, index)] == ["a / test cuda-x86_64-linux"]
    assert judge(plan, {}, PASSED, index) == []
    assert len(judge(plan, {}, PASSED, TreeIndex())) == 1, "there is no such tree"


def test_the_gate_lists_tests_that_failed_and_those_that_never_ran() -> None:
    plan = run_plan(tests=(TEST,))
    assert judge(plan, {"a": GOOD}, PASSED) == []
    (row,) = judge(plan, {"a": GOOD}, FAILED)
    assert row.job == "a / test cuda-x86_64-linux"
    assert (row.error, row.replay) == ("boom", "kci test dir/a")
    (silent,) = judge(plan, {"a": GOOD})
    assert "ended silently" in silent.error
    (other,) = judge(plan, {"a": GOOD}, OTHER)
    assert "another tree" in other.error
    again = msgspec.structs.replace(plan, attempt=2)
    (older,) = judge(again, {"a": msgspec.structs.replace(GOOD, attempt=2)}, PASSED)
    assert "ended silently" in older.error
    incomplete = msgspec.structs.replace(GOOD, complete=False, present=())
    unbuilt = msgspec.structs.replace(plan, legs=(), skipped=SAME)
    for what, records, job in (
        (plan, {"a": incomplete}, "a / torch-cuda"),  # its tests were not to run
        (plan, {}, "a / merge"),
        (unbuilt, {}, "a / test cuda-x86_64-linux"),  # no job has run it
    ):
        assert [item.job for item in judge(what, records)] == [job]
