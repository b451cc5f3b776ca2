"""The gate of a CI run: its plan against its records, and the index of trees that goes on to the
next run.

A run merges only rebuilt kernels, so current trees lie in artifacts of many runs, and a failed
kernel keeps its last good tree. Any job can forge an index: it is untrusted data.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from kci.errors import FindingsError, UsageError
from kci.plan.github_limits import FORK_RULE
from kci.plan.hardware_tests import CarriedTree, TestPass, tree_under_test
from kci.plan.plan import KeptObjects, Key, Plan
from kci.run.kernel_tests import Text
from kci.run.records import (
    NO_RESULT_MESSAGE,
    PLAN_FILE,
    RECORD_FILE,
    TEST_FILE,
    Attempt,
    KernelRecord,
    NameOfKernel,
    TestRecord,
    newest_by_key,
    read_uploaded,
)
from kci.tree.manifest import Manifest
from kci.utils.atomic import Log
from kci.utils.bounded_json import VersionedRecord, read_record
from kci.utils.frozen import Frozen
from kci.utils.suggest import command_line, count

_Upload = TypeVar("_Upload", Plan, KernelRecord, TestRecord, "TreeIndex")
_Key = TypeVar("_Key")
_Place = TypeVar("_Place", "TreePlace", "ObjectsPlace")

INDEX_FILE = "kci-trees.json"
KEPT_DAYS = 60
"""Days that trees and objects count. Actions that upload them ask GitHub to keep them for
as long."""


class TreePlace(Frozen):
    """A tree in a run's artifacts."""

    run: Annotated[str, Meta(pattern=r"^[0-9]{0,20}\Z")]
    """Run id."""
    day: int
    """Days since 1970."""
    manifest: Manifest
    passed: dict[Text, TestPass] = {}
    """Passed test legs by name."""


class ObjectsPlace(KeptObjects):
    """The newest objects of a leg."""

    day: int
    """Days since 1970."""

    def __post_init__(self) -> None:
        if not (
            self.run.isascii() and self.run.isdecimal() and self.artifact.startswith("objects.")
        ):
            raise ValueError(f"there are no objects in {self.artifact!r} of run {self.run!r}")


