"""The gate: what was planned against what the kernels' records say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import failure
from kci.config.discovery import FaultyKernel
from kci.diagnostics import finding
from kci.errors import BuildFailedError, FindingsError, UsageError, first_error
from kci.plan.hardware_tests import tree_under_test
from kci.plan.plan import KernelPlan, Plan, SkippedVariant, UnplannedVariant
from kci.run import gate
from kci.run.gate import (
    NO_PLAN,
    GateRow,
    JobResult,
    RunUploads,
    TreeIndex,
    TreePlace,
    job_problem,
    read_results,
    read_uploads,
)
from kci.run.records import (
    PLAN_FILE,
    RECORD_FILE,
    KernelRecord,
    TestRecord,
    VariantFailure,
    read_failures,
    write_failure,
    write_record,
)
from planning import hardware_leg, leg, manifest_of, plan

CPU, CUDA = "torch213-cxx11-cpu-x86_64-linux", "torch213-cxx11-cu130-x86_64-linux"
LEGS = (leg(CPU, "relu"), leg(CUDA, "relu"), leg(CPU, "rms-norm"))


def planned(**keys: Any) -> Plan:
    return plan(keys.pop("legs", LEGS), **keys)


def record(kernel: str, *present: str, **keys: Any) -> KernelRecord:
    return KernelRecord(kernel, **{"attempt": 1, "complete": True, "present": present} | keys)


def judge(plan: Plan, *found: KernelRecord, tests: Any = None, index: Any = None) -> list[GateRow]:
    records = {item.kernel: item for item in found}
    return gate.missing_results(RunUploads(plan, records, tests or {}, index or TreeIndex()))


RELU, NORM = record("relu", CPU, CUDA), record("rms-norm", CPU)
FAILURE = VariantFailure("relu", CUDA, CUDA, 1, "relu.cu(3): error: no", "kci build relu")


FAULTY = FaultyKernel("kernels/x", "", "unknown key", (finding("KCI101", "unknown key"),))
LEFT = UnplannedVariant("relu", CUDA, "cuda", "x86_64-linux", "KCI315", "a fork")
NOBODY_CAN = msgspec.structs.replace(LEFT, rule="KCI303")  # the plan says so
NO_TREE = record("relu", CPU, CUDA, complete=False, error="no good")
AGAIN = record("rms-norm", CPU, attempt=2)


@pytest.mark.parametrize(
    ("plan", "found", "missing"),
    [
        ({}, (RELU, NORM), []),
        ({"legs": ()}, (), []),
        ({}, (RELU,), ["rms-norm / merge"]),
        ({"attempt": 2}, (RELU, AGAIN), ["relu / merge"]),
        ({}, (RELU, AGAIN), []),  # only what failed ran again
        ({"faulty": (FAULTY,)}, (RELU, NORM), ["plan"]),
        ({"left_out": (LEFT,)}, (RELU, NORM), [CUDA]),
        ({"left_out": (NOBODY_CAN,)}, (RELU, NORM), []),
        ({}, (NO_TREE, NORM), ["relu / merge"]),
        ({}, (msgspec.structs.replace(NO_TREE, present=(CPU,)), NORM),
            [CUDA, "relu / merge"]),
    ],
)  # fmt: skip
def test_what_is_missing(
    plan: dict[str, Any], found: tuple[KernelRecord, ...], missing: list[str]
) -> None:
    assert [row.variant or row.job for row in judge(planned(**plan), *found)] == missing


def test_what_is_missing_says_why_and_has_its_command() -> None:
    def row(*present: str, legs: Any = LEGS, **keys: Any) -> GateRow:
        broken = record("relu", *present, complete=False, **keys)
        (only,) = judge(planned(legs=legs), broken, NORM)
        return only

    said = FAILURE.error, FAILURE.replay
    assert row(CPU, failures=(FAILURE,)) == GateRow("relu", CUDA, f"relu / {CUDA}", *said)
    both = msgspec.structs.replace(leg("cpu-cuda", "relu"), variants=(CPU, CUDA))
    several = row(CPU, legs=(both,), failures=(FAILURE,))
    assert several == GateRow("relu", CUDA, "relu / cpu-cuda", *said)
    silent = row(CPU)  # a leg without a word was cancelled or lost
    assert (silent.variant, "cancelled" in silent.error) == (CUDA, True)
    assert silent.replay == f"kci build --variant={CUDA} --container=none --tier=release relu"
    assert "no good" in row(CPU, CUDA, error="no good").error
    assert "other" in row(CPU, CUDA, missing=("other",)).error
    (faulty,) = judge(planned(faulty=(FAULTY,)), RELU, NORM)
    assert faulty == GateRow("kernels/x", "", "plan", "unknown key", "kci check kernels/x")


def test_a_record_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, earlier = tmp_path / "there" / RECORD_FILE, tmp_path / "earlier"
    write_record(path, record("relu", attempt=1))
    earlier.hardlink_to(path)
    write_record(path, record("relu", attempt=2))
    assert read_uploads(path.parent).records["relu"].attempt == 2
    assert b'"attempt":1' in earlier.read_bytes(), "who reads the old one sees nothing of the new"
    # All that is here is uploaded.
    assert [entry.name for entry in path.parent.iterdir()] == [RECORD_FILE]


def test_round_trips_and_the_newest_wins(tmp_path: Path) -> None:
    for attempt in (2, 1):
        again = msgspec.structs.replace(FAILURE, attempt=attempt, error=f"attempt {attempt}")
        write_failure(tmp_path / f"leg-{attempt}", again)
        write_record(tmp_path / f"record-{attempt}" / RECORD_FILE, record("relu", attempt=attempt))
        write_record(tmp_path / f"plan-{attempt}" / PLAN_FILE, planned(attempt=attempt))
    assert [item.error for item in read_failures([tmp_path], "relu")] == ["attempt 2"]
    assert read_failures([tmp_path, tmp_path / "no-such-folder"], "other") == []
    assert read_uploads(tmp_path).records["relu"].attempt == 2
    newest = read_uploads(tmp_path).plan
    assert newest.attempt == 2
    assert newest.legs == LEGS
    assert read_uploads(tmp_path / "leg-1").plan == NO_PLAN


def test_the_line_that_says_most() -> None:
    said = "relu.cpp:7:3: error: 'x' was not declared"
    output = f"building v failed\nFAILED: relu.o\nc++ -c relu.cpp\n{said}\nmore"
    told = finding("KCI101", "unknown key", path="relu/build.toml")
    for error, line in (
        (BuildFailedError(output), said),
        (FindingsError("two\nlines"), "two"),
        (FindingsError("invalid", diagnostics=[told]), "relu/build.toml: unknown key"),
        (FindingsError(""), "FindingsError"),
        (BuildFailedError(f"error: \x1b[31m{'x' * 1000}"), f"error:  [31m{'x' * 387}…"),
    ):
        assert first_error(error) == line


TWICE, UNNAMED = "plan=success plan=failure", "plan=success =success"


@pytest.mark.parametrize(
    "said", ["", "kernels=success", "plan=", "plan=ok", "plan", TWICE, UNNAMED]
)
def test_results_that_are_none(said: str) -> None:
    failure(UsageError, "", read_results, said)


def test_a_job_that_failed_beside_complete_records_is_told() -> None:
    """A step of the repository's own behind the merge, for example."""
    for result in JobResult:
        said = job_problem({"plan": JobResult.SUCCESS, "kernels": result}, 0)
        assert ("kernels" in said) is bool(said) is (result in ("failure", "cancelled"))


