"""A leg of a scheduled run: a variant is built once, loaded with every torch that it promises, and each is a result."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kci.errors import BuildFailedError, FindingsError, KciError, MissingToolError, first_error
from kci.files.replace import write_atomic
from kci.processes.process import Log
from kci.run.build_leg import LegRequest, build_leg
from kci.run.kernel_tests import TestReport, TestState, run_kernel_tests
from kci.watch.history import LegOutcome, LegResult
from kci.workspace.workspace import Workspace

_KEPT = 16_000
"""Characters of an error, from its end: what went wrong is said last."""


class WatchedRun(msgspec.Struct, frozen=True):
    """The scheduled run that a leg is part of."""

    number: int
    attempt: int = 1
    catalog: str = ""
    commit: str = ""
    log: str = ""
    """Where the log is."""


def watch_leg(workspace: Workspace, request: LegRequest, run: WatchedRun, replay: str, log: Log) -> list[LegResult]:
    """Build a variant and load it, whatever comes of it.

    Args:
        workspace: where the variant comes from.
        request: what to build.
        run: what it is a part of.
        replay: the command that builds the variant elsewhere.
        log: takes lines of progress.

    Returns:
        one result for the build and the torch it was made with, and one for each other torch that it was loaded with.
    """
    variant = request.variant
    base = LegResult(
        run=run.number,
        attempt=run.attempt,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        kernel=request.kernel.build.name,
        variant=variant.name,
        system=variant.system,
        torch=variant.torch or "",
        compute=variant.compute or "",
        outcome=LegOutcome.PASSED,
        log=run.log,
        replay=replay,
        catalog=run.catalog,
        commit=run.commit,
    )
    others = [torch for torch in variant.loads if torch != variant.torch]
    try:
        built = build_leg(workspace, request, log)
    except KciError as error:
        outcome, text = _failure(error)
        result = msgspec.structs.replace(base, outcome=outcome, error=text)
        return [result, *(_not_loaded(base, torch) for torch in others)]
    results = [] if variant.torch in variant.loads else [base]
    for torch in variant.loads:
        results.append(_loaded(base, request, built.directory, torch, log))
    return results


def _loaded(base: LegResult, request: LegRequest, directory: Path, torch: str, log: Log) -> LegResult:
    kernel = Path(request.kernel.directory)
    test = ["kci", "test", str(kernel), f"--tree={request.output}", f"--variant={base.variant}", f"--torch={torch}"]
    under = msgspec.structs.replace(base, torch=torch, replay=f"{base.replay} && {shlex.join(test)}"[:4000])
    try:
        report = run_kernel_tests(directory, kernel, log, cache=request.options.cache, torch=torch)
    except MissingToolError as error:
        return msgspec.structs.replace(under, outcome=LegOutcome.SKIPPED, error=_end(error.message))
    log(f"{base.variant} with torch {torch}: {report.state}, {report.passed} passed, {report.failed} failed")
    if report.state in (TestState.PASSED, TestState.NOTHING_RAN):
        return under
    return msgspec.structs.replace(under, outcome=LegOutcome.FAILED, error=told(report))


def _not_loaded(base: LegResult, torch: str) -> LegResult:
    return msgspec.structs.replace(base, torch=torch, outcome=LegOutcome.SKIPPED, error="it was not built")


def _failure(error: KciError) -> tuple[LegOutcome, str]:
    """A machine that lacks something says nothing about the kernel; all else does."""
    outcome = LegOutcome.SKIPPED if isinstance(error, MissingToolError) else LegOutcome.FAILED
    first = first_error(error)
    more = error.message if isinstance(error, BuildFailedError | FindingsError) else ""
    return outcome, f"{first}\n{_end(more)}" if more.strip() not in ("", first) else first


def told(report: TestReport) -> str:
    """What pytest or Python says last is the error; the rest is how it came about."""
    lines = [line for line in report.output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E ")]
    last = (errors or lines or [str(report.state)])[-1].removeprefix("E").strip()
    return f"error: {report.state}: {last}\n{_end(report.output)}"


def _end(text: str) -> str:
    return text[-_KEPT:]


def write_results(folder: Path, results: Sequence[LegResult]) -> list[Path]:
    """Write each result into a separate file.

    Args:
        folder: it is made if it is missing.
        results: of one leg.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for result in results:
        path = folder / f"{result.variant}.torch-{result.torch or 'none'}.json"
        write_atomic(path, msgspec.json.encode(result) + b"\n")
        paths.append(path)
    return paths
