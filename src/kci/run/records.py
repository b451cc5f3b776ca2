"""The records that the jobs of a CI run upload: failures, objects, merged kernels, tests.

Outputs of jobs cannot carry this: of the legs of a matrix, and of the kernels of a caller, only the last one's
survive. Every record is a small file of an artifact. It comes from a machine that ran a kernel's own code, so it is
read as data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from kci.config.discovery import SuppressedFinding, apply_to_tree
from kci.config.values import NAME_PATTERN
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, KciError, first_error
from kci.matrix.variants import objects_name
from kci.plan.plan import Plan
from kci.run.kernel_tests import TestReport, TestState
from kci.tree.artifacts import CiRun, find_sources
from kci.tree.manifest import Manifest
from kci.tree.verify import verify
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import read_record, require_schema
from kci.utils.walk import size_of

SCHEMA = 1
FAILURE_PREFIX = "kci-failure-"
OBJECTS_FILE = "kci-objects.json"
RECORD_FILE = "kci-record.json"
TEST_FILE = "kci-test.json"
PLAN_FILE = "kci-plan.json"

NO_RESULT_MESSAGE = "the job ended silently: it was cancelled, ran out of time, or its machine was lost"

_Shape = TypeVar("_Shape")
_Key = TypeVar("_Key")
_Attempted = TypeVar("_Attempted", "VariantFailure", "LegObjects", "KernelRecord", "TestRecord")

Text = Annotated[str, Meta(max_length=4000)]
Attempt = Annotated[int, Meta(ge=1)]


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class VariantFailure(_Record, frozen=True):
    """A variant that its leg could not build."""

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    leg: Text
    variant: Text
    attempt: Attempt
    error: Text
    """The first line that says what is wrong."""
    replay: Text
    """The command that does the same on another machine."""
    unfinished: bool = False
    """True if nothing failed: its time was over, and `error` says how much is done."""


class LegObjects(_Record, frozen=True):
    """The objects of a leg: the artifact that has them, and how many of them were not compiled."""

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    leg: Text
    attempt: Attempt
    artifact: Annotated[str, Meta(pattern=r"^objects\.[A-Za-z0-9._+%-]{1,240}\Z")]
    found: Annotated[int, Meta(ge=0)] = 0
    made: Annotated[int, Meta(ge=0)] = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What it took to compile those that were found, as far as it is known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.artifact.startswith(objects_name(self.kernel, "")):
            raise ValueError(f"{self.artifact!r} does not name an artifact of {self.kernel!r}")


class KernelRecord(_Record, frozen=True):
    """What became of one kernel: written by the job that merges it, whatever the result."""

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    attempt: Attempt
    complete: bool
    """True if the tree has all that was planned and meets the requirements."""
    present: tuple[Text, ...] = ()
    missing: tuple[Text, ...] = ()
    failures: tuple[VariantFailure, ...] = ()
    objects: tuple[LegObjects, ...] = ()
    """What its legs have kept, whatever came of them."""
    error: Text = ""
    """Why no good tree was made, apart from missing variants."""
    manifest: Manifest | None = None
    """The tree's, if there is one."""
    sizes: Annotated[dict[Text, Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=2000)] = {}
    """The bytes of each variant in the tree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.manifest is not None and self.manifest.kernel != self.kernel:
            raise ValueError(f"the record of {self.kernel!r} has the tree of {self.manifest.kernel!r}")


class TestRecord(_Record, frozen=True):
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
    variants: tuple[TestReport, ...] = ()


def ci_run() -> CiRun:
    """The CI run that this process is part of, as far as its environment says: of GitLab, or of GitHub."""
    run, number = ("KCI_RUN", "KCI_ATTEMPT") if "KCI_RUN" in os.environ else ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT")
    text = os.environ.get(number, "")
    attempt = int(text) if text.isdecimal() and len(text) < 6 and int(text) else None
    return CiRun(os.environ.get(run, ""), attempt)


def record_tests(
    kernel: str, leg: str, tree: str, reports: Sequence[TestReport], error: str, replay: str = ""
) -> TestRecord:
    """What came of the tests of a leg; `error` is empty if it is good, and `replay` shows the same elsewhere."""
    return TestRecord(
        kernel=kernel,
        leg=leg,
        attempt=ci_run().attempt or 1,
        passed=not error,
        tested=tuple(report.variant for report in reports if report.state is not TestState.NOT_RUN),
        error=error[:4000],
        replay=replay if error else "",
        tree=tree,
        variants=tuple(msgspec.structs.replace(report, output="") for report in reports),
    )


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write what a job uploads besides what it builds, whole or not at all. ClientError if it cannot be written."""
    write_atomic(path, msgspec.json.encode(record))


