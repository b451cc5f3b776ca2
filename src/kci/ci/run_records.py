"""What the jobs of a CI run upload besides what they build: why a variant failed, and what became of a kernel.

Outputs of jobs cannot carry this: of the legs of a matrix, and of the kernels of a caller, only the last one's
survive. Every record is a small file of an artifact. It comes from a machine that ran a kernel's own code, so it is
read as data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from kci.config.discover import FaultyKernel
from kci.config.values import LeaveOut
from kci.errors import FindingsError
from kci.files.bounded_json import read_record, require_schema
from kci.plan.plan import KernelPlan, LeftOut, Leg, Skipped, TestLeg
from kci.tree.artifacts import CiRun
from kci.tree.manifest import Manifest
from kci.tree.metadata import NAME_PATTERN

SCHEMA = 1
FAILURE_PREFIX = "kci-failure-"
RECORD_FILE = "kci-record.json"
TEST_FILE = "kci-test.json"
PLAN_FILE = "kci-plan.json"

SILENT = "the job ended silently: it was cancelled, ran out of time, or its machine was lost"


_Shape = TypeVar("_Shape")

Text = Annotated[str, Meta(max_length=4000)]
Attempt = Annotated[int, Meta(ge=1)]


class VariantFailure(msgspec.Struct, frozen=True):
    """A variant that its leg could not build."""

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    leg: Text
    variant: Text
    attempt: Attempt
    error: Text
    """The first line that says what is wrong."""
    replay: Text
    """The command that does the same on another machine."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class KernelRecord(msgspec.Struct, frozen=True):
    """What became of one kernel: written by the job that merges it, whatever the result."""

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    attempt: Attempt
    complete: bool
    """Whether the tree has all that was planned and meets the requirements."""
    present: tuple[Text, ...] = ()
    missing: tuple[Text, ...] = ()
    failures: tuple[VariantFailure, ...] = ()
    error: Text = ""
    """Why no good tree was made, apart from missing variants."""
    manifest: Manifest | None = None
    """The tree's, if there is one."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        if self.manifest is not None and self.manifest.kernel != self.kernel:
            raise ValueError(f"the record of {self.kernel!r} has the tree of {self.manifest.kernel!r}")


class TestRecord(msgspec.Struct, frozen=True):
    """What came of testing a kernel's tree on one kind of machine."""

    __test__ = False  # pytest would take it for a test

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    leg: Text
    """The name of the test's leg in the plan."""
    attempt: Attempt
    passed: bool
    tested: tuple[Text, ...] = ()
    """The variants that the machine could load."""
    error: Text = ""
    replay: Text = ""
    tree: Text = ""
    """What was tested; see `tree_under_test`."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class RunPlan(msgspec.Struct, frozen=True):
    """What the gate needs to know of the plan's JSON (`kci plan --format json`), and the attempt that made it."""

    schema: int
    tier: str
    kernels: tuple[KernelPlan, ...]
    legs: tuple[Leg, ...]
    left_out: tuple[LeftOut, ...]
    faulty: tuple[FaultyKernel, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    tests: tuple[TestLeg, ...] = ()
    leave_out: LeaveOut | None = None
    attempt: Attempt = 1

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


def ci_run() -> CiRun:
    """The run that this process is part of, as far as its environment says: one of `kci run --engine`, or of GitHub."""
    run, number = ("KCI_RUN", "KCI_ATTEMPT") if "KCI_RUN" in os.environ else ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT")
    text = os.environ.get(number, "")
    attempt = int(text) if text.isdecimal() and len(text) < 6 and int(text) else None
    return CiRun(os.environ.get(run, ""), attempt)


def write_failure(folder: Path, failure: VariantFailure) -> Path:
    """Write why a variant failed, beside the artifacts of its leg."""
    path = folder / f"{FAILURE_PREFIX}{failure.variant}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(failure))
    return path


def read_failures(folders: Iterable[Path], kernel: str) -> list[VariantFailure]:
    """The failures of a kernel's variants; of several of one variant the newest.

    Raises:
        FindingsError: one cannot be read.
    """
    newest: dict[str, VariantFailure] = {}
    for folder in folders:
        for path in sorted(folder.rglob(f"{FAILURE_PREFIX}*.json")) if folder.is_dir() else ():
            failure = _read(path, VariantFailure)
            before = newest.get(failure.variant)
            if failure.kernel == kernel and (before is None or before.attempt < failure.attempt):
                newest[failure.variant] = failure
    return [newest[name] for name in sorted(newest)]


def write_record(path: Path, record: KernelRecord | TestRecord) -> None:
    """Write what became of a kernel, or of a test."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(record))


def read_records(folder: Path) -> dict[str, KernelRecord]:
    """The records below a folder by kernel; of several of one kernel the newest.

    Raises:
        FindingsError: one cannot be read.
    """
    newest: dict[str, KernelRecord] = {}
    for path in sorted(folder.rglob(RECORD_FILE)):
        record = _read(path, KernelRecord)
        if record.kernel not in newest or newest[record.kernel].attempt < record.attempt:
            newest[record.kernel] = record
    return newest


def read_tests(folder: Path) -> dict[tuple[str, str], TestRecord]:
    """The records of tests below a folder by kernel and leg; of several of one leg the newest.

    Raises:
        FindingsError: one cannot be read.
    """
    newest: dict[tuple[str, str], TestRecord] = {}
    for path in sorted(folder.rglob(TEST_FILE)):
        record = _read(path, TestRecord)
        key = (record.kernel, record.leg)
        if key not in newest or newest[key].attempt < record.attempt:
            newest[key] = record
    return newest


def read_run_plan(folder: Path) -> RunPlan | None:
    """The newest plan below a folder; None if there is none.

    Raises:
        FindingsError: one cannot be read.
    """
    plans = [_read(path, RunPlan) for path in sorted(folder.rglob(PLAN_FILE))]
    return max(plans, key=lambda plan: plan.attempt, default=None)


def _read(path: Path, shape: type[_Shape]) -> _Shape:
    try:
        return read_record(path, shape)
    except OSError as error:
        raise FindingsError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FindingsError(f"{path} is no record of a run: {error}") from error
