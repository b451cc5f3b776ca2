"""A kernel's own benchmarks on built variants, in the reference's form: the classes of `benchmarks/benchmark*.py`.

Each round loads a copy of the variant in a fresh process with the real loader (`bench_script.py`). With another build
of the same variant beside it the calls of both alternate, and what differs is told from noise (`bench_numbers.py`).
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kci.errors import FindingsError, one_line
from kci.files.bounded_json import read_record
from kci.matrix.names import parse_variant_name
from kci.plurals import count
from kci.processes.process import Finished, Log, guarded, silent
from kci.run.bench_numbers import LEAST_ROUNDS, change_of, summed_up
from kci.run.kernel_tests import (
    Loader,
    TestReport,
    TestState,
    Workload,
    loader_environment,
    python_path,
)
from kci.tree.digest import directory_digest, file_hashes
from kci.tree.metadata import FILE_NAME, read_metadata
from kci.verify.load_rules import LoaderEnvironment
from kci.watch.bench_history import (
    MOST_WORKLOADS,
    NO_GPU,
    BenchFacts,
    BenchRecord,
    MachineInfo,
    TimeChange,
    Verdict,
    WorkloadFacts,
    WorkloadName,
    WorkloadRecord,
)

_SCRIPT = Path(__file__).with_name("bench_script.py")
_SCRIPTS = "benchmark*.py"
_DEVICES = {"rocm": "cuda", "metal": "mps", "cann": "npu"}
"""What torch calls the device of a backend, where that is another word."""

_BACKENDS = {"cpu": "CPU", "xpu": "XPU", "metal": "MPS", "cann": "NPU"}
_BLOCK, _WARMUP = 5, 10
_SECONDS = 10
"""For a workload in one round; then it has as many pairs of blocks as fitted."""

_MORE = 2
"""So often are rounds made again for what has no verdict. A claim needs its whole interval, so more looks are safe."""

_TAIL = 15
_OURS, _OTHER = "0", "1"
_Nanoseconds = Annotated[int, Meta(ge=1, le=10**15)]


class Effort(msgspec.Struct, frozen=True):
    """How much is measured."""

    rounds: int = 6
    """So many fresh processes for each side."""
    iterations: int = 100
    """Of each workload in a round, as far as ten seconds allow."""
    limit: int = 1800
    """Seconds for all of a variant's benchmarks."""


class BenchOutcome(msgspec.Struct, frozen=True):
    """What came of a variant's benchmarks."""

    workloads: tuple[WorkloadRecord, ...]
    errors: tuple[str, ...]
    """Workloads of which there is no time, and why."""
    alone: Mapping[str, str]
    """Workloads that failed with the other build, and why."""
    commit: str
    """As the reference reads it off the name of the kernel."""
    scripts: str
    """A hash of the scripts, as the reference's."""
    rounds: int = 0
    """So many at most."""


class _Round(msgspec.Struct, frozen=True):
    cold: dict[str, _Nanoseconds]
    blocks: list[dict[str, Annotated[list[_Nanoseconds], Meta(min_length=1)]]]
    errors: dict[str, str]
    verified: bool | None
    reference: _Nanoseconds | None


class _Answer(msgspec.Struct, frozen=True):
    workloads: dict[WorkloadName, list[_Round]]
    commits: list[str]
    error: str


