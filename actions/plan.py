"""kci/build/plan: which variants to build, as a matrix and as the plan that merging is held against."""

from __future__ import annotations

import os
from pathlib import Path

import kci
from common import (
    OUTPUT_LIMIT,
    add_summary,
    compact_json,
    fail,
    flag,
    flag_input,
    group,
    lines_input,
    output_units,
    run_action,
    set_output,
    table_row,
    text_input,
    unpacked,
    words_input,
)
from kci.cli._output import print_diagnostics
from kci.plan.forks import only_hosted
from kci.plan.plan import LeftOut, Skipped
from kci.plan.plan_json import promised
from kci.tree.published_tree import read_published


def main() -> None:
    """Plan once, and set the outputs."""
    choice = kci.Choice(
        tier=text_input("tier", "release"),
        backends=tuple(words_input("backends")),
        only=tuple(words_input("only")),
    )
    known, problems = read_published([unpacked(Path(place)) for place in lines_input("published")])
    request = kci.PlanRequest(
        choice=choice,
        affected=text_input("affected-base") or None,
        published=known,
        fingerprints=True,
        allow_empty=flag_input("allow-empty", default="false"),
    )
    with group("Plan"):
        workspace = kci.open_workspace(lines_input("kernels") or ["."])
        planned = kci.plan_run(workspace, request)
        print_diagnostics([*workspace.diagnostics, *problems, *planned.diagnostics])
        planned.require_runnable()
    plan = only_hosted(planned.plan) if is_fork() else planned.plan
    promise = promised(plan)
    matrix_text, plan_text = planned.of(plan).github_matrix(), compact_json(promise)
    if output_units(matrix_text, plan_text) > OUTPUT_LIMIT:
        fail("the plan is larger than the outputs of a job may be", 1, "plan fewer kernels, or fewer backends")
    set_output("matrix", matrix_text)
    set_output("has-work", "true" if plan.legs else "false")
    set_output("carries", "true" if plan.skipped else "false")
    set_output("has-tree", "true" if promise["kernels"] else "false")
    set_output("plan", plan_text)
    report(plan)


def is_fork() -> bool:
    """Whether the run builds a pull request from another repository."""
    return flag("KCI_FORK", os.environ.get("KCI_FORK", "false"))


def report(plan: kci.Plan) -> None:
    """Show in log and summary what is built and what is not."""
    unbuilt: list[LeftOut | Skipped] = [*plan.left_out, *plan.skipped]
    print(f"{len(plan.legs)} legs, {len(unbuilt)} variants left out")
    head = [f"### {len(plan.legs)} variants to build ({plan.tier})", ""]
    if plan.legs:
        head += ["| kernel | variant | runner | image | minutes at most |", "|---|---|---|---|---|"]
    rows = [table_row(leg.kernel, leg.variant, leg.runner_text, leg.image or "none", leg.timeout) for leg in plan.legs]
    add_summary(head, rows)
    if unbuilt:
        head = [f"### {len(unbuilt)} variants left out", "", "| kernel | variant | why |", "|---|---|---|"]
        add_summary(head, [table_row(item.kernel, item.variant, item.reason) for item in unbuilt])


if __name__ == "__main__":
    run_action(main)
