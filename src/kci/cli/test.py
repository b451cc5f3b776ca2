"""`kci test`: loads built variants and runs the kernel's tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kci.builders.toolchains.data import toolchains
from kci.cli import file_option, flag, kci_command, option, repeated
from kci.cli._output import Layout, answer, progress_log, say, table
from kci.cli._workspace import PLACE, load_workspace, locate_tree
from kci.config.values import Version
from kci.errors import FindingsError, KciError, UsageError, first_error
from kci.plan.github_limits import refuse_errors
from kci.plan.hardware_tests import tree_under_test
from kci.plan.workspace import Workspace
from kci.run.kernel_tests import (
    TestReport,
    TestState,
    first_failure,
    nothing_tested_error,
    run_kernel_tests,
    select_variants,
    split_testable,
    torch_of,
)
from kci.run.loader import probe
from kci.run.records import record_tests, write_record
from kci.tree.manifest import read_manifest
from kci.tree.verify import verify
from kci.utils.cache import default_cache


@kci_command
@PLACE
@file_option("--kernel", "PATH", "The kernel that has the tests for a TREE.")
@repeated("--variant", "names", "NAME", "Test only this variant; repeat for more.")
@option(
    "--torch",
    "VERSION",
    "The torch to load variants with (default: that of the name, else the newest that kci knows).",
)
@flag(
    "--no-isolation",
    "Use this Python's torch, kernels and pytest. GPU tests need this or --python.",
)
@file_option(
    "--python",
    "PATH",
    "Use this Python's torch, kernels and pytest, and test the variants that it can load.",
)
@option("-k", "keyword", "NAME", "Run only the tests that pytest -k selects.", default="")
@file_option("--record", "PATH", "Write the results to this file, as JSON.")
@option(
    "--leg",
    "NAME",
    "With --record, for `kci gate`: the name of this job in the plan. A --variant that is not in "
    "the tree is skipped.",
)
@flag("--allow-empty", "Exit 0 even if no test ran.")
def command(
    place: Path,
    kernel: Path | None,
    names: tuple[str, ...],
    torch: str | None,
    no_isolation: bool,
    python: Path | None,
    keyword: str,
    record: Path | None,
    leg: str | None,
    allow_empty: bool,
) -> int:
    """Load built variants with the kernels library and run the kernel's tests that are marked
    `kernels_ci`.

    Each variant is loaded alone, in a fresh process. It is an error if no test ran. Variants for a
    GPU that this machine lacks are verified and not run; exit 3 if there are no other variants.

    Examples:
        # test what this machine built
        kci test
        # test with this Python's torch, on the GPU
        kci test --no-isolation
    """
    if keyword and record:
        raise UsageError(
            "-k and --record: a record of some tests would count as a record of all",
            "leave out one",
        )
    tree, sources = locate_tree(place, kernel)
    own = python or (Path(sys.executable) if no_isolation else None)
    torch = None if torch is None else _minor(torch)
    workspace = _workspace(sources)
    names, tested = _job(tree, names) if leg is not None else (names, "")
    reports: list[TestReport] = []
    try:
        directories = select_variants(tree, names)
        environment = probe(own) if own else None
        variants, reasons = split_testable(directories, environment)
        if not variants:
            # A leg tests what was verified before; else the variants are verified first
            judged = directories if not python else ()
            refuse_errors(item for path in judged for item in verify(path, kernel=sources))
            raise nothing_tested_error(reasons, verified=[path.name for path in judged])
        for directory in variants:
            report = run_kernel_tests(
                directory,
                sources,
                progress_log(),
                cache=default_cache(),
                torch=torch or torch_of(workspace, directory.name),
                python=own,
                keyword=keyword,
            )
            reports.append(report)
    except KciError as error:
        if record and sources:
            name = workspace.only_kernel().build.name if workspace else sources.resolve().name
            write_record(
                record, record_tests(name, leg or "test", tested, reports, first_error(error))
            )
        raise
    kernel_name = reports[0].kernel
    untestable = reasons if not python else {}
    for name, why in untestable.items():
        reports.append(TestReport(kernel_name, name, TestState.NOT_RUN, output=why))
    wrong = first_failure(reports, allow_empty=allow_empty)
    if record:
        write_record(record, record_tests(kernel_name, leg or "test", tested, reports, wrong))
    _show(reports)
    if untestable and names and not wrong:
        raise nothing_tested_error(untestable)
    return 1 if wrong else 0


def _job(tree: Path, names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    manifest = read_manifest(tree)
    if not manifest:
        message = f"{tree} is not a merged tree: it has no manifest"
        raise FindingsError(message, "`kci merge` makes one")
    present = tuple(name for name in names if name in manifest.digests)
    return present, tree_under_test(manifest.digests, names)


def _minor(torch: str) -> str:
    # `2.13` of `2.13`, or of the release that kci installs for it; an overlay's torch as it is
    if "@" in torch:
        return torch
    try:
        version = Version.parse(torch)
    except ValueError as error:
        raise UsageError(f"--torch: {error}") from error
    release = toolchains().torch_release(version.minor_text)
    if version not in (Version.parse(version.minor_text), Version.parse(release)):
        hint = f"--torch {version.minor_text}, or --python for a Python with your own torch"
        raise UsageError(f"--torch {torch}: kci loads variants with torch {release}", hint)
    return version.minor_text


def _show(reports: Sequence[TestReport]) -> None:
    for report in reports:
        if report.output and report.state is not TestState.PASSED:
            say(f"{report.variant}: {report.state}\n{report.output}")
    rows = [
        (item.kernel, item.variant, item.state, item.passed, item.failed, item.skipped)
        for item in reports
    ]
    headers = ("kernel", "variant", "state", "passed", "failed", "skipped")
    layout = Layout(drop=("skipped", "failed", "kernel"), cut=("kernel", "variant"))
    answer(table(headers, rows, layout))


def _workspace(sources: Path | None) -> Workspace | None:
    # None if the kernel is not named or invalid: its tests do not need it
    with suppress(KciError):
        if sources and (workspace := load_workspace(str(sources))).only_kernel():
            return workspace
    return None
