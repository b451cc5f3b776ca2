"""`kci gate`: compares the results of a CI run with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import click
from msgspec.structs import replace

from kci.cli import FileName, file_option, kci_command, option
from kci.cli._answers import left_out_sentence
from kci.cli._output import Layout, answer, say, table
from kci.diagnostics import printable, printable_lines
from kci.errors import FindingsError, UsageError
from kci.run.gate import (
    NO_PLAN,
    GateRow,
    RunUploads,
    index_after,
    missing_results,
    publishable_kernels,
    read_index,
    read_uploads,
    success_summary,
    today,
)
from kci.run.records import ci_run, write_record
from kci.tree.manifest import read_manifest
from kci.utils.atomic import write_atomic
from kci.utils.suggest import count


@kci_command("gate")
@click.argument("records", type=FileName(path_type=Path))
@option("--kernel", "NAME", "Judge only this kernel; exit 1 unless its tree can be published.")
@file_option(
    "--trees",
    "FILE",
    "A list of the newest tree of each kernel, for `kci plan --trees`; kci adds those of this run.",
)
@file_option("--tree", "PATH", "With --kernel: exit 1 unless this is the tree that was judged.")
@file_option("--junit", "FILE", "Also write the list as JUnit XML.")
def command(
    records: Path, kernel: str | None, trees: Path | None, tree: Path | None, junit: Path | None
) -> int:
    """Compare what the jobs of a run left in the folder RECORDS with its plan, and list what did
    not happen.

    RECORDS has the plan (kci-plan.json, from `kci plan --format json`), and the records of `kci
    merge --record` and `kci test --record --leg`. Exit 1 if a planned variant, tree or test is
    missing.

    Examples:
        # after all jobs of a pipeline
        kci gate kci-records
    """
    run_id = ci_run().id
    if run_id and (not run_id.isdecimal() or len(run_id) > 20):
        raise UsageError(
            f"KCI_RUN={run_id[:40]} is not the number of a run", "such as $CI_PIPELINE_ID"
        )
    run = read_uploads(records, ci_run().attempt) if records.is_dir() else RunUploads()
    if run.plan == NO_PLAN:
        raise FindingsError(f"{records} has no plan", "kci plan --format json > kci-plan.json")
    if trees:
        run = replace(run, index=read_index(trees, say))
    rows = [row for row in missing_results(run) if kernel is None or row.kernel == kernel]
    if kernel is not None and not rows:
        digests = {
            item.digest for item in publishable_kernels(run, run_id) if item.kernel == kernel
        }
        manifest = read_manifest(tree) if tree else None
        wrong = "" if digests else "its tree cannot be published: see its other jobs"
        if tree and digests and (not manifest or manifest.digest not in digests):
            wrong = f"{tree} is not the tree that was judged"
        rows = [GateRow(kernel, "", f"{kernel} / merge", wrong, "")] if wrong else []
    if trees and run_id and kernel is None:
        now = today()
        write_record(
            trees, index_after(replace(run, index=replace(run.index, day=now)), run_id, now)
        )
    if junit:
        write_atomic(junit, _junit(run, rows))
    _show(run, rows)
    return int(bool(rows))


def _show(run: RunUploads, rows: Sequence[GateRow]) -> None:
    if sentence := left_out_sentence(run.plan):
        say(sentence)
    if rows:
        cells = [(row.kernel, row.variant or "-", row.job, printable(row.error)) for row in rows]
        answer(table(("kernel", "variant", "job", "error"), cells, Layout(cut=("error",))))
        for command in sorted({row.replay for row in rows if row.replay}):
            answer(f"on your machine: {printable_lines(command)}")
        say(f"{count(len(rows), 'thing')} of what was planned did not happen")
        return
    answer(success_summary(run.plan))


def _junit(run: RunUploads, rows: Sequence[GateRow]) -> bytes:
    wrong = {row.kernel for row in rows}
    fine = sorted({leg.kernel for leg in run.plan.legs} - wrong)
    suite = ElementTree.Element(
        "testsuite", name="kci", tests=str(len(rows) + len(fine)), failures=str(len(rows))
    )
    for kernel in fine:
        ElementTree.SubElement(suite, "testcase", classname=kernel, name="all variants")
    for row in rows:
        case = ElementTree.SubElement(
            suite, "testcase", classname=row.kernel, name=row.variant or row.job
        )
        failure = ElementTree.SubElement(case, "failure", message=printable(row.error))
        failure.text = printable_lines(f"{row.error}\n{row.replay}")
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