def test_publishing_is_not_skipped_in_silence_while_something_is_ready() -> None:
    def told(more: str) -> str:
        return job_problem(read_results(f"plan=success merge=success finish=skipped {more}"), 0)

    for more in ("a/plan,merge=skipped", "b/a=skipped a=success", "a/merge=skipped"):
        assert "was skipped although" in told(more)
    for fine in (
        "a/plan,finish=skipped",
        "a=skipped",
        "a/merge=success",
        "b/a=skipped a/finish=skipped",
    ):
        assert told(fine) == ""
    results = read_results("plan=success ready=success publish=skipped")
    assert job_problem(results, 0) == ""
    assert "2 kernels can be published" in job_problem(results, 2)


# --- which kernels can be published, and what is said of tests ---

TEST = hardware_leg("a", "torch-cuda", "dir/a")
CARRIED = msgspec.structs.replace(TEST, run="41")
MANIFEST, OTHER_MANIFEST = (
    manifest_of("a", ("torch-cuda",), {"torch-cuda": digest}) for digest in ("d1", "d2")
)
GOOD = KernelRecord("a", 1, True, ("torch-cuda",), manifest=MANIFEST)
SAME = (SkippedVariant("a", "torch-cuda", "published already"),)


def outcome_of_test(passed: bool, **keys: str) -> dict[tuple[str, str], TestRecord]:
    return {("a", TEST.name): TestRecord("a", TEST.name, 1, passed, **keys)}


