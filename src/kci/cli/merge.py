"""`kci merge`: merges artifacts into trees."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import PATH, file_option, flag, kci_command, option, refuse_idle
from kci.cli._answers import print_suppressed, show_findings, tree_table
from kci.cli._output import answer, options, print_diagnostics, print_json, say
from kci.errors import KciError, UsageError
from kci.plan.plan import read_plan
from kci.run.records import MergeJob, unmet
from kci.tree.artifacts import record_durations


@kci_command
@click.argument("artifacts", nargs=-1, required=True, type=PATH, metavar="ARTIFACT...")
@click.option("--into", required=True, type=PATH, help="The tree, or a folder for several.")
@file_option(
    "--plan",
    "plan_file",
    "PATH",
    "The plan, from `kci plan --format json`: its variants must be there.",
)
@flag("--allow-partial", "Accept that planned variants are missing.")
@file_option("--durations", "FILE", "Also record build times, for `kci plan --durations`.")
@option("--kernel", "TEXT", "Merge only this kernel.")
@file_option(
    "--record",
    "FILE",
    "With --kernel: verify the tree too, and write the result to this file, for `kci gate`.",
)
@flag("--json", "as_json", "Print the manifests.")
def command(
    artifacts: tuple[Path, ...],
    into: Path,
    plan_file: Path | None,
    allow_partial: bool,
    durations: Path | None,
    kernel: str | None,
    record: Path | None,
    as_json: bool,
) -> int:
    """Merge artifacts, folders of artifacts and variant directories into one tree per kernel.

    With one kernel, --into is its tree; with several, --into/<kernel> is the tree of each. Exit 1
    if a planned variant is missing.

    Examples:
        # merge every planned variant, or fail
        kci merge artifacts --into build --plan plan.json
    """
    if not plan_file:
        refuse_idle("without --plan", allow_partial=allow_partial)
    planned = read_plan(plan_file) if plan_file else None
    if record and kernel is None:
        raise UsageError("--record is about one kernel", "name it with --kernel")
    job = MergeJob(artifacts, into, planned, kernel, record)
    try:
        manifests, warnings = job.merge(allow_partial=allow_partial, log=say)
    except KciError as error:
        job.write_record(None, error)
        raise
    print_diagnostics(warnings)
    if durations:
        record_durations(durations, artifacts)
    if as_json:
        print_json(complete=all(item.complete for item in manifests), manifests=manifests)
    elif not options().quiet:
        for manifest in manifests:
            tree = tree_table(manifest)
            answer(f"{tree.title}\n{tree.text()}")
    if not record:
        return 0
    findings, suppressed = job.verify({into: manifests[0]})
    print_suppressed(suppressed)
    code = show_findings(findings, "text", what=str(into), suppressed=suppressed)
    job.write_record(manifests[0], unmet(code))
    return code