def run_benchmarks(
    variant_dirs: Sequence[Path],
    sources: Path,
    loader: Loader,
    device: str,
    log: Log,
    *,
    cache: Path,
    effort: Effort,
    extra: Sequence[str] = (),
) -> BenchOutcome:
    """Run the benchmarks of a kernel on a variant, and on another build of it at the same time.

    Args:
        variant_dirs: the sealed variant, and if there is one the other build.
        sources: the directory with the `benchmarks` folder.
        loader: the Python that loads both.
        device: what torch calls the device.
        log: takes lines of progress.
        cache: where packages are kept.
        effort: how much is measured.
        extra: packages that the benchmarks import.

    Raises:
        FindingsError: there are no benchmarks, or they did not end as they should.
    """
    scripts = sorted((sources / "benchmarks").glob(_SCRIPTS))
    if not scripts:
        hint = "write benchmarks/benchmark.py with a class of kernels.benchmark.Benchmark; `kci init` shows one"
        raise FindingsError(f"{sources} has no {Path('benchmarks', _SCRIPTS)}", hint=hint)
    metadata = read_metadata(variant_dirs[0] / FILE_NAME)
    own = loader.install(cache, log, extra)
    with tempfile.TemporaryDirectory(prefix="kci-benchmark-") as name:
        folder = Path(name)
        sides = [_copied(directory, sources, folder / str(number)) for number, directory in enumerate(variant_dirs)]
        asked, answer = folder / "request.json", folder / "answer.json"
        request = msgspec.structs.asdict(effort) | {"sides": [side | {"device": device} for side in sides], "only": []}
        request |= {"block": _BLOCK, "warmup": _WARMUP, "seconds": _SECONDS, "most": MOST_WORKLOADS}
        log(f"running the benchmarks of {metadata.name} on {variant_dirs[0].name}")
        command = [str(loader.python), str(_SCRIPT), str(asked), str(answer)]
        environment = loader_environment(folder / _OURS, (), metadata) | python_path(own)

        def measured() -> _Answer:
            asked.write_bytes(msgspec.json.encode(request))
            done = guarded(command, silent, cwd=folder, env=environment)
            said = _answered(done, answer, metadata.name)
            if said.error:
                raise _failed(metadata.name, said.error, done)
            return said

        begun = monotonic()
        found = measured()
        took = monotonic() - begun
        for _ in range(_MORE):
            left = int(effort.limit - (monotonic() - begun))
            request |= {"only": _unclear(found), "limit": left}
            if not request["only"] or effort.rounds < LEAST_ROUNDS or left < 2 * took:
                break
            log(f"no verdict yet on {count(len(request['only']), 'workload')}: {effort.rounds} more rounds")
            more = measured().workloads
            for workload in request["only"]:
                found.workloads[workload].extend(more.get(workload, []))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in scripts)).hexdigest()
    good = {name: rounds for name, rounds in found.workloads.items() if not _errors(rounds, _OURS)}
    return BenchOutcome(
        tuple(_workload(name, rounds) for name, rounds in good.items()),
        tuple(f"{name}: {_errors(rounds, _OURS)}" for name, rounds in found.workloads.items() if name not in good),
        {name: error for name, rounds in good.items() if (error := _errors(rounds, _OTHER))},
        found.commits[0][:300],
        digest,
        max(map(len, found.workloads.values()), default=0),
    )


def _copied(variant_dir: Path, sources: Path, place: Path) -> dict[str, Any]:
    """A copy of a variant, alone, and of the benchmarks: nothing that they write gets into a tree."""
    shutil.copytree(variant_dir, place / "build" / variant_dir.name)
    shutil.copytree(sources / "benchmarks", place / "benchmarks", symlinks=True)
    backend = parse_variant_name(variant_dir.name).backend
    return {"tree": str(place / "build"), "scripts": str(place / "benchmarks"), "backend": backend}


def _answered(done: Finished, answer: Path, kernel: str) -> _Answer:
    try:
        return read_record(answer, _Answer)
    except OSError:
        raise _failed(kernel, f"they ended with exit code {done.code} and no result", done) from None
    except ValueError as error:
        raise _failed(kernel, f"their result is not one that kci takes: {one_line(str(error))}", done) from None


def _failed(kernel: str, why: str, done: Finished) -> FindingsError:
    said = "\n".join(line[:300] for line in done.output.splitlines()[-_TAIL:])
    return FindingsError(f"the benchmarks of {kernel} failed: {one_line(why)}" + (f"\n{said}" if said else ""))


def _errors(rounds: Sequence[_Round], side: str) -> str:
    return one_line(next((item.errors[side] for item in rounds if side in item.errors), ""))


