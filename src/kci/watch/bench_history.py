"""What benchmarks measured, in the reference's form with what kci adds, and the history of it.

A record is one run of a kernel's benchmarks on one variant and machine, written by `kci bench`. It lies in the folder
`benchmarks` of a history, one file for each, and nothing of it is trusted when it is read.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.diagnostics import Diagnostic, finding
from kci.files.bounded_json import read_record, require_schema
from kci.tree.metadata import NAME_PATTERN
from kci.watch.history import BENCH_SUFFIX, Word

SCHEMA = 1
FOLDER = "benchmarks"
"""Of a history: its records of benchmarks."""

MOST_WORKLOADS = 500
_MOST_BYTES = 1024 * 1024

Milliseconds = Annotated[float, Meta(gt=0, le=1e9)]
_Spread = Annotated[float, Meta(ge=0, le=1e9)]
_Ratio = Annotated[float, Meta(gt=0, le=1e12)]
_Count = Annotated[int, Meta(ge=0, le=10**9)]
_Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{0,300}\Z")]
_Digest = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
WorkloadName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,199}\Z")]
"""`Class.name`, of ASCII letters: it goes into tables and pages as it is."""


class Verdict(enum.StrEnum):
    """What a comparison with another build says."""

    SLOWER = "slower"
    SAME = "same"
    FASTER = "faster"
    UNCLEAR = "no verdict"
    """The noise is larger than what is to be told apart."""


class TimeChange(msgspec.Struct, frozen=True):
    """How many times as long a workload takes as with the other build, between what it surely is."""

    ratio: _Ratio
    low: _Ratio
    high: _Ratio
    verdict: Verdict


class TimingResults(msgspec.Struct, frozen=True):
    """The times of the calls of a workload when it is warm, as the reference sums them up."""

    mean_ms: Milliseconds
    std_ms: _Spread
    min_ms: Milliseconds
    max_ms: Milliseconds
    q1_ms: Milliseconds
    q3_ms: Milliseconds
    iqr_ms: _Spread
    outliers: _Count
    iterations: Annotated[int, Meta(ge=1, le=10**9)]


class WorkloadFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What kci adds to a workload."""

    median_ms: Milliseconds
    cold_ms: Milliseconds
    """The median of the first calls in fresh processes."""
    reference_ms: Milliseconds | None = None
    """What its `verify_` method takes, once."""
    change: TimeChange | None = None
    """Against the other build, if there was one that has the workload."""


class WorkloadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One workload."""

    workload: WorkloadName
    timing: TimingResults = msgspec.field(name="timingResults")
    kci: WorkloadFacts
    verified: bool | None = None


class MachineInfo(msgspec.Struct, frozen=True):
    """The machine, with the reference's keys."""

    gpu: _Text
    backend: _Text
    torch: _Text = msgspec.field(name="pytorchVersion")
    os: _Text
    cpu: _Text


class BenchFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What kci adds to a run of benchmarks."""

    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    variant: Word
    digest: _Digest
    """`directory_digest` of the variant's files."""
    at: str
    """When, as ISO 8601 with an offset."""
    rounds: _Count
    threads: _Count = 0
    driver: _Text = ""
    against: _Text = ""
    """Where the other build is from."""
    against_digest: _Digest = ""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        if datetime.fromisoformat(self.at).tzinfo is None:
            raise ValueError("`at` has no offset from UTC")


class BenchRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One run of a kernel's benchmarks, as `kernels benchmark --output` writes it, and `kci`."""

    results: Annotated[tuple[WorkloadRecord, ...], Meta(min_length=1, max_length=MOST_WORKLOADS)]
    machine_info: MachineInfo
    kernel_commit_sha: _Text
    benchmark_script_sha: _Digest
    kci: BenchFacts
    benchmark_script_path: _Text = FOLDER

    @property
    def device(self) -> str:
        """What it computed on."""
        gpu = self.machine_info.gpu
        return self.machine_info.cpu if gpu == NO_GPU else gpu


NO_GPU = "N/A"
"""As the reference says it."""


def bench_file(record: BenchRecord) -> tuple[str, bytes]:
    """The name in a history, and the content of the file that a record is."""
    raw = msgspec.json.encode(record) + b"\n"
    day = re.sub("[^0-9]", "", record.kci.at[:19])
    return f"{FOLDER}/{day}-{record.kci.kernel}-{hashlib.sha256(raw).hexdigest()[:16]}.json", raw


def results_of_benches(places: Iterable[Path], report: Callable[[Diagnostic], None]) -> list[BenchRecord]:
    """The records among the results of a run, files and folders; what is wrong with others goes to `report`."""
    found = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return list(_read(filter(lambda path: path.name.endswith(BENCH_SUFFIX), found), report))


def _read(files: Iterable[Path], report: Callable[[Diagnostic], None]) -> Iterator[BenchRecord]:
    for path in files:
        try:
            yield read_record(path, BenchRecord, _MOST_BYTES)
        except (OSError, ValueError) as error:
            message = f"not a record of benchmarks, and passed over: {error}"
            report(finding("KCI801", message, path=str(path), hint="`kci bench --record` writes one"))


def benches_of(history: Path, report: Callable[[Diagnostic], None]) -> list[BenchRecord]:
    """The records of a history, oldest first; nothing where it has none."""
    found = _read(sorted((history / FOLDER).glob("*.json")), report)
    return sorted(found, key=lambda record: (datetime.fromisoformat(record.kci.at), record.kci.kernel))
