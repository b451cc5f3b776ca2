"""Where the newest tree of each kernel is and what passed on it, from one CI run on a branch to the next.

A run merges only the kernels that it has built something of, so the trees of a repository lie in the artifacts of many
runs. Every run uploads an index of them: the index of the run before it, brought up to date by that run's records.
So a kernel that fails keeps its last good tree, and a run that builds nothing loses nothing. Whoever can upload an
artifact in a run can have written it, so it is read as data: its names become paths only after they are checked.
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
    newest,
    read_uploaded,
)
from kci.tree.manifest import Manifest
from kci.utils.atomic import Log
from kci.utils.bounded_json import read_record, require_schema

INDEX_FILE = "kci-trees.json"
SCHEMA = 1
KEPT_DAYS = 60
"""For how long a tree counts. GitHub keeps artifacts for 90 days unless a repository says less; after that everything
is built once more, and it has to be before the artifact is gone."""


OBJECTS_DAYS = KEPT_DAYS
"""For how long GitHub keeps the objects of a leg: as long as the tree that was made of them. action.yml says so when it
uploads them."""


class TreePlace(msgspec.Struct, frozen=True):
    """A tree that a run has merged."""

    run: Annotated[str, Meta(pattern=r"^[0-9]{0,20}\Z")]
    """The run's id, under which its artifacts are found."""
    day: int
    """When the run was planned, in days since 1970."""
    manifest: Manifest
    passed: dict[Text, TestPass] = {}
    """The test legs that passed on it, by name. One that failed, or left no record, is not here."""


class ObjectsPlace(KeptObjects, frozen=True):
    """Where the newest objects of a leg are."""

    day: int
    """When that run was planned."""

    def __post_init__(self) -> None:
        if not (self.run.isascii() and self.run.isdecimal() and self.artifact.startswith("objects.")):
            raise ValueError(f"there are no objects in {self.artifact!r} of run {self.run!r}")


