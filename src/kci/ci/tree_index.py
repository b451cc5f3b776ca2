"""Where the newest tree of each kernel is and what passed on it, from one CI run on a branch to the next.

A run merges only the kernels that it has built something of, so the trees of a repository lie in the artifacts of many
runs. Every run uploads an index of them: the index of the run before it, brought up to date by that run's records.
So a kernel that fails keeps its last good tree, and a run that builds nothing loses nothing. Whoever can upload an
artifact in a run can have written it, so it is read as data: its names become paths only after they are checked.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.ci.run_records import (
    SILENT,
    Attempt,
    KernelRecord,
    RunPlan,
    TestRecord,
    Text,
    read_records,
    read_run_plan,
    read_tests,
    read_uploaded,
)
from kci.files.bounded_json import require_schema
from kci.plan.fingerprint import Key, PublishedVariant
from kci.plan.hardware_tests import CarriedTree, TestPass, tree_under_test
from kci.tree.manifest import Manifest
from kci.tree.metadata import NAME_PATTERN

INDEX_FILE = "kci-trees.json"
SCHEMA = 1
KEPT_DAYS = 60
"""For how long a tree counts. GitHub keeps artifacts for 90 days unless a repository says less; after that everything
is built once more, and it has to be before the artifact is gone."""


class TreePlace(msgspec.Struct, frozen=True):
    """A tree that a run has merged."""

    run: Annotated[str, Meta(pattern=r"^[0-9]{0,20}\Z")]
    """The run's id, under which its artifacts are found."""
    day: int
    """When the run was planned, in days since 1970."""
    manifest: Manifest
    passed: dict[Text, TestPass] = {}
    """The test legs that passed on it, by name. One that failed, or left no record, is not here."""


class TreeIndex(msgspec.Struct, frozen=True):
    """The newest tree of each kernel, by name."""

    trees: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], TreePlace] = {}
    day: int = 0
    """When the run that uploads this was planned."""
    attempt: Attempt = 1
    """The attempt of that run; each plans anew, and the newest counts."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        for kernel, place in self.trees.items():
            if place.manifest.kernel != kernel:
                raise ValueError(f"the tree of {kernel!r} is one of {place.manifest.kernel!r}")

    def carried(self) -> dict[str, CarriedTree]:
        """The trees as a plan takes them."""
        return {
            kernel: CarriedTree(place.run, place.manifest.digests, place.passed) for kernel, place in self.trees.items()
        }

    def published(self) -> dict[Key, PublishedVariant]:
        """The variants of the trees, as `read_published` tells those of files."""
        return {
            (kernel, entry.variant): PublishedVariant(entry.fingerprint, place.manifest.inputs.get(entry.inputs or ""))
            for kernel, place in self.trees.items()
            for entry in place.manifest.present
            if entry.fingerprint is not None
        }


def today() -> int:
    """The day, as an index counts them."""
    return datetime.datetime.now(datetime.UTC).date().toordinal() - datetime.date(1970, 1, 1).toordinal()


def next_index(earlier: Path | None, run: str, day: int) -> TreeIndex:
    """The index that a run starts with.

    `earlier` is a folder with the plan and the records of the run before it, whose id is `run`; `day` is today.
    FindingsError if what the earlier run uploaded cannot be read.
    """
    if earlier is None or not earlier.is_dir():
        return TreeIndex(day=day)
    before = read_index(earlier)
    trees, records = dict(before.trees), read_records(earlier)
    for kernel, record in records.items():
        if record.manifest is not None and record.complete:
            trees[kernel] = TreePlace(run, before.day, record.manifest)
    plan = read_run_plan(earlier)
    tests = read_tests(earlier)
    lacking = untested(plan, records, tests, before) if plan is not None else {}
    for test in plan.tests if plan is not None else ():
        place, told = trees.get(test.kernel), tests.get((test.kernel, test.name))
        if test.run and told is not None and not told.tree:
            trees.pop(test.kernel, None)  # its artifact was not there, so it is built once more
        elif place is not None and place.run == (test.run or run):
            passed = {name: known for name, known in place.passed.items() if name != test.name}
            if (test.kernel, test.name) not in lacking:
                tree = tree_under_test(place.manifest.digests, test.variants)
                passed[test.name] = TestPass(tree, test.inputs)
            trees[test.kernel] = msgspec.structs.replace(place, passed=passed)
    kept = {kernel: place for kernel, place in sorted(trees.items()) if day - place.day <= KEPT_DAYS}
    return TreeIndex(kept, day)


def untested(
    plan: RunPlan,
    records: Mapping[str, KernelRecord],
    tests: Mapping[tuple[str, str], TestRecord],
    index: TreeIndex,
) -> dict[tuple[str, str], str]:
    """The test legs of a run that did not pass, by kernel and name, and why. No record is no pass.

    Those of a kernel that was built and not merged are not among them.

    `index` has the trees of earlier runs, as the plan knew them.
    """
    found = {}
    for test in plan.tests:
        merged, record = records.get(test.kernel), tests.get((test.kernel, test.name))
        if test.run:
            place = index.trees.get(test.kernel)
            manifest = place.manifest if place is not None else None
        elif merged is not None and merged.complete:
            manifest = merged.manifest
        else:
            continue
        if record is None or record.attempt < plan.attempt:
            found[test.kernel, test.name] = SILENT
        elif not record.passed:
            found[test.kernel, test.name] = record.error or "it failed"
        elif manifest is None or record.tree != tree_under_test(manifest.digests, test.variants):
            found[test.kernel, test.name] = "it passed on another tree than there is now: run everything again"
    return found


def read_index(folder: Path) -> TreeIndex:
    """The index that a run was planned with, from the folder with what its jobs uploaded.

    FindingsError if it cannot be read.
    """
    found = read_uploaded(folder, INDEX_FILE, TreeIndex, "index of trees")
    return max(found, key=lambda index: (index.attempt, index.day), default=TreeIndex())