class TreeIndex(VersionedRecord):
    """The newest tree of each kernel."""

    trees: dict[NameOfKernel, TreePlace] = {}
    day: int = 0
    """Day of the uploading run."""
    attempt: Attempt = 1
    """Attempt of the uploading run; the newest counts."""
    objects: dict[NameOfKernel, dict[Text, ObjectsPlace]] = {}
    """Objects by kernel and leg, of pushes to the branch only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for kernel, place in self.trees.items():
            if place.manifest.kernel != kernel:
                raise ValueError(f"the tree of {kernel!r} is one of {place.manifest.kernel!r}")

    def unexpired(self, day: int) -> TreeIndex:
        """The index without what expired, sorted."""

        def kept(places: dict[str, _Place]) -> dict[str, _Place]:
            return {
                name: place for name, place in sorted(places.items()) if day - place.day < KEPT_DAYS
            }

        objects = sorted(self.objects.items())
        left = {kernel: places for kernel, legs in objects if (places := kept(legs))}
        return replace(self, trees=kept(self.trees), objects=left)

    def for_plan(self) -> dict[str, Any]:
        """The fields of a `PlanRequest`: trees, objects, and the fingerprints of variants."""
        trees, objects = self.trees.items(), self.objects.items()
        return {
            "trees": {
                kernel: CarriedTree(place.run, place.manifest.digests, place.passed)
                for kernel, place in trees
            },
            "objects": {
                (kernel, leg): place for kernel, legs in objects for leg, place in legs.items()
            },
            "published": {
                (kernel, entry.variant): entry.fingerprint
                for kernel, place in trees
                for entry in place.manifest.present
                if entry.fingerprint is not None
            },
        }


def today() -> int:
    """Days since 1970."""
    return int(time.time()) // 86400


NO_PLAN = Plan(1, "", ())
"""For runs without an uploaded plan."""


class RunUploads(Frozen):
    """Everything that the jobs of a run uploaded."""

    plan: Plan = NO_PLAN
    records: dict[str, KernelRecord] = {}
    """By kernel."""
    tests: dict[Key, TestRecord] = {}
    """By kernel and leg."""
    index: TreeIndex = TreeIndex()
    """Trees of earlier runs, as of the plan."""

    def failed_tests(self) -> dict[Key, str]:
        """Reason per test leg that did not pass; a missing record is no pass.

        Kernels that failed are left out.
        """
        reasons, built = {}, {leg.kernel for leg in self.plan.legs}
        for test in self.plan.tests:
            key = test.kernel, test.name
            merged, record = self.records.get(test.kernel), self.tests.get(key)
            holder = self.index.trees.get(test.kernel) if test.run else merged
            manifest = holder.manifest if holder else None
            if not test.run and test.kernel in built and not (merged and merged.complete):
                continue
            if not record or record.attempt < self.plan.attempt:
                reasons[key] = _NO_TEST
            elif not record.passed:
                reasons[key] = record.error or "it failed"
            elif not manifest or record.tree != tree_under_test(manifest.digests, test.variants):
                reasons[key] = (
                    "it passed on another tree than the present one: run everything again"
                )
        return reasons


def read_uploads(folder: Path, attempt: int | None = None) -> RunUploads:
    """Read a run's uploads, of each the newest attempt, none after `attempt`.

    Errors as `read_uploaded`.
    """

    def newest(
        name: str,
        shape: type[_Upload],
        key: Callable[[_Upload], _Key],
    ) -> dict[_Key, _Upload]:
        # any job can upload such files, so a second one of an attempt may be a forged one
        items = list(read_uploaded(folder, name, shape))
        by_key = newest_by_key(items, key)
        for item in items:
            other, last = by_key[key(item)], attempt or item.attempt
            if item.attempt > last or (item.attempt == other.attempt and item != other):
                whose = "was not uploaded by its own job, or not by it alone"
                message = f"attempt {item.attempt} of {key(item)!r} {whose}"
                hint = "look for the job that uploads other artifacts called run-*"
                raise FindingsError(message, hint)
        return by_key

    plans = newest(PLAN_FILE, Plan, lambda _: "the plan")
    records = newest(RECORD_FILE, KernelRecord, lambda item: item.kernel)
    tests = newest(TEST_FILE, TestRecord, lambda item: (item.kernel, item.leg))
    indexes = newest(INDEX_FILE, TreeIndex, lambda _: "the index of trees")
    (plan,), (index,) = plans.values() or [NO_PLAN], indexes.values() or [TreeIndex()]
    return RunUploads(plan, records, tests, index)


def next_index(earlier: Path | None, run: str, day: int) -> TreeIndex:
    """The index at the start of a run; `earlier` has the uploads of run `run`.

    Raises FindingsError.
    """
    if not earlier or not earlier.is_dir():
        return TreeIndex(day=day)
    return index_after(read_uploads(earlier), run, day)


def index_after(before: RunUploads, run: str, day: int) -> TreeIndex:
    """The index at the end of a run."""
    trees, lacking = dict(before.index.trees), before.failed_tests()
    objects = {kernel: dict(legs) for kernel, legs in before.index.objects.items()}
    for kernel, record in before.records.items():
        for leg in record.objects:
            objects.setdefault(kernel, {})[leg.leg] = ObjectsPlace(
                run, leg.artifact, before.index.day
            )
        if _base_tree_lost(before.plan, record):
            trees.pop(kernel, None)  # the next run builds all of it
        elif record.manifest and record.complete and not _is_unchanged(before.plan, kernel):
            trees[kernel] = TreePlace(run, before.index.day, record.manifest)
    for test in before.plan.tests:
        key = test.kernel, test.name
        place, test_record = trees.get(test.kernel), before.tests.get(key)
        if test.run and test_record and not test_record.tree:
            trees.pop(test.kernel, None)  # its artifact expired, so it is built again
        elif place and place.run == (test.run or run):
            passed = {name: known for name, known in place.passed.items() if name != test.name}
            if key not in lacking:
                tree = tree_under_test(place.manifest.digests, test.variants)
                passed[test.name] = TestPass(tree, test.inputs)
            trees[test.kernel] = replace(place, passed=passed)
    return TreeIndex(trees, day, objects=objects).unexpired(day)


def _is_unchanged(plan: Plan, kernel: str) -> bool:
    # an earlier run's tree has all of it
    return any(item.kernel == kernel for item in plan.skipped) and all(
        leg.kernel != kernel for leg in plan.legs
    )


def _base_tree_lost(plan: Plan, record: KernelRecord) -> bool:
    # the legs succeeded: the tree to merge into is gone or changed
    built = {name for leg in plan.legs if leg.kernel == record.kernel for name in leg.variants}
    carried = any(item.kernel == record.kernel for item in plan.skipped)
    return carried and not record.complete and built <= {*record.present}


def read_index(place: Path, log: Log) -> TreeIndex:
    """Read an index; a missing or invalid file gives an empty one and a log line."""
    try:
        return read_record(place, TreeIndex)
    except FileNotFoundError:
        log("there is no list of earlier trees: everything is built")
    except (OSError, ValueError) as error:  # another version of kci, or foreign
        log(f"everything is built once more: {place} is not a list of trees: {error}")
    return TreeIndex()


_NO_TEST = f"{NO_RESULT_MESSAGE}, or the workflow is older than the tests (`kci render`)"

_NO_RECORD = (
    "no job that merges it left a record: it was cancelled, its machine was lost, or the workflow "
    "is older than the "
    "kernel (`kci render`)"
)


PLAN_JOB, PUBLISH_JOB = "plan", "publish"
"""Job names in rendered workflows."""


class JobResult(enum.StrEnum):
    """GitHub's result of a job."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class GateRow(Frozen):
    """A planned item that the run lacks."""

    kernel: str
    variant: str
    """Empty for the whole kernel."""
    job: str
    """Name on the run's page."""
    error: str
    replay: str = ""
    """Command that reproduces the error; may be empty."""


