"""A job of a scheduled run on a machine with the hardware: what was built elsewhere is loaded and tested, as a result.

It is another leg than the build. A machine that is lost leaves no result, and its leg stays what it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kci.ci.watched_leg import WatchedRun, told
from kci.config.reader import Kernel
from kci.errors import FindingsError, MissingToolError
from kci.matrix.names import parse_variant_name
from kci.processes.process import Log
from kci.run.kernel_tests import TestState, run_kernel_tests
from kci.tree.artifacts import find_sources, newest
from kci.tree.unpack import unpack
from kci.verify.load_rules import LoaderEnvironment, probe, unfit
from kci.watch.history import LegOutcome, LegResult


def unpack_legs(artifacts: Path, names: Sequence[str], into: Path) -> list[Path]:
    """The directories of variants that legs have built, the newest attempt of each, in the order of their names.

    Args:
        artifacts: a folder of artifacts; it is missing where no leg built anything.
        names: the variants that are wanted.
        into: an existing directory.

    Raises:
        FindingsError: an artifact cannot be read.
        UnsafeError: likewise.
    """
    sources = find_sources([artifacts]) if artifacts.is_dir() else []
    found = []
    for name in sorted(set(names)):
        if same := [source for source in sources if source.leg.variant == name]:
            found.append(unpack(newest(same).path, into)[1])
    return found


def watch_hardware(
    kernel: Kernel, variants: Sequence[Path], python: Path, system: str, run: WatchedRun, cache: Path, log: Log
) -> Iterator[LegResult]:
    """Load and test variants on this machine.

    Args:
        kernel: whose tests are run.
        variants: directories of built variants.
        python: a Python with torch for this machine's hardware, kernels and pytest.
        system: of this machine.
        run: what it is a part of.
        cache: where environments are kept.
        log: takes lines of progress.

    Returns:
        a result for each variant that this Python's torch can load; the others are said to be left out, and have none.

    Raises:
        MissingToolError: the Python has no torch or no loader.
    """
    environment = probe(python)
    for directory in variants:
        name = parse_variant_name(directory.name)
        if reason := unfit(name, environment):
            log(f"{directory.name} is not tested on this machine: {reason}")
            continue
        test = ["kci", "test", kernel.directory, f"--variant={directory.name}", f"--python={python}"]
        result = LegResult(
            run=run.number,
            attempt=run.attempt,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            kernel=kernel.build.name,
            variant=directory.name,
            system=system,
            torch=".".join(environment.torch.split("+")[0].split(".")[:2]),
            compute=name.compute_version or _toolkit(environment),
            outcome=LegOutcome.PASSED,
            log=run.log,
            replay=shlex.join(test)[:4000],
            catalog=run.catalog,
            commit=run.commit,
            hardware=True,
        )
        try:
            report = run_kernel_tests(directory, Path(kernel.directory), log, cache=cache, python=python)
        except (MissingToolError, FindingsError) as error:
            yield msgspec.structs.replace(result, outcome=LegOutcome.SKIPPED, error=error.message)
            continue
        log(f"{directory.name} on this machine: {report.state}, {report.passed} passed, {report.failed} failed")
        if report.state in (TestState.PASSED, TestState.NOTHING_RAN):
            yield result
        else:
            yield msgspec.structs.replace(result, outcome=LegOutcome.FAILED, error=told(report))


def _toolkit(environment: LoaderEnvironment) -> str:
    return environment.cuda or environment.rocm or ""