def _change(rounds: Sequence[_Round]) -> TimeChange | None:
    pairs = [
        [statistics.median(block[_OURS]) / statistics.median(block[_OTHER]) for block in item.blocks if _OTHER in block]
        for item in rounds
    ]
    return change_of(pairs) if all(pairs) else None


def _unclear(found: _Answer) -> list[str]:
    changes = {name: _change(rounds) for name, rounds in found.workloads.items() if not _errors(rounds, _OURS)}
    return [name for name, change in changes.items() if change is not None and change.verdict is Verdict.UNCLEAR]


def _workload(name: str, rounds: Sequence[_Round]) -> WorkloadRecord:
    times = [time / 1e6 for item in rounds for block in item.blocks for time in block[_OURS]]
    reference = next((item.reference / 1e6 for item in rounds if item.reference is not None), None)
    facts = WorkloadFacts(
        median_ms=statistics.median(times),
        cold_ms=statistics.median(item.cold[_OURS] / 1e6 for item in rounds),
        reference_ms=reference,
        change=_change(rounds),
    )
    return WorkloadRecord(name, summed_up(times), facts, rounds[0].verified)


def torch_device(variant: str, environment: LoaderEnvironment) -> str:
    """What torch calls the device that a variant computes on."""
    backend = parse_variant_name(variant).backend
    backend = environment.backend if backend == "universal" else backend
    return _DEVICES.get(backend, backend)


def bench_record(
    measured: BenchOutcome,
    variant_dir: Path,
    environment: LoaderEnvironment,
    other: Path | None,
    label: str,
) -> BenchRecord:
    """What was measured, with the machine that a loader's `probe` has seen; `other` came from where `label` says."""
    metadata = read_metadata(variant_dir / FILE_NAME)
    on_cpu = torch_device(variant_dir.name, environment) == "cpu"
    backend = "cpu" if on_cpu else environment.backend
    toolkit = {"cuda": f"CUDA {environment.cuda}", "rocm": f"ROCm {environment.rocm}"}
    return BenchRecord(
        results=measured.workloads,
        machine_info=MachineInfo(
            gpu=NO_GPU if on_cpu else environment.device,
            backend=toolkit.get(backend) or _BACKENDS.get(backend, backend),
            torch=environment.torch,
            os=f"{platform.system()} {platform.release()}",
            cpu=environment.cpu,
        ),
        kernel_commit_sha=measured.commit,
        benchmark_script_sha=measured.scripts,
        kci=BenchFacts(
            kernel=metadata.name,
            version=metadata.version,
            variant=variant_dir.name,
            digest=directory_digest(file_hashes(variant_dir)),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            rounds=measured.rounds,
            threads=environment.threads,
            driver=environment.driver,
            against=label,
            against_digest=directory_digest(file_hashes(other)) if other is not None else "",
        ),
    )


def with_benchmarks(
    report: TestReport, variant_dir: Path, sources: Path | None, loader: Loader, device: str, log: Log, cache: Path
) -> TestReport:
    """A report with the kernel's benchmarks; it fails if they fail. A kernel without benchmarks has none.

    Their `verify_` methods compare the variant's numbers with torch's.
    """
    if report.state is not TestState.PASSED or sources is None:
        return report
    if not any((sources / "benchmarks").glob(_SCRIPTS)):
        log(f"{report.kernel} has no benchmarks")
        return report
    try:
        found = run_benchmarks(
            [variant_dir], sources, loader, device, log, cache=cache, effort=Effort(rounds=1, iterations=50)
        )
        error = "\n".join(found.errors)
    except FindingsError as problem:
        error = problem.message
    if error:
        return msgspec.structs.replace(report, state=TestState.FAILED, output=error)
    workloads = (
        Workload(item.workload, item.timing.mean_ms, item.timing.min_ms, item.timing.iterations, item.verified)
        for item in found.workloads
    )
    return msgspec.structs.replace(report, workloads=tuple(workloads))
