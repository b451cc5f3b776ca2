"""`kci gate`: compares the results of a CI run with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

import click
from msgspec.structs import replace

from kci.cli import PATH, file_option, kci_command, option
from kci.cli._answers import left_out_sentence
from kci.cli._output import Layout, answer, say, table
from kci.diagnostics import printable, printable_lines
from kci.errors import FindingsError, UsageError
from kci.run.gate import (
    NO_PLAN,
    GateRow,
    RunUploads,
    index_after,
    merge_row,
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


@kci_command
@click.argument("records", type=PATH)
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
        message = f"KCI_RUN={run_id[:40]} is not the number of a run"
        raise UsageError(message, "such as $CI_PIPELINE_ID")
    run = read_uploads(records, ci_run().attempt)
    if run.plan == NO_PLAN:
        raise FindingsError(f"{records} has no plan", "kci plan --format json > kci-plan.json")
    if trees:
        run = replace(run, index=read_index(trees, say))
    rows = [row for row in missing_results(run) if kernel is None or row.kernel == kernel]
    if kernel is not None and not rows:
        releases = publishable_kernels(run, run_id)
        digests = {item.digest for item in releases if item.kernel == kernel}
        manifest = read_manifest(tree) if tree else None
        if not digests:
            rows = [merge_row(kernel, "its tree cannot be published: see its other jobs")]
        elif tree and (not manifest or manifest.digest not in digests):
            rows = [merge_row(kernel, f"{tree} is not the tree that was judged")]
    if trees and run_id and kernel is None:
        now = today()
        ended = replace(run, index=replace(run.index, day=now))
        write_record(trees, index_after(ended, run_id, now))
    if junit:
        write_atomic(junit, _junit(run, rows))
    if sentence := left_out_sentence(run.plan):
        say(sentence)
    if not rows:
        answer(success_summary(run.plan))
        return 0
    cells = [(row.kernel, row.variant or "-", row.job, printable(row.error)) for row in rows]
    answer(table(("kernel", "variant", "job", "error"), cells, Layout(cut=("error",))))
    for command in sorted({row.replay for row in rows if row.replay}):
        answer(f"on your machine: {printable_lines(command)}")
    say(f"{count(len(rows), 'thing')} of what was planned did not happen")
    return 1


def _junit(run: RunUploads, rows: Sequence[GateRow]) -> bytes:
    wrong = {row.kernel for row in rows}
    fine = sorted({leg.kernel for leg in run.plan.legs} - wrong)
    tests, failures = str(len(rows) + len(fine)), str(len(rows))
    suite = Element("testsuite", name="kci", tests=tests, failures=failures)
    for kernel in fine:
        SubElement(suite, "testcase", classname=kernel, name="all variants")
    for row in rows:
        case = SubElement(suite, "testcase", classname=row.kernel, name=row.variant or row.job)
        failure = SubElement(case, "failure", message=printable(row.error))
        failure.text = printable_lines(f"{row.error}\n{row.replay}")
    return bytes(tostring(suite, encoding="utf-8", xml_declaration=True))