def merge_row(kernel: str, error: str, variant: str = "") -> GateRow:
    """The row for a fault of the merge of a kernel."""
    return GateRow(kernel, variant, f"{kernel} / merge", error)


def read_results(text: str) -> dict[str, JobResult]:
    """Parse `name=result` words; `name/need,need=result` is a job of the repository.

    Raises UsageError.
    """
    results: dict[str, JobResult] = {}
    for word in text.split():
        name, _, result = word.partition("=")
        if not name.partition("/")[0] or name in results or result not in {*JobResult}:
            raise UsageError(
                f"{word[:80]!r} does not say how a job ended", "write job=${{ needs.job.result }}"
            )
        results[name] = JobResult(result)
    if PLAN_JOB not in results:
        raise UsageError(
            "the result of the plan job is missing", "add plan=${{ needs.plan.result }}"
        )
    return results


def job_problem(results: Mapping[str, JobResult], ready: int) -> str:
    """Describe failed jobs besides complete records; `ready` is the number of publishable
    kernels.
    """
    ended = {name.partition("/")[0]: result for name, result in results.items()}
    failed = (JobResult.FAILURE, JobResult.CANCELLED)
    if bad := [f"{name} ({result})" for name, result in ended.items() if result in failed]:
        return f"all that was planned is there, but some jobs did not succeed: {', '.join(bad)}"
    for name, result in results.items():
        job, _, needs = name.partition("/")
        succeeded = {ended.get(need) for need in needs.split(",")} == {JobResult.SUCCESS}
        if needs and result is JobResult.SKIPPED and succeeded:
            return f"the job {job} was skipped although what it needs succeeded: {needs}"
    if ready and results.get(PUBLISH_JOB) is JobResult.SKIPPED:
        return f"{ready} kernels can be published, and the job that publishes did not run"
    return ""


