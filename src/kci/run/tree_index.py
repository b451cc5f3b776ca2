"""The index of each kernel's newest tree and passed tests, handed from one CI run on a branch to the next.

A run merges only rebuilt kernels, so current trees lie in artifacts of many runs, and a failed kernel keeps its last
good tree. Any job can forge an index: it is untrusted data.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.values import NAME_PATTERN
from kci.plan.fingerprint import Key
from kci.plan.hardware_tests import CarriedTree, TestPass, tree_under_test
from kci.plan.plan import KeptObjects, Plan
from kci.run.records import (
    NO_RESULT_MESSAGE,
    PLAN_FILE,
    RECORD_FILE,
    TEST_FILE,
    Attempt,
    KernelRecord,
    TestRecord,
    Text,
    newest_by_key,
    read_uploaded,
)
from kci.tree.manifest import Manifest
from kci.utils.atomic import Log
from kci.utils.bounded_json import read_record, require_schema

INDEX_FILE = "kci-trees.json"
SCHEMA = 1
KEPT_DAYS = 60
"""Days that a tree counts: fewer than the 90 of GitHub's artifacts, so that a rebuild comes in time."""


OBJECTS_DAYS = KEPT_DAYS
"""Days that GitHub keeps a leg's objects, as in action.yml."""


class TreePlace(msgspec.Struct, frozen=True):
    """A tree in a run's artifacts."""

    run: Annotated[str, Meta(pattern=r"^[0-9]{0,20}\Z")]
    """Run id."""
    day: int
    """Days since 1970."""
    manifest: Manifest
    passed: dict[Text, TestPass] = {}
    """Passed test legs by name."""


class ObjectsPlace(KeptObjects, frozen=True):
    """The newest objects of a leg."""

    day: int
    """Days since 1970."""

    def __post_init__(self) -> None:
        if not (self.run.isascii() and self.run.isdecimal() and self.artifact.startswith("objects.")):
            raise ValueError(f"there are no objects in {self.artifact!r} of run {self.run!r}")


class TreeIndex(msgspec.Struct, frozen=True):
    """The newest tree of each kernel."""

    trees: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], TreePlace] = {}
    day: int = 0
    """Day of the uploading run."""
    attempt: Attempt = 1
    """Attempt of the uploading run; the newest counts."""
    objects: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], dict[Text, ObjectsPlace]] = {}
    """Objects by kernel and leg, of pushes to the branch only."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        for kernel, place in self.trees.items():
            if place.manifest.kernel != kernel:
                raise ValueError(f"the tree of {kernel!r} is one of {place.manifest.kernel!r}")

    def unexpired(self, day: int) -> TreeIndex:
        """The index without expired trees, sorted."""
        kept = {kernel: place for kernel, place in sorted(self.trees.items()) if day - place.day <= KEPT_DAYS}
        return msgspec.structs.replace(self, trees=kept)

    def carried_trees(self) -> dict[str, CarriedTree]:
        """The trees in the plan's form."""
        return {
            kernel: CarriedTree(place.run, place.manifest.digests, place.passed) for kernel, place in self.trees.items()
        }

    def kept_objects(self) -> dict[Key, KeptObjects]:
        """The objects in the plan's form."""
        return {(kernel, leg): place for kernel, legs in self.objects.items() for leg, place in legs.items()}

    def published_fingerprints(self) -> dict[Key, str]:
        """Fingerprints of the trees' variants."""
        return {
            (kernel, entry.variant): entry.fingerprint
            for kernel, place in self.trees.items()
            for entry in place.manifest.present
            if entry.fingerprint is not None
        }


def today() -> int:
    """Days since 1970."""
    return datetime.datetime.now(datetime.UTC).date().toordinal() - datetime.date(1970, 1, 1).toordinal()


NO_PLAN = Plan(1, "", ())
"""For runs without an uploaded plan."""


