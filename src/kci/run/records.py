"""Records that CI jobs upload as artifacts, because job outputs of a matrix overwrite each other.

Untrusted data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kci.config.discovery import SuppressedFinding, drop_suppressed_in_tree
from kci.config.values import NAME_PATTERN
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, KciError, first_error
from kci.matrix.variants import objects_name
from kci.plan.plan import Plan
from kci.run.kernel_tests import Natural, TestReport, TestState, Text
from kci.tree.artifacts import CiRun, find_sources
from kci.tree.manifest import Manifest
from kci.tree.merge import merge
from kci.tree.verify import verify
from kci.utils.atomic import Log, write_atomic
from kci.utils.bounded_json import VersionedRecord, read_record
from kci.utils.frozen import Frozen
from kci.utils.walk import size_of

FAILURE_PREFIX = "kci-failure-"
OBJECTS_FILE = "kci-objects.json"
RECORD_FILE = "kci-record.json"
TEST_FILE = "kci-test.json"
PLAN_FILE = "kci-plan.json"

NO_RESULT_MESSAGE = (
    "the job ended silently: it was cancelled, ran out of time, or its machine was lost"
)

_Shape = TypeVar("_Shape")
_Key = TypeVar("_Key")
_Attempted = TypeVar("_Attempted", bound=Any)  # has `attempt`

NameOfKernel = Annotated[str, Meta(pattern=NAME_PATTERN)]
Attempt = Annotated[int, Meta(ge=1)]


class VariantFailure(VersionedRecord):
    """A variant whose build failed."""

    kernel: NameOfKernel
    leg: Text
    variant: Text
    attempt: Attempt
    error: Text
    """First line of the error."""
    replay: Text
    """Command that reproduces it."""
    unfinished: bool = False
    """True for a timeout; `error` tells the progress."""


class LegObjects(VersionedRecord):
    """The object pack of a leg."""

    kernel: NameOfKernel
    leg: Text
    attempt: Attempt
    artifact: Annotated[str, Meta(pattern=r"^objects\.[A-Za-z0-9._+%-]{1,240}\Z")]
    found: Natural = 0
    made: Natural = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Compile time of the reused objects, as far as known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.artifact.startswith(objects_name(self.kernel, "")):
            raise ValueError(f"{self.artifact!r} does not name an artifact of {self.kernel!r}")


class KernelRecord(VersionedRecord):
    """The result of merging one kernel."""

    kernel: NameOfKernel
    attempt: Attempt
    complete: bool
    """True if the tree has every planned variant and passes verification."""
    present: tuple[Text, ...] = ()
    missing: tuple[Text, ...] = ()
    failures: tuple[VariantFailure, ...] = ()
    objects: tuple[LegObjects, ...] = ()
    error: Text = ""
    """Reason for a bad tree, apart from missing variants."""
    manifest: Manifest | None = None
    sizes: Annotated[dict[Text, Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=2000)] = {}
    """Bytes per variant."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.manifest and self.manifest.kernel != self.kernel:
            raise ValueError(
                f"the record of {self.kernel!r} has the tree of {self.manifest.kernel!r}"
            )


class TestRecord(VersionedRecord):
    """The result of a test leg."""

    __test__ = False  # for pytest

    kernel: NameOfKernel
    leg: Text
    """Name of the leg in the plan."""
    attempt: Attempt
    passed: bool
    tested: tuple[Text, ...] = ()
    """Variants that the machine can load."""
    error: Text = ""
    replay: Text = ""
    tree: Text = ""
    """See `tree_under_test`."""
    variants: tuple[TestReport, ...] = ()


def ci_run() -> CiRun:
    """The CI run of this process, from GitLab's or GitHub's variables."""
    run, number = "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"
    if "KCI_RUN" in os.environ:
        run, number = "KCI_RUN", "KCI_ATTEMPT"
    text = os.environ.get(number, "")
    attempt = int(text) if text.isdecimal() and len(text) < 6 and int(text) else None
    return CiRun(os.environ.get(run, ""), attempt)