TESTS_PASSED, TESTS_OTHER = (
    outcome_of_test(True, tree=tree_under_test(manifest.digests, TEST.variants))
    for manifest in (MANIFEST, OTHER_MANIFEST)
)
TESTS_FAILED = outcome_of_test(False, error="boom", replay="kci test dir/a")


def run_plan(**more: Any) -> Plan:
    made = plan(more.pop("legs", (leg("torch-cuda", "a"),)), **more)
    kernels = (KernelPlan("a", "dir/a", 1, ("torch-cuda",)),)
    return msgspec.structs.replace(made, kernels=kernels)


def runs(
    plan: Plan, records: dict[str, KernelRecord], tests: Any = None, index: TreeIndex | None = None
) -> list[str]:
    """The runs whose trees can be published, of the kernel `a`."""
    uploads = RunUploads(plan, records, tests or {}, index or TreeIndex())
    found = gate.publishable_kernels(uploads, "77")
    assert {(item.kernel, item.digest) for item in found} <= {("a", MANIFEST.digest)}, "as judged"
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
        (TESTED, but(), TESTS_PASSED, None, ["77"]),
        (TESTED, but(), TESTS_FAILED, None, []),
        (TESTED, but(), TESTS_OTHER, None, []),  # what passed is not what would be published
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
    assert runs(plan, records, tests, index) == run


def test_the_tree_of_an_earlier_run_is_published_once_it_has_passed_in_this_one() -> None:
    plan, job = run_plan(legs=(), skipped=SAME, tests=(CARRIED,)), "a / test cuda-x86_64-linux"
    for tests, published, lacking in (
        (TESTS_PASSED, ["41"], []), (TESTS_FAILED, [], [job]), (TESTS_OTHER, [], [job]),
        ({}, [], [job]),
    ):  # fmt: skip
        assert runs(plan, {}, tests, INDEX) == published
        assert [row.job for row in judge(plan, tests=tests, index=INDEX)] == lacking
    assert len(judge(plan, tests=TESTS_PASSED)) == 1, "there is no such tree"


def test_the_gate_lists_tests_that_failed_and_those_that_never_ran() -> None:
    again = msgspec.structs.replace(TESTED, attempt=2)
    unbuilt = msgspec.structs.replace(TESTED, legs=(), skipped=SAME)
    assert judge(TESTED, GOOD, tests=TESTS_PASSED) == []
    test, lost, of_attempt = "test cuda-x86_64-linux", "ended silently", but(attempt=2)["a"]
    incomplete = but(complete=False, present=())["a"]
    for what, records, tests, job, error, replay in (
        (TESTED, [GOOD], TESTS_FAILED, test, "boom", "kci test dir/a"),
        (TESTED, [GOOD], {}, test, lost, ""),
        (TESTED, [GOOD], TESTS_OTHER, test, "another tree", ""),
        (again, [of_attempt], TESTS_PASSED, test, lost, ""),
        (TESTED, [incomplete], {}, "torch-cuda", "", None),  # its tests were not to run
        (TESTED, [], {}, "merge", "", None),
        (unbuilt, [], {}, test, "", ""),  # no job has run it
    ):
        (row,) = judge(what, *records, tests=tests)
        assert (row.job, error in row.error) == (f"a / {job}", True)
        assert replay in (None, row.replay)