def missing_results(run: RunUploads) -> list[GateRow]:
    """List what a run's records lack.

    Records of attempts older than the newest plan do not count.
    """
    plan = run.plan
    rows = []
    for item in plan.faulty:
        replay = command_line("check", place=item.path)
        rows.append(GateRow(item.kernel or item.path, "", "plan", item.message, replay))
    held_back = [item for item in plan.left_out if item.rule == FORK_RULE]
    rows += [GateRow(item.kernel, item.variant, "plan", item.reason) for item in held_back]
    fresh = {
        kernel: record for kernel, record in run.records.items() if record.attempt >= plan.attempt
    }
    for kernel in sorted({leg.kernel for leg in plan.legs}):
        rows += (
            _kernel_rows(plan, fresh[kernel])
            if kernel in fresh
            else [merge_row(kernel, _NO_RECORD)]
        )
    for key, why in replace(run, records=fresh).failed_tests().items():
        (kernel, name), test = key, run.tests.get(key)
        replay = test.replay if test else ""
        rows.append(GateRow(kernel, "", f"{kernel} / test {name}", why, replay))
    return rows


def _kernel_rows(plan: Plan, record: KernelRecord) -> Iterator[GateRow]:
    kernel, lacking = record.kernel, False
    failures = {failure.variant: failure for failure in record.failures}
    for leg in (leg for leg in plan.legs if leg.kernel == kernel):
        for name in (name for name in leg.variants if name not in record.present):
            how = (f"--variant={name}", f"--container={leg.image or 'none'}", f"--tier={plan.tier}")
            error, replay = NO_RESULT_MESSAGE, command_line("build", *how, place=leg.path)
            if failure := failures.get(name):
                error, replay = failure.error, failure.replay
            lacking = True
            yield GateRow(kernel, name, f"{kernel} / {leg.name}", error, replay)
    unloaded = record.manifest.unloaded if record.manifest else {}
    for name, why in unloaded.items():
        yield merge_row(kernel, f"not loaded: {why}", name)
    if record.error or (not record.complete and not lacking and not unloaded):
        lacks = ", ".join(record.missing) or "something that was planned"
        yield merge_row(kernel, record.error or f"the tree lacks {lacks}")


def success_summary(plan: Plan) -> str:
    """Summary of a run without errors."""
    built = sum(len(leg.variants) for leg in plan.legs)
    kernels = len({leg.kernel for leg in plan.legs})
    done = [f"{count(built, 'variant')} of {count(kernels, 'kernel')}"] if built else []
    done += [f"{count(len(plan.tests), 'test job')} passed"] if plan.tests else []
    done += [f"{count(len(plan.skipped), 'variant')} unchanged"] if plan.skipped else []
    text = (
        f"all that was planned is there: {'; '.join(done)}" if done else "there was nothing to do"
    )
    return "; ".join(filter(None, (text, plan.untested_sentence)))


class PublishableKernel(Frozen):
    """A kernel whose tree can be published."""

    kernel: str
    path: str
    run: str
    """Id of the run with the artifacts."""
    digest: str
    """The digest of the tree that was judged, see `Manifest.digest`."""


def publishable_kernels(run: RunUploads, run_id: str) -> list[PublishableKernel]:
    """List the publishable kernels; an unchanged kernel has its tree in an earlier run."""
    plan = run.plan
    built = {leg.kernel for leg in plan.legs}
    skipped = {item.kernel for item in plan.skipped}
    # an unplanned test leg passed on the same tree in an earlier run
    bad = {item.kernel for item in plan.faulty} | {name for name, _ in run.failed_tests()}
    kernels = []
    for kernel in plan.kernels:
        name, tree, origin = kernel.name, None, run_id
        record, place = run.records.get(name), run.index.trees.get(name)
        merged = record.manifest if record else None
        if name in built:
            tree = merged if record and record.attempt >= plan.attempt and record.complete else None
        elif name in skipped and place and place.manifest.version == kernel.version:
            # with a record, the fetched tree must not be another one
            same = not record or (merged and merged.digests == place.manifest.digests)
            tree, origin = place.manifest if same else None, place.run
        if tree and name not in bad:
            kernels.append(PublishableKernel(name, kernel.path, origin, tree.digest))
    return sorted(kernels, key=lambda item: item.kernel)