def write_failure(folder: Path, failure: VariantFailure) -> None:
    """Write why a variant failed, beside the artifacts of its leg."""
    write_record(folder / f"{FAILURE_PREFIX}{failure.variant}.json", failure)


def read_uploaded(folder: Path, name: str, shape: type[_Shape], what: str = "a record of a run") -> Iterator[_Shape]:
    """What jobs have uploaded below a folder under a name, which may be a pattern.

    FindingsError if a file cannot be read, or is no such record.
    """
    for path in sorted(folder.rglob(name)):
        try:
            yield read_record(path, shape)
        except OSError as error:
            raise FindingsError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise FindingsError(f"{path} is not {what}: {error}") from error


def read_failures(folders: Iterable[Path], kernel: str) -> list[VariantFailure]:
    """The failures of a kernel's variants; of several of one variant the newest. Raises as `read_uploaded`."""
    found = [item for folder in folders for item in read_uploaded(folder, f"{FAILURE_PREFIX}*.json", VariantFailure)]
    by_variant = newest((item for item in found if item.kernel == kernel), lambda item: item.variant)
    return [failure for _, failure in sorted(by_variant.items())]


def read_objects(folders: Iterable[Path], kernel: str) -> tuple[LegObjects, ...]:
    """What a kernel's legs have kept; of several attempts of one the newest. Raises as `read_uploaded`."""
    found = [item for folder in folders for item in read_uploaded(folder, OBJECTS_FILE, LegObjects)]
    by_leg = newest((item for item in found if item.kernel == kernel), lambda item: item.leg)
    return tuple(item for _, item in sorted(by_leg.items()))


def newest(records: Iterable[_Attempted], key: Callable[[_Attempted], _Key]) -> dict[_Key, _Attempted]:
    """Records by what they are about; of several about one thing that of the newest attempt."""
    found: dict[_Key, _Attempted] = {}
    for record in records:
        before = found.setdefault(key(record), record)
        if before.attempt < record.attempt:
            found[key(record)] = record
    return found


def verify_merged(
    into: Path,
    trees: Mapping[Path, Manifest],
    planned: Plan | None,
    suppressed: Callable[[SuppressedFinding], None],
) -> list[Diagnostic]:
    """Verify what was merged. No kci.toml is there: the plan has what it suppresses in trees.

    Args:
        into: the tree, or the folder of several.
        trees: each tree's manifest, by the tree's directory.
        planned: what the trees were merged for.
        suppressed: takes the findings that do not count.
    """
    found = verify(into)
    for place, manifest in trees.items():
        kernel = planned.kernel(manifest.kernel) if planned is not None else None
        if planned is not None and kernel is not None and kernel.tree:
            found = apply_to_tree(found, planned.suppressions, str(place), kernel.tree, suppressed)
    return found


def error_of(problem: KciError) -> str:
    """Why no tree was made; empty if variants are missing, which have failures of their own that say more."""
    return "" if {item.rule for item in problem.diagnostics} == {"KCI606"} else first_error(problem)


def kernel_record(
    kernel: str, artifacts: Sequence[Path], into: Path, manifest: Manifest | None, error: str = ""
) -> KernelRecord:
    """What became of a kernel, by its manifest if it was merged, and by what its legs left.

    Args:
        kernel: its name.
        artifacts: the folders of what its legs left.
        into: its tree, which is none of them.
        manifest: of the tree, if one was made.
        error: why that is no good tree.
    """
    failures = read_failures(artifacts, kernel)
    present = tuple(item.variant for item in manifest.present) if manifest else _there(kernel, artifacts, into)
    return KernelRecord(
        kernel=kernel,
        attempt=ci_run().attempt or 1,
        complete=bool(manifest and manifest.complete) and not error,
        present=present,
        missing=manifest.missing if manifest else (),
        failures=tuple(failure for failure in failures if failure.variant not in present),
        objects=read_objects(artifacts, kernel),
        error=error,
        manifest=manifest if manifest and not error else None,
        sizes={name: size_of(into / name) for name in present} if manifest else {},
    )


def _there(kernel: str, artifacts: Sequence[Path], into: Path) -> tuple[str, ...]:
    try:
        found = [source.leg for source in find_sources(artifacts, skip=into)]
    except KciError:
        return ()
    return tuple(sorted({leg.variant for leg in found if leg.kernel == kernel}))
