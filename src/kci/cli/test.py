"""`kci test`: a built variant in the real loader, and the kernel's own tests on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from kci.ci.run_records import TestRecord, ci_run, write_record
from kci.cli import PATH, Command, FileName, completed
from kci.cli._output import Layout, progress_log, table
from kci.cli._workspace import CACHE, CATALOG, opened
from kci.config.reader import BUILD_TOML
from kci.errors import KciError, UsageError, first_error
from kci.plan.github import refuse_errors
from kci.run.kernel_tests import TestReport, TestState, lacking, nothing_run, run_kernel_tests, variants_of, why_not
from kci.toolchains.emulation import require_emulated
from kci.verify import verify
from kci.verify.load_rules import probe
from kci.workspace.workspace import Workspace


@click.command("test", cls=Command)
@click.argument("place", type=FileName(path_type=Path, exists=True), default=".", metavar="[KERNEL|TREE]")
@click.option("--kernel", type=PATH, help="The kernel that has the tests for a TREE.")
@click.option("--tree", type=PATH, help="The tree to take variants from (default: KERNEL/build).")
@click.option(
    "--variant",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=completed("built_variants"),
    help="Test only this variant; repeat for more.",
)
@click.option("--torch", metavar="VERSION", help="The torch to load variants with (default: the torch of the build).")
@click.option(
    "--with", "extra", multiple=True, metavar="PACKAGE", help="Install this package for the tests; repeat for more."
)
@click.option(
    "--no-isolation", is_flag=True, help="Use this Python's torch, kernels and pytest. GPU tests need this or --python."
)
@click.option(
    "--python",
    type=PATH,
    help="Use this Python's torch, kernels and pytest, and test the variants that it can load.",
)
@click.option(
    "--emulate",
    is_flag=True,
    help="Test variants for the CPU of another system (aarch64-linux on x86_64-linux) with qemu. Takes minutes.",
)
@click.option("--record", type=PATH, help="Write the results to this file, as JSON.")
@click.option("--allow-empty", is_flag=True, help="Exit 0 for a kernel without a test that ran.")
@CACHE
@CATALOG
def command(
    place: Path,
    kernel: Path | None,
    tree: Path | None,
    names: tuple[str, ...],
    torch: str | None,
    extra: tuple[str, ...],
    no_isolation: bool,
    python: Path | None,
    emulate: bool,
    record: Path | None,
    allow_empty: bool,
    cache: Path,
    catalog: str | None,
) -> int:
    """Load built variants with the kernels library and run the kernel's tests that are marked `kernels_ci`.

    Each variant is loaded alone, in a fresh process. It is an error if no test ran. Variants for a GPU that this
    machine lacks are verified and not run; exit 3 if there are no other variants.

    Examples:
        # test what this machine built
        kci test
        # test with this Python's torch, on the GPU
        kci test --no-isolation
        # test what was built for another CPU, without such a machine
        kci test --emulate
    """
    sources = place if (place / BUILD_TOML).is_file() else kernel
    tree = tree or (place / "build" if sources == place else place)
    isolation = not no_isolation and python is None
    if emulate and not isolation:
        hint = "kci makes a Python of that system itself; --torch names the torch, --with adds packages"
        raise UsageError("--emulate goes with neither --python nor --no-isolation", hint=hint)
    emulated = require_emulated() if emulate else ""
    workspace = _workspace(sources, catalog)
    reports: list[TestReport] = []
    try:
        found = variants_of(tree, names, emulated=emulated)
        environment = None if isolation else probe(python or Path(sys.executable))
        reasons = {path: lacking(path.name, environment, emulated=emulated) for path in found}
        variants = [path for path in found if not reasons[path]]
        if not variants:
            _refuse(reasons, judge=python is None)
        for directory in variants:
            report = run_kernel_tests(
                directory,
                sources,
                progress_log(),
                cache=cache,
                isolation=isolation,
                torch=torch or _built_with(workspace, directory.name),
                extra=extra,
                python=python,
                emulated=emulated,
            )
            reports.append(report)
    except KciError as error:
        if record is not None and sources is not None:
            name = workspace.only_kernel().build.name if workspace else sources.resolve().name
            _write(record, name, reports, first_error(error))
        raise
    kernel_name = reports[0].kernel
    left = {path.name: why for path, why in reasons.items() if why and python is None}
    reports += [TestReport(kernel_name, name, TestState.NOT_RUN, output=why) for name, why in left.items()]
    wrong = why_not(reports, allow_empty=allow_empty)
    if record is not None:
        _write(record, kernel_name, reports, wrong)
    for report in reports:
        if report.output and report.state is not TestState.PASSED:
            click.echo(f"{report.variant}: {report.state}\n{report.output}", err=True)
    rows = [(item.kernel, item.variant, _state(item), item.passed, item.failed, item.skipped) for item in reports]
    headers = ("kernel", "variant", "state", "passed", "failed", "skipped")
    layout = Layout(drop=("skipped", "failed", "kernel"), cut=("kernel", "variant"))
    click.echo(table(headers, [tuple(map(str, row)) for row in rows], layout))
    if left and names and not wrong:  # asked for by name
        raise nothing_run(left)
    return 1 if wrong else 0


def _refuse(reasons: Mapping[Path, str], *, judge: bool) -> NoReturn:
    """Refuse variants that this machine cannot load; verify them first, unless a leg tests what was verified before."""
    refuse_errors(item for path in reasons for item in (verify(path) if judge else ()))
    names = {path.name: why for path, why in reasons.items()}
    raise nothing_run(names, verified=set(names) if judge else ())


def _state(report: TestReport) -> str:
    return f"{report.state}, emulated" if report.emulated else report.state


def _write(path: Path, kernel: str, reports: Sequence[TestReport], error: str) -> None:
    tested = tuple(report.variant for report in reports if report.state is not TestState.NOT_RUN)
    by = next((report.emulated for report in reports if report.emulated), "")
    write_record(path, TestRecord(kernel, "test", ci_run().attempt or 1, not error, tested, error, emulated=by))


def _workspace(sources: Path | None, catalog: str | None) -> Workspace | None:
    """The kernel of a tree; None if it is not named or cannot be read, which its tests do not need."""
    with suppress(KciError):
        workspace = opened([str(sources)], catalog) if sources is not None else None
        if workspace and workspace.only_kernel():
            return workspace
    return None


def _built_with(workspace: Workspace | None, variant: str) -> str | None:
    with suppress(KciError):
        return workspace.variant(variant).torch if workspace else None
    return None
