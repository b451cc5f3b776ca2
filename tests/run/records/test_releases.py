"""Which kernels of a run can be published, and what the gate says of tests."""

from __future__ import annotations

from typing import Any

import msgspec

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
) -> Any:
    uploads = RunUploads(plan, records, tests or {}, index or TreeIndex())
    found = gate.publishable_kernels(uploads, "77")
    assert {item.digest for item in found} <= {MANIFEST.digest}, "the very tree that was judged"
    return [(item.kernel, item.run) for item in found]


def test_a_complete_kernel_can_be_published() -> None:
    assert names(run_plan(), {"a": GOOD}) == [("a", "77")]


def test_one_that_is_incomplete_or_left_no_record_or_an_old_one_cannot() -> None:
    assert names(run_plan(), {}) == []
    assert names(run_plan(), {"a": msgspec.structs.replace(GOOD, complete=False)}) == []
    assert names(run_plan(), {"a": msgspec.structs.replace(GOOD, manifest=None)}) == [], (
        "it does not say of which tree"
    )
    assert names(run_plan(attempt=2), {"a": GOOD}) == []


def test_one_whose_tests_failed_or_never_ran_cannot() -> None:
    plan = run_plan(tests=(TEST,))
    assert names(plan, {"a": GOOD}, PASSED) == [("a", "77")]
    assert names(plan, {"a": GOOD}, FAILED) == []
    assert names(plan, {"a": GOOD}, OTHER) == [], "what passed is not what would be published"
    assert names(plan, {"a": GOOD}) == []


def test_the_tree_of_an_earlier_run_is_published_once_it_has_passed_in_this_one() -> None:
    plan = run_plan(legs=(), skipped=SAME, tests=(CARRIED,))
    index = TreeIndex({"a": TreePlace("41", 1, MANIFEST)})
    assert names(plan, {}, PASSED, index) == [("a", "41")]
    for tests in (FAILED, OTHER, {}):
        assert names(plan, {}, tests, index) == []
        assert [row.job for row in judge(plan, {}, tests, index)] == ["a / test cuda-x86_64-linux"]
    assert judge(plan, {}, PASSED, index) == []
    assert len(judge(plan, {}, PASSED, TreeIndex())) == 1, "there is no such tree"


def test_what_an_earlier_run_has_unchanged_is_published_from_there() -> None:
    plan = run_plan(legs=(), skipped=SAME)
    assert names(plan, {}, index=TreeIndex({"a": TreePlace("41", 1, MANIFEST)})) == [("a", "41")]
    assert names(plan, {}) == []
    older = msgspec.structs.replace(MANIFEST, version=2)
    assert names(plan, {}, index=TreeIndex({"a": TreePlace("41", 1, older)})) == []


def test_a_kernel_of_which_nothing_was_planned_is_not_published() -> None:
    index = TreeIndex({"a": TreePlace("41", 1, MANIFEST)})
    assert names(run_plan(legs=()), {}, index=index) == []


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


def test_a_kernel_that_was_only_fetched_is_published_if_it_is_the_tree_that_passed() -> None:
    plan = run_plan(legs=(), skipped=SAME)
    index = TreeIndex({"a": TreePlace("41", 5, MANIFEST)})
    assert names(plan, {"a": GOOD}, None, index) == [("a", "41")]
    other = msgspec.structs.replace(GOOD, manifest=OTHER_MANIFEST)
    assert names(plan, {"a": other}, None, index) == []
    lost = msgspec.structs.replace(GOOD, complete=False, manifest=None)
    assert names(plan, {"a": lost}, None, index) == []
