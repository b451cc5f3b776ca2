"""The legs of a scheduled run: results of builds and tests, which never fail the job; a lost
machine leaves none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kci.builders.process.run import Log
from kci.config.facts import HOST
from kci.config.reader import Kernel
from kci.config.values import text_of
from kci.errors import (
    BuildFailedError,
    FindingsError,
    KciError,
    MissingToolError,
    UnfinishedBuildError,
    first_error,
)
from kci.matrix.variants import parse_variant_name, this_system
from kci.plan.plan import Plan, Role
from kci.plan.workspace import Workspace
from kci.run.build_leg import LegRequest, build_leg
from kci.run.kernel_tests import TestState, run_kernel_tests
from kci.run.loader import probe, why_incompatible
from kci.tree.artifacts import find_sources, newest_source
from kci.tree.pack import unpack
from kci.utils.atomic import write_atomic
from kci.utils.suggest import command_line
from kci.watch.history import LegOutcome, LegResult, leg_of

MAX_SECOND_LOOKS = 200
"""Jobs of a second look; other suspects wait for the next run."""


def second_look(plan: Plan, suspects: Iterable[str]) -> Plan:
    """The jobs that built or tested the suspects, at most `MAX_JOBS` of each kind, none of them
    compiled in parts.
    """
    suspected = {leg_of(key) for key in suspects}
    built, tested = (
        {leg[:2] for leg in suspected if leg.on_hardware is there} for there in (False, True)
    )
    legs = [
        replace(leg, variant=" ".join(again), variants=again)
        for leg in plan.legs
        if (again := tuple(name for name in leg.variants if (leg.kernel, name) in built))
        and leg.role is Role.WHOLE
    ]
    tests = [
        test for test in plan.tests if any((test.kernel, name) in tested for name in test.variants)
    ]
    return Plan(
        1,
        plan.tier,
        plan.kernels,
        tuple(legs[:MAX_SECOND_LOOKS]),
        tests=tuple(tests[:MAX_SECOND_LOOKS]),
    )


_KEPT = 16_000


def blank_result(run: int, **fields: Any) -> LegResult:
    """A passed result without kernel and variant, which a job completes."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return LegResult(
        run=run, at=at, kernel="", variant="", system="", outcome=LegOutcome.PASSED, **fields
    )


def watch_leg(
    workspace: Workspace, request: LegRequest, run: LegResult, replay: str, log: Log
) -> list[LegResult]:
    """Build a variant and load it: one result for the build with its torch, one for each other
    torch.
    """
    variant, kernel = request.variant, Path(request.kernel.directory)
    base = replace(
        run,
        kernel=request.kernel.build.name,
        variant=variant.name,
        system=variant.system,
        torch=text_of(variant.torch),
        compute=text_of(variant.compute),
        replay=replay[:4000],
    )
    loads = (
        variant.loads if variant.backend == HOST else ()
    )  # the tests of others need their device
    unloaded = replace(
        request, options=replace(request.options, load=False)
    )  # each torch has a result of its own
    try:
        built = build_leg(workspace, unloaded, log)
    except KciError as error:
        first = first_error(error)
        more = (
            error.message[-_KEPT:]
            if isinstance(error, BuildFailedError | FindingsError | MissingToolError)
            else ""
        )
        # A lack of the machine says nothing about the kernel; `is_external` sorts out what no
        # machine can have.
        lacks = isinstance(error, MissingToolError | UnfinishedBuildError)
        outcome = LegOutcome.SKIPPED if lacks else LegOutcome.FAILED
        error_text = f"{first}\n{more}" if more.strip() not in ("", first) else first
        unknown = replace(base, outcome=LegOutcome.SKIPPED, error="it was not built")
        others = (replace(unknown, torch=torch) for torch in loads if torch != base.torch)
        return [replace(base, outcome=outcome, error=error_text), *others]
    results = [] if base.torch in loads else [base]
    for torch in loads:
        how = (f"--kernel={kernel}", f"--variant={base.variant}", f"--torch={torch}")
        test = command_line("test", *how, place="build")  # what `replay` builds into
        under = replace(base, torch=torch, replay=f"{base.replay} && {test}"[:4000])
        how_tested = {"cache": request.options.cache, "torch": torch}
        results.append(
            _tested(under, f"with torch {torch}", built.directory, kernel, log, **how_tested)
        )
    return results


def _tested(
    result: LegResult, where: str, variant: Path, kernel: Path, log: Log, **how: Any
) -> LegResult:
    try:
        report = run_kernel_tests(variant, kernel, log, **how)
    except (MissingToolError, FindingsError) as error:
        return replace(result, outcome=LegOutcome.SKIPPED, error=error.message[-_KEPT:])
    log(f"{result.variant} {where}: {report.state}, {report.passed} passed, {report.failed} failed")
    if report.state in (TestState.PASSED, TestState.NOTHING_RAN):
        return result
    lines = [line for line in report.output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E ")]
    last = (errors or lines or [str(report.state)])[-1].removeprefix("E").strip()
    error_text = f"error: {report.state}: {last}\n{report.output[-_KEPT:]}"
    return replace(result, outcome=LegOutcome.FAILED, error=error_text)


def unpack_legs(artifacts: Path, names: Sequence[str], into: Path) -> list[Path]:
    """Unpack the newest artifact of each variant, sorted by name; FindingsError or UnsafeError for
    a bad one.
    """
    sources = find_sources([artifacts]) if artifacts.is_dir() else []
    return [
        unpack(newest_source(same).path, into)[1]
        for name in sorted(set(names))
        if (same := [source for source in sources if source.leg.variant == name])
    ]


def watch_hardware(
    kernel: Kernel,
    variants: Sequence[Path],
    python: Path,
    run: LegResult,
    cache: Path,
    log: Log,
) -> Iterator[LegResult]:
    """Test variant directories on this machine; `python` needs torch, kernels and pytest, else
    MissingToolError.
    """
    environment = probe(python)
    for directory in variants:
        name = parse_variant_name(directory.name)
        if reason := why_incompatible(name, environment):
            log(f"{directory.name} is not tested on this machine: {reason}")
            continue
        how = (f"--variant={directory.name}", f"--python={python}")
        result = replace(
            run,
            kernel=kernel.build.name,
            variant=directory.name,
            system=this_system(),
            torch=".".join(environment.torch.split("+")[0].split(".")[:2]),
            compute=name.compute_version or environment.toolkit,
            replay=command_line("test", *how, place=kernel.directory)[:4000],
            hardware=True,
        )
        place = Path(kernel.directory)
        yield _tested(result, "on this machine", directory, place, log, cache=cache, python=python)


def write_results(folder: Path, results: Sequence[LegResult]) -> None:
    """Write each result into a JSON file of the folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        name = f"{result.variant}.torch-{result.torch or 'none'}.json"
        write_atomic(folder / name, msgspec.json.encode(result) + b"\n")