class RunUploads(msgspec.Struct, frozen=True):
    """Everything that the jobs of a run uploaded."""

    plan: Plan = NO_PLAN
    records: dict[str, KernelRecord] = {}
    """By kernel."""
    tests: dict[tuple[str, str], TestRecord] = {}
    """By kernel and leg."""
    index: TreeIndex = TreeIndex()
    """Trees of earlier runs, as of the plan."""

    def failed_tests(self) -> dict[tuple[str, str], str]:
        """Reason per test leg that did not pass; a missing record is no pass. Unmerged kernels are left out."""
        reasons = {}
        for test in self.plan.tests:
            merged, record = self.records.get(test.kernel), self.tests.get((test.kernel, test.name))
            if test.run:
                place = self.index.trees.get(test.kernel)
                manifest = place.manifest if place is not None else None
            elif merged is not None and merged.complete:
                manifest = merged.manifest
            else:
                continue
            if record is None or record.attempt < self.plan.attempt:
                reasons[test.kernel, test.name] = NO_RESULT_MESSAGE
            elif not record.passed:
                reasons[test.kernel, test.name] = record.error or "it failed"
            elif manifest is None or record.tree != tree_under_test(manifest.digests, test.variants):
                reasons[test.kernel, test.name] = "it passed on another tree than there is now: run everything again"
        return reasons


def read_uploads(folder: Path) -> RunUploads:
    """Read a run's uploads, of each the newest attempt. Errors as `read_uploaded`."""
    plans = read_uploaded(folder, PLAN_FILE, Plan)
    indexes = read_uploaded(folder, INDEX_FILE, TreeIndex, "an index of trees")
    return RunUploads(
        max(plans, key=lambda plan: plan.attempt, default=NO_PLAN),
        newest_by_key(read_uploaded(folder, RECORD_FILE, KernelRecord), lambda item: item.kernel),
        newest_by_key(read_uploaded(folder, TEST_FILE, TestRecord), lambda item: (item.kernel, item.leg)),
        max(indexes, key=lambda index: (index.attempt, index.day), default=TreeIndex()),
    )


def next_index(earlier: Path | None, run: str, day: int) -> TreeIndex:
    """The index at the start of a run; `earlier` has the uploads of run `run`. Raises FindingsError."""
    if earlier is None or not earlier.is_dir():
        return TreeIndex(day=day)
    return index_after(read_uploads(earlier), run, day)


def index_after(before: RunUploads, run: str, day: int) -> TreeIndex:
    """The index at the end of a run."""
    trees, lacking = dict(before.index.trees), before.failed_tests()
    objects = {kernel: dict(legs) for kernel, legs in before.index.objects.items()}
    for kernel, record in before.records.items():
        for leg in record.objects:
            objects.setdefault(kernel, {})[leg.leg] = ObjectsPlace(run, leg.artifact, before.index.day)
        if _base_tree_lost(before.plan, record):
            trees.pop(kernel, None)  # the next run builds all of it
        elif record.manifest is not None and record.complete and not _is_unchanged(before.plan, kernel):
            trees[kernel] = TreePlace(run, before.index.day, record.manifest)
    for test in before.plan.tests:
        place, test_record = trees.get(test.kernel), before.tests.get((test.kernel, test.name))
        if test.run and test_record is not None and not test_record.tree:
            trees.pop(test.kernel, None)  # its artifact expired, so it is built again
        elif place is not None and place.run == (test.run or run):
            passed = {name: known for name, known in place.passed.items() if name != test.name}
            if (test.kernel, test.name) not in lacking:
                tree = tree_under_test(place.manifest.digests, test.variants)
                passed[test.name] = TestPass(tree, test.inputs)
            trees[test.kernel] = msgspec.structs.replace(place, passed=passed)
    still = {
        kernel: {leg: place for leg, place in sorted(legs.items()) if day - place.day < OBJECTS_DAYS}
        for kernel, legs in sorted(objects.items())
    }
    objects = {kernel: legs for kernel, legs in still.items() if legs}
    return TreeIndex(trees, day, objects=objects).unexpired(day)


def _is_unchanged(plan: Plan, kernel: str) -> bool:
    # an earlier run's tree has all of it
    return any(item.kernel == kernel for item in plan.skipped) and all(leg.kernel != kernel for leg in plan.legs)


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
        log(f"everything is built once more: {place} is no list of trees: {error}")
    return TreeIndex()
