"""kci/build/gate: compares the plan of a run with the records that its jobs uploaded."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import astuple

from kci.actions import common
from kci.cli._answers import left_out_table
from kci.run import gate
from kci.run.records import ci_run

SHOWN = 10
"""GitHub keeps ten annotations of a step."""


def main() -> None:
    """Set the outputs and fail on missing results."""
    results = gate.read_results(common.required_input("results"))
    run = gate.read_uploads(common.runner_temp() / "kci-records", ci_run().attempt)
    plan = run.plan
    if (ended := results[gate.PLAN_JOB]) != "success" or plan == gate.NO_PLAN:
        common.fail(f"there is no plan: the plan job ended as {ended}", 1, "see the plan job")
    rows, releases = gate.missing_results(run), gate.publishable_kernels(run, ci_run().id)
    listed = common.compact_json({"include": releases})
    common.set_outputs(releases=listed, has_releases=bool(releases), failed=len(rows))
    if rows:
        report(rows)
    if not common.flag_input("judge", default="true"):
        return
    if plan.left_out:
        table = left_out_table(plan)
        common.annotate("notice", table.below, title=table.title)
        common.add_tables(table)
    if rows:
        lacking = len({row.kernel for row in rows})
        common.fail(f"{len(rows)} of what was planned did not happen, in {lacking} kernels", 1)
    if wrong := gate.job_problem(results, len(releases)):
        common.fail(wrong, 1, "see what these jobs say")
    common.show(gate.success_summary(plan))
    built, tested = {leg.kernel for leg in plan.legs}, Counter(test.kernel for test in plan.tests)
    trees = [
        (name, len(run.records[name].present) if name in built else "as before", tested[name])
        for name in sorted(built | tested.keys())
    ]
    if trees:
        headers = ("kernel", "variants in its tree", "tests passed on")
        common.add_table("All that was planned is there", headers, trees)
    else:
        common.add_summary(["There was nothing to do."])


def report(rows: list[gate.GateRow]) -> None:
    """Print each row to log and summary, and the first `SHOWN` as annotations."""
    with common.group(title := "What did not happen"):
        for row in rows:
            common.show(f"{row.kernel} {row.variant or '-'}, job {row.job}: {row.error}")
            if row.replay:
                common.show(f"  {row.replay}")
    for row in rows[:SHOWN]:
        common.annotate("error", f"{row.variant} {row.error}".strip(), title=row.kernel)
    headers = ("kernel", "variant", "job", "error", "on your machine")
    common.add_table(title, headers, [astuple(row) for row in rows])