class TreeIndex(msgspec.Struct, frozen=True):
    """The newest tree of each kernel, by name."""

    trees: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], TreePlace] = {}
    day: int = 0
    """When the run that uploads this was planned."""
    attempt: Attempt = 1
    """The attempt of that run; each plans anew, and the newest counts."""
    objects: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], dict[Text, ObjectsPlace]] = {}
    """The newest objects of each kernel's legs, by the leg's name: of pushes to the branch only, as the trees are."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        for kernel, place in self.trees.items():
            if place.manifest.kernel != kernel:
                raise ValueError(f"the tree of {kernel!r} is one of {place.manifest.kernel!r}")

    def still(self, day: int) -> TreeIndex:
        """It without the trees that are too old on a day, sorted."""
        kept = {kernel: place for kernel, place in sorted(self.trees.items()) if day - place.day <= KEPT_DAYS}
        return msgspec.structs.replace(self, trees=kept)

    def carried(self) -> dict[str, CarriedTree]:
        """The trees as a plan takes them."""
        return {
            kernel: CarriedTree(place.run, place.manifest.digests, place.passed) for kernel, place in self.trees.items()
        }

    def kept_objects(self) -> dict[Key, KeptObjects]:
        """The objects as a plan takes them."""
        return {(kernel, leg): place for kernel, legs in self.objects.items() for leg, place in legs.items()}

    def published(self) -> dict[Key, str]:
        """The fingerprints of the variants of the trees, as `read_published` tells those of files."""
        return {
            (kernel, entry.variant): entry.fingerprint
            for kernel, place in self.trees.items()
            for entry in place.manifest.present
            if entry.fingerprint is not None
        }


def today() -> int:
    """The day, as an index counts them."""
    return datetime.datetime.now(datetime.UTC).date().toordinal() - datetime.date(1970, 1, 1).toordinal()


NO_PLAN = Plan(1, "", ())
"""Where no plan was uploaded."""


class RunUploads(msgspec.Struct, frozen=True):
    """What the jobs of a run have uploaded."""

    plan: Plan = NO_PLAN
    records: dict[str, KernelRecord] = {}
    """What became of each kernel, by name."""
    tests: dict[tuple[str, str], TestRecord] = {}
    """What came of the tests, by kernel and leg."""
    index: TreeIndex = TreeIndex()
    """Where the trees of earlier runs are, as the plan knew it."""
    """What changes for users; None where kci.toml does not ask, or there is nothing to compare with."""

    def untested(self) -> dict[tuple[str, str], str]:
        """The test legs that did not pass, by kernel and name, and why. No record is no pass.

        Those of a kernel that was built and not merged are not among them.
        """
        found = {}
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
                found[test.kernel, test.name] = NO_RESULT_MESSAGE
            elif not record.passed:
                found[test.kernel, test.name] = record.error or "it failed"
            elif manifest is None or record.tree != tree_under_test(manifest.digests, test.variants):
                found[test.kernel, test.name] = "it passed on another tree than there is now: run everything again"
        return found


def read_uploads(folder: Path) -> RunUploads:
    """What a run has uploaded below a folder, of several attempts the newest; raises as `read_uploaded`."""
    plans = read_uploaded(folder, PLAN_FILE, Plan)
    indexes = read_uploaded(folder, INDEX_FILE, TreeIndex, "an index of trees")
    return RunUploads(
        max(plans, key=lambda plan: plan.attempt, default=NO_PLAN),
        newest(read_uploaded(folder, RECORD_FILE, KernelRecord), lambda item: item.kernel),
        newest(read_uploaded(folder, TEST_FILE, TestRecord), lambda item: (item.kernel, item.leg)),
        max(indexes, key=lambda index: (index.attempt, index.day), default=TreeIndex()),
    )


def next_index(earlier: Path | None, run: str, day: int) -> TreeIndex:
    """The index that a run starts with.

    `earlier` is a folder with the plan and the records of the run before it, whose id is `run`; `day` is today.
    FindingsError if what the earlier run uploaded cannot be read.
    """
    if earlier is None or not earlier.is_dir():
        return TreeIndex(day=day)
    return index_after(read_uploads(earlier), run, day)


def index_after(before: RunUploads, run: str, day: int) -> TreeIndex:
    """The index that a run leaves: the one that it began with, and what became of its kernels."""
    trees, lacking = dict(before.index.trees), before.untested()
    objects = {kernel: dict(legs) for kernel, legs in before.index.objects.items()}
    for kernel, record in before.records.items():
        for leg in record.objects:
            objects.setdefault(kernel, {})[leg.leg] = ObjectsPlace(run, leg.artifact, before.index.day)
        if _lost(before.plan, record):
            trees.pop(kernel, None)  # so the next run builds all of it
        elif record.manifest is not None and record.complete and not _only_carried(before.plan, kernel):
            trees[kernel] = TreePlace(run, before.index.day, record.manifest)
    for test in before.plan.tests:
        place, told = trees.get(test.kernel), before.tests.get((test.kernel, test.name))
        if test.run and told is not None and not told.tree:
            trees.pop(test.kernel, None)  # its artifact was not there, so it is built once more
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
    return TreeIndex(trees, day, objects=objects).still(day)


def _only_carried(plan: Plan, kernel: str) -> bool:
    """True if a run had nothing to build of a kernel, because an earlier run's tree has it all."""
    return any(item.kernel == kernel for item in plan.skipped) and all(leg.kernel != kernel for leg in plan.legs)


def _lost(plan: Plan, record: KernelRecord) -> bool:
    """True if a merge failed although its legs did not: the tree that it builds upon is gone, or another one."""
    built = {name for leg in plan.legs if leg.kernel == record.kernel for name in leg.variants}
    carried = any(item.kernel == record.kernel for item in plan.skipped)
    return carried and not record.complete and built <= {*record.present}


def read_index(place: Path, log: Log) -> TreeIndex:
    """The index in a file; an empty one, and a line for `log`, where there is no file or something else."""
    try:
        return read_record(place, TreeIndex)
    except FileNotFoundError:
        log("there is no list of earlier trees: everything is built")
    except (OSError, ValueError) as error:  # of another version of kci, or not kci's
        log(f"everything is built once more: {place} is no list of trees: {error}")
    return TreeIndex()
