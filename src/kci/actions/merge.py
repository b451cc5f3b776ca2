"""kci/build/merge: merges artifacts into one tree and checks it against the plan."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

import kci
from kci.actions import common
from kci.cli._answers import findings_table, print_suppressed, show_findings, tree_table
from kci.cli._output import print_diagnostics, print_error
from kci.run.carried_trees import find_manifests, make_room, pack
from kci.run.records import PLAN_FILE, RECORD_FILE, MergeJob, ci_run, unmet
from kci.tree.manifest import FILE_NAME
from kci.utils.suggest import count


def main() -> None:
    """Merge and verify, then set the outputs."""
    into, kernel = Path(common.text_input("into", "build")), common.text_input("kernel")
    allow_partial = common.flag_input("allow-partial")
    common.flag_input("upload")
    artifacts = [Path(given) for given in common.lines_input("artifacts")]
    if not artifacts:
        common.fail("the input `artifacts` is missing")
    plan = plan_file(text) if (text := common.json_input("plan")) else None
    record = common.runner_temp() / "kci-record" / RECORD_FILE
    job = MergeJob(artifacts, into, None, kernel or None, record)
    try:
        with common.group("Merge"):
            job = replace(job, planned=kci.read_plan(plan) if plan else None)
            prepare(job)
            merged, warnings = job.merge(allow_partial=allow_partial, log=common.show)
            print_diagnostics(warnings)
    except kci.KciError as error:
        print_error(error, annotate=False)  # the gate repeats it with the leg's reason
        record_result(job, None, error)
        common.set_outputs(complete=False)
        message = f"the artifacts were not merged (exit code {error.exit_code})"
        common.fail(message, error.exit_code, "missing variants: see their build jobs")
    only = merged[0] if len(merged) == 1 else None
    trees = {into if only else into / manifest.kernel: manifest for manifest in merged}
    verified = 0
    if trees:
        with common.group("Verify"):
            verified = verify(job, trees)
    record_result(job, only, unmet(verified))
    if verified:
        common.set_outputs(complete=False)
        common.fail(unmet(verified), verified)
    tar = common.runner_temp() / "kci-tree.tar"
    pack(into, tar)
    common.set_outputs(
        tree=into,
        complete=bool(merged) and all(manifest.complete for manifest in merged),
        manifest=[tree / FILE_NAME for tree in trees],
        tar=tar,
        digest=only.digest if only else "",
        tree_name=f"tree.{kernel or 'all'}.{ci_run().attempt or 1}",
    )
    present = sum(len(manifest.present) for manifest in merged)
    lacking = sum(len(manifest.missing) for manifest in merged)
    say = common.warn if lacking else common.show
    say(f"{count(present, 'variant')} present, {lacking} missing")
    common.add_tables(*map(tree_table, merged))


def record_result(job: MergeJob, manifest: kci.Manifest | None, error: kci.KciError | str) -> None:
    """Write the record of the one kernel, and set its outputs."""
    job.write_record(manifest, error)
    if job.kernel is not None:
        name = f"run-record.{job.kernel}.{ci_run().attempt or 1}"
        common.set_outputs(record=job.record, record_name=name)


def prepare(job: MergeJob) -> None:
    """Put the tree of an earlier run in its place, and folders where nothing was built, and so
    nothing downloaded.
    """
    if published := common.text_input("published"):
        digest = common.text_input("published-digest")
        tree = common.fetched_tree(Path(published), "that the plan builds upon", digest)
        if not find_manifests(job.into):
            shutil.copytree(tree, job.into, symlinks=True, dirs_exist_ok=True)
    make_room(job.into, job.planned)
    for artifact in job.artifacts if job.planned or job.kernel else ():
        if not artifact.exists():
            artifact.mkdir(parents=True)


def verify(job: MergeJob, trees: Mapping[Path, kci.Manifest]) -> int:
    """Verify the merged trees; returns the exit code."""
    findings, suppressed = job.verify(trees)
    print_suppressed(suppressed)
    common.add_tables(findings_table(findings, suppressed))
    return show_findings(findings, "text", what=str(job.into), suppressed=suppressed)


def plan_file(plan: str) -> Path:
    """The plan as a file: the input is JSON, a file, or a folder with the uploads of each
    attempt.
    """
    if plan.startswith("{"):
        path = common.runner_temp() / "kci-plan.json"
        path.write_text(plan, encoding="utf-8")
        return path
    files = [*Path(plan).rglob(PLAN_FILE)] if Path(plan).is_dir() else [Path(plan)]
    if not files or not all(file.is_file() for file in files):
        what = "neither JSON nor a file or folder with it"
        common.fail(f"the input `plan` is {what}: {plan[:200]!r}")
    return max(files, key=lambda file: kci.read_plan(file).attempt) if files[1:] else files[0]
