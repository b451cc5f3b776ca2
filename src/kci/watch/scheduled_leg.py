"""The legs of a scheduled run: what became of each is a result, and never fails its job.

A variant is built once and loaded with every torch that it promises. Where a machine with the hardware is lent, what
was built elsewhere is loaded and tested there; that is another leg than the build. A machine that is lost leaves no
result, and its leg stays what it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kci.build.process.run import Log
from kci.config.reader import Kernel
from kci.errors import BuildFailedError, FindingsError, KciError, MissingToolError, UnfinishedBuildError, first_error
from kci.matrix.variants import parse_variant_name
from kci.plan.plan import Plan, Role
from kci.plan.workspace import Workspace
from kci.run.build_leg import LegRequest, build_leg
from kci.run.kernel_tests import TestReport, TestState, probe, run_kernel_tests, why_incompatible
from kci.tree.artifacts import find_sources, newest
from kci.tree.pack import unpack
from kci.utils.atomic import write_atomic
from kci.watch.history import HARDWARE, LegOutcome, LegResult

MOST = 200
"""So many jobs look again at most; what is left is a suspect until the next run."""


def second_look(plan: Plan, suspects: Iterable[str]) -> Plan:
    """The jobs for some legs, by their keys in the history: those that built them, and those that tested them.

    There are at most `MOST` of each kind. What is compiled in parts is not among them: the next run is its second look.
    """
    built: set[tuple[str, str]] = set()
    tested: set[tuple[str, str]] = set()
    for key in suspects:
        kernel, variant, system = key.split(" ")[:3]
        (tested if system.endswith(HARDWARE) else built).add((kernel, variant))
    legs = []
    for leg in plan.legs:
        if leg.role is Role.WHOLE and (again := tuple(name for name in leg.variants if (leg.kernel, name) in built)):
            legs.append(replace(leg, variant=" ".join(again), variants=again))
    tests = [test for test in plan.tests if any((test.kernel, name) in tested for name in test.variants)]
    return Plan(1, plan.tier, plan.kernels, tuple(legs[:MOST]), tests=tuple(tests[:MOST]))


_KEPT = 16_000
"""Characters of an error, from its end: what went wrong is said last."""


def unknown_leg(run: int, **known: Any) -> LegResult:
    """The result of a job of a scheduled run before it is known which leg it is about; nothing is wrong so far."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return LegResult(run=run, at=at, kernel="", variant="", system="", outcome=LegOutcome.PASSED, **known)


def watch_leg(workspace: Workspace, request: LegRequest, run: LegResult, replay: str, log: Log) -> list[LegResult]:
    """Build a variant and load it, whatever comes of it; `replay` is the command that builds it elsewhere.

    There is one result for the build and the torch it was made with, and one for each other torch that loaded it.
    """
    variant, kernel = request.variant, Path(request.kernel.directory)
    base = replace(
        run,
        kernel=request.kernel.build.name,
        variant=variant.name,
        system=variant.system,
        torch=variant.torch or "",
        compute=variant.compute or "",
        replay=replay[:4000],
    )
    try:
        built = build_leg(workspace, request, log)
    except KciError as error:
        first = first_error(error)
        more = error.message[-_KEPT:] if isinstance(error, BuildFailedError | FindingsError | MissingToolError) else ""
        # A machine that lacks something, or time, says nothing about the kernel; all else does. What no machine can
        # have, such as a wheel that is gone, is told by the words when it is recorded.
        lacks = isinstance(error, MissingToolError | UnfinishedBuildError)
        outcome = LegOutcome.SKIPPED if lacks else LegOutcome.FAILED
        told = f"{first}\n{more}" if more.strip() not in ("", first) else first
        failed = replace(base, outcome=outcome, error=told)
        unknown = replace(base, outcome=LegOutcome.SKIPPED, error="it was not built")
        others = [torch for torch in variant.loads if torch != variant.torch]
        return [failed, *(replace(unknown, torch=torch) for torch in others)]
    results = [] if variant.torch in variant.loads else [base]
    for torch in variant.loads:
        test = ["kci", "test", str(kernel), f"--tree={request.output}", f"--variant={base.variant}", f"--torch={torch}"]
        under = replace(base, torch=torch, replay=f"{base.replay} && {shlex.join(test)}"[:4000])
        test_run = partial(run_kernel_tests, built.directory, kernel, log, cache=request.options.cache, torch=torch)
        results.append(_tested(under, test_run, f"with torch {torch}", log))
    return results


def _tested(result: LegResult, test_run: Callable[[], TestReport], where: str, log: Log) -> LegResult:
    """The result with what comes of loading and testing."""
    try:
        report = test_run()
    except (MissingToolError, FindingsError) as error:
        return replace(result, outcome=LegOutcome.SKIPPED, error=error.message[-_KEPT:])
    log(f"{result.variant} {where}: {report.state}, {report.passed} passed, {report.failed} failed")
    if report.state in (TestState.PASSED, TestState.NOTHING_RAN):
        return result
    # What pytest or Python says last is the error; the rest is how it came about.
    lines = [line for line in report.output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E ")]
    last = (errors or lines or [str(report.state)])[-1].removeprefix("E").strip()
    told = f"error: {report.state}: {last}\n{report.output[-_KEPT:]}"
    return replace(result, outcome=LegOutcome.FAILED, error=told)


def unpack_legs(artifacts: Path, names: Sequence[str], into: Path) -> list[Path]:
    """The directories of variants that legs have built, the newest attempt of each, in the order of their names.

    The folder of artifacts is missing where no leg built anything. FindingsError or UnsafeError if an artifact cannot
    be read.
    """
    sources = find_sources([artifacts]) if artifacts.is_dir() else []
    found = []
    for name in sorted(set(names)):
        if same := [source for source in sources if source.leg.variant == name]:
            found.append(unpack(newest(same).path, into).directory)
    return found


def watch_hardware(
    kernel: Kernel, variants: Sequence[Path], python: Path, system: str, run: LegResult, cache: Path, log: Log
) -> Iterator[LegResult]:
    """Load and test directories of variants on this machine: a result for each that its torch can load.

    `python` has torch for this machine's hardware, kernels and pytest; `system` is that of the machine.
    MissingToolError if the Python has no torch or no loader.
    """
    environment = probe(python)
    for directory in variants:
        name = parse_variant_name(directory.name)
        if reason := why_incompatible(name, environment):
            log(f"{directory.name} is not tested on this machine: {reason}")
            continue
        test = ["kci", "test", kernel.directory, f"--variant={directory.name}", f"--python={python}"]
        torch = ".".join(environment.torch.split("+")[0].split(".")[:2])
        compute = name.compute_version or environment.toolkit
        result = replace(
            run,
            kernel=kernel.build.name,
            variant=directory.name,
            system=system,
            torch=torch,
            compute=compute,
            replay=shlex.join(test)[:4000],
            hardware=True,
        )
        test_run = partial(run_kernel_tests, directory, Path(kernel.directory), log, cache=cache, python=python)
        yield _tested(result, test_run, "on this machine", log)


def write_results(folder: Path, results: Sequence[LegResult]) -> list[Path]:
    """Write each result of a leg into a separate file of a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for result in results:
        path = folder / f"{result.variant}.torch-{result.torch or 'none'}.json"
        write_atomic(path, msgspec.json.encode(result) + b"\n")
        paths.append(path)
    return paths
