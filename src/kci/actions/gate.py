"""kci/build/gate: compares the plan of a run with the records that its jobs uploaded."""

from __future__ import annotations

from collections import Counter

from kci.actions import common
from kci.cli._answers import left_out_table
from kci.diagnostics import escape_data, escape_property
from kci.run.gate import (
    NO_PLAN,
    PLAN_JOB,
    GateRow,
    RunUploads,
    job_problem,
    missing_results,
    publishable_kernels,
    read_results,
    read_uploads,
    success_summary,
)
from kci.run.records import ci_run

SHOWN = 10
"""GitHub keeps ten annotations of a step."""


def main() -> None:
    """Set the outputs and fail on missing results."""
    results, folder = (
        read_results(common.required_input("results")),
        common.runner_temp() / "kci-records",
    )
    run = read_uploads(folder, ci_run().attempt) if folder.is_dir() else RunUploads()
    plan = run.plan
    if results[PLAN_JOB] != "success" or plan == NO_PLAN:
        common.fail(
            f"there is no plan: the plan job ended as {results[PLAN_JOB]}", 1, "see the plan job"
        )
    rows, releases = missing_results(run), publishable_kernels(run, ci_run().id)
    listed = common.compact_json({"include": releases})
    common.set_outputs(releases=listed, has_releases=bool(releases), failed=len(rows))
    kernels = {leg.kernel for leg in plan.legs}
    report("What did not happen", rows)
    if not common.flag_input("judge", default="true"):
        return
    if plan.left_out:
        table = left_out_table(plan)
        print(f"::notice title=Left out::{escape_data(table.below)}", flush=True)
        common.add_tables([table])
    if rows:
        lacking = len({row.kernel for row in rows})
        common.fail(f"{len(rows)} of what was planned did not happen, in {lacking} kernels", 1)
    if wrong := job_problem(results, len(releases)):
        common.fail(wrong, 1, "see what these jobs say")
    print(success_summary(plan), flush=True)
    tested = Counter(test.kernel for test in plan.tests)
    trees = [
        (name, len(run.records[name].present) if name in kernels else "as before", tested[name])
        for name in sorted(kernels | tested.keys())
    ]
    if trees:
        common.add_table(
            "All that was planned is there",
            ("kernel", "variants in its tree", "tests passed on"),
            trees,
        )
    else:
        common.add_summary(["There was nothing to do."], [])


def report(title: str, rows: list[GateRow]) -> None:
    """Print each row to log and summary, and the first `SHOWN` as annotations."""
    if not rows:
        return
    with common.group(title):
        for row in rows:
            print(f"{row.kernel} {row.variant or '-'}, job {row.job}: {row.error}", flush=True)
            if row.replay:
                print(f"  {row.replay}", flush=True)
    for row in rows[:SHOWN]:
        what = escape_data(f"{row.variant} {row.error}".strip())
        print(f"::error title={escape_property(row.kernel)}::{what}")
    cells = [(row.kernel, row.variant, row.job, row.error, row.replay) for row in rows]
    common.add_table(title, ("kernel", "variant", "job", "error", "on your machine"), cells)
