"""kci/build/test: loads a merged tree on its hardware and runs the kernel's tests."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import kci
from kci.actions import common
from kci.actions.schedule import scheduled_result, upload_results
from kci.cli._output import print_error
from kci.errors import first_error
from kci.plan.hardware_tests import tree_under_test
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
from kci.run.records import TEST_FILE, record_tests, write_record
from kci.tree.manifest import read_manifest
from kci.utils.cache import default_cache
from kci.watch.scheduled_leg import unpack_legs, watch_hardware


def main() -> None:
    """Test, and upload a record in any case."""
    kernel, names = Path(common.text_input("kernel", ".")), common.words_input("variant")
    leg = common.text_input("leg", "test")
    python = Path(given) if (given := common.text_input("python")) else None
    common.flag_input("upload")
    if common.flag_input("results"):
        if python:
            watch(kernel, names, python, leg)
        return
    how = ["--python", given] if given else []
    replay = shlex.join(["kci", "test", str(kernel), *how])
    name = kci.open_workspace([str(kernel)]).only_kernel().build.name
    reports: list[TestReport] = []
    error = looked_at = ""
    try:
        place, digest = Path(common.required_input("tree")), common.text_input("digest")
        tree = common.fetched_tree(place, "to test", digest)
        manifest = read_manifest(tree)
        looked_at = tree_under_test(manifest.digests, names) if manifest else ""
        reports = tested(tree, kernel, names, python)
    except kci.KciError as problem:
        print_error(problem, annotate=False)
        error = first_error(problem)
    error = error or first_failure(reports)
    record = record_tests(name, leg, looked_at, reports, error, replay)
    file = common.runner_temp() / "kci-test" / TEST_FILE
    write_record(file, record)
    record_name = f"run-test.{name}.{leg}.{record.attempt}"
    common.set_outputs(record=file, record_name=record_name, passed=not error, report=file)
    rows = [(item.variant, item.state, item.passed, item.failed, item.skipped) for item in reports]
    common.add_table(f"Test: {leg}", ("variant", "state", "passed", "failed", "skipped"), rows)
    if error:
        common.fail(error, 1, f"to do the same on your machine: {replay}")


def watch(kernel: Path, names: list[str], python: Path, leg: str) -> None:
    """Test the variants of a scheduled run; failures are results, and do not fail the job."""
    workspace = kci.open_workspace([str(kernel)])
    read, run = workspace.only_kernel(), scheduled_result(workspace.catalog.name)
    with tempfile.TemporaryDirectory(dir=common.runner_temp()) as folder:
        variants = unpack_legs(Path(common.required_input("tree")), names, Path(folder))
        if not variants:
            common.show("nothing was built that this machine could load")
            return
        tests = watch_hardware(read, variants, python, run, default_cache(), common.show)
        with common.group(f"Test {read.build.name}"):
            try:
                results = list(tests)
            except kci.MissingToolError as error:  # this machine says nothing about the kernel
                common.warn(f"{leg} tested nothing: {error.message}")
                return
    if results:
        upload_results(results, f"{read.build.name}.test-{leg}-{run.attempt}")


def tested(tree: Path, kernel: Path, names: list[str], python: Path | None) -> list[TestReport]:
    """Test the variants that this machine can load."""
    present = [name for name in names if (tree / name).is_dir()]
    directories = select_variants(tree, present)
    variants, reasons = split_testable(directories, probe(python) if python else None)
    if not variants or (reasons and present and not python):
        raise nothing_tested_error(reasons)
    workspace, cache = kci.open_workspace([kernel]), default_cache()
    reports = []
    for directory in variants:
        with common.group(f"Test {directory.name}"):
            torch = torch_of(workspace, directory.name)
            report = run_kernel_tests(
                directory, kernel, common.show, cache=cache, torch=torch, python=python
            )
            counts = f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped"
            common.show(f"{report.state}: {counts}")
            if report.state is not TestState.PASSED:
                common.show(report.output)
        reports.append(report)
    return reports