def record_tests(
    kernel: str, leg: str, tree: str, reports: Sequence[TestReport], error: str, replay: str = ""
) -> TestRecord:
    """Make the record of a test leg; `error` is empty for a pass."""
    return TestRecord(
        kernel=kernel,
        leg=leg,
        attempt=ci_run().attempt or 1,
        passed=not error,
        tested=tuple(report.variant for report in reports if report.state is not TestState.NOT_RUN),
        error=error[:4000],
        replay=replay if error else "",
        tree=tree,
        variants=tuple(replace(report, output="") for report in reports),
    )


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record atomically. Raises ClientError."""
    write_atomic(path, msgspec.json.encode(record))


def write_failure(folder: Path, failure: VariantFailure) -> None:
    """Write a failure beside the artifacts of its leg."""
    write_record(folder / f"{FAILURE_PREFIX}{failure.variant}.json", failure)


def read_uploaded(folder: Path, name: str, shape: type[_Shape]) -> Iterator[_Shape]:
    """Read uploaded files by name or pattern. Raises FindingsError for an unreadable one."""
    for path in sorted(folder.rglob(name)):
        try:
            yield read_record(path, shape)
        except OSError as error:
            raise FindingsError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise FindingsError(f"{path} is not a record of a run: {error}") from error


def read_failures(folders: Iterable[Path], kernel: str) -> list[VariantFailure]:
    """The newest failure per variant of a kernel. Errors as `read_uploaded`."""
    return _newest_of(kernel, folders, f"{FAILURE_PREFIX}*.json", VariantFailure, "variant")


def _newest_of(
    kernel: str, folders: Iterable[Path], name: str, shape: type[_Attempted], key: str
) -> list[_Attempted]:
    records = (item for folder in folders for item in read_uploaded(folder, name, shape))
    newest = newest_by_key((item for item in records if item.kernel == kernel), attrgetter(key))
    return [newest[of] for of in sorted(newest)]


def newest_by_key(
    records: Iterable[_Attempted], key: Callable[[_Attempted], _Key]
) -> dict[_Key, _Attempted]:
    """Keep the newest attempt per key."""
    return {key(record): record for record in sorted(records, key=lambda record: record.attempt)}


def kernel_record(
    kernel: str, artifacts: Sequence[Path], into: Path, manifest: Manifest | None, error: str = ""
) -> KernelRecord:
    """Make the record of a kernel.

    `into` is its tree and not one of `artifacts`; `error` explains a bad tree.
    """
    failures, uploaded = read_failures(artifacts, kernel), set[str]()
    if not manifest:
        with suppress(KciError):
            legs = [source.leg for source in find_sources(artifacts, skip=into)]
            uploaded = {leg.variant for leg in legs if leg.kernel == kernel}
    present = tuple(manifest.digests if manifest else sorted(uploaded))
    return KernelRecord(
        kernel=kernel,
        attempt=ci_run().attempt or 1,
        complete=bool(manifest and manifest.complete and not manifest.unloaded) and not error,
        present=present,
        missing=manifest.missing if manifest else (),
        failures=tuple(failure for failure in failures if failure.variant not in present),
        objects=tuple(_newest_of(kernel, artifacts, OBJECTS_FILE, LegObjects, "leg")),
        error=error,
        manifest=manifest if manifest and not error else None,
        sizes={name: size_of(into / name) for name in present} if manifest else {},
    )


class MergeJob(Frozen):
    """A merge whose result the gate judges."""

    artifacts: Sequence[Path]
    into: Path
    planned: Plan | None
    kernel: str | None
    record: Path | None
    """The file for the record of the kernel."""

    def merge(self, *, allow_partial: bool, log: Log) -> tuple[list[Manifest], list[Diagnostic]]:
        """Merge the artifacts, with warnings; KciError for missing variants or a conflict."""
        warnings: list[Diagnostic] = []
        merged = merge(
            self.artifacts,
            self.into,
            self.planned,
            allow_partial=allow_partial,
            kernel=self.kernel,
            run=ci_run(),
            log=log,
            report=warnings.append,
        )
        return merged, warnings

    def verify(
        self, trees: Mapping[Path, Manifest]
    ) -> tuple[list[Diagnostic], list[SuppressedFinding]]:
        """The findings about merged trees, and those that kci.toml suppresses, as the
        plan knows.
        """
        findings, suppressed = verify(self.into), list[SuppressedFinding]()
        for place, manifest in trees.items():
            if self.planned and (kernel := self.planned.kernel(manifest.kernel)) and kernel.tree:
                findings = drop_suppressed_in_tree(
                    findings, self.planned.suppressions, str(place), kernel.tree, suppressed.append
                )
        return findings, suppressed

    def write_record(self, manifest: Manifest | None, error: KciError | str = "") -> None:
        """Write what became of the kernel.

        Missing variants are no error: they have failures of their own.
        """
        if isinstance(error, KciError):
            lacking = {item.rule for item in error.diagnostics} == {"KCI606"}
            error = "" if lacking else first_error(error)
        if self.kernel is not None and self.record:
            record = kernel_record(self.kernel, self.artifacts, self.into, manifest, error)
            write_record(self.record, record)


def unmet(code: int) -> str:
    """The error of a tree that does not pass verification; empty for one that does."""
    return f"the merged tree does not meet the requirements (exit code {code})" if code else ""
