"""kci/build/plan: plans a run, as a job matrix and as the plan for merging."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

import kci
from kci.actions import common
from kci.cli._answers import left_out_sentence, plan_tables
from kci.cli._output import print_diagnostics, print_kernel_findings
from kci.config.facts import needs_device
from kci.config.settings import Settings
from kci.config.values import Forks, Tier
from kci.plan.affected import pull_request_base
from kci.plan.github_limits import (
    MAX_OUTPUT_UNITS,
    caller_matrices,
    only_hosted,
    only_own,
    output_units,
    untested,
    without_tests,
)
from kci.plan.plan import MAX_MATRIX, allowances
from kci.publish.targets import require_branches
from kci.run.gate import INDEX_FILE, TreeIndex, next_index, today
from kci.run.records import PLAN_FILE, ci_run, write_record
from kci.tree.manifest import read_published
from kci.utils.atomic import write_atomic
from kci.utils.suggest import count
from kci.watch.issue_tracker import GitHubApi, without_lost

MAX_INPUT = 120 * 1024
"""Bytes of an action's input: Linux ends a program with a longer variable than 128 KiB, which has
all inputs."""


def main() -> None:
    """Plan once and set the outputs."""
    callers, chosen = common.count_input("callers", 0, 999), common.words_input("kernel")
    jobs = part_jobs(common.text_input("parts", "false"))
    if jobs and not callers:
        common.fail("the input `parts` needs `callers`: one matrix for all has no job that links")
    uploaded, watch = common.flag_input("upload"), common.flag_input("watch")
    if (machines := common.text_input("machines", "all")) not in ("all", "own"):
        common.fail(f"the input `machines` must be all or own, not {machines[:40]!r}")
    index = earlier_trees()
    os.environ.pop("GH_TOKEN", None)  # nothing else needs it
    workspace = kci.open_workspace(common.lines_input("kernels") or ["."], set_aside=True)
    settings = workspace.settings.settings
    trees = [common.unpacked(Path(place)) for place in common.lines_input("published")]
    published, problems = read_published(trees)
    tier = tier_of(settings, common.text_input("tier", "release"))
    backends, only = common.words_input("backends"), common.words_input("only")
    known = index.for_plan()
    request = kci.PlanRequest(
        choice=kci.Choice(tier=tier, backends=tuple(backends), only=tuple(only)),
        container=common.text_input("container") or True,
        affected=affected_base(),
        **known | {"published": published | known["published"]},
        fingerprints=True,
        callers=callers or None,
        split=jobs > 0,
        part_jobs=jobs,
        allow_empty=common.flag_input("allow-empty"),
    )
    with common.group("Plan"):
        if chosen:
            workspace = workspace.only(chosen)
        if common.flag_input("publish"):
            workspace = require_branches(workspace)
        planned = kci.plan_run(workspace, request)
        plan = planned.plan
        warnings = [item for item in planned.diagnostics if item.severity is not kci.Severity.ERROR]
        # the gate reports the faults
        print_kernel_findings([*workspace.diagnostics, *problems, *warnings, *plan.faults])
        planned.require_runnable()
    if os.environ.get("KCI_FORK", "false") != "false":
        plan = only_hosted(plan, dispatched=settings.pull_request.forks is Forks.DISPATCH)
        print_diagnostics(untested(planned.plan, plan))
    elif machines == "own":
        plan = only_own(plan)
    if not callers:
        plan = without_tests(plan)
    elif watch:  # the legs of a scheduled run test for the CPU themselves
        plan = replace(plan, tests=tuple(test for test in plan.tests if needs_device(test.backend)))
    planned = planned.with_plan(plan)
    outputs = (
        {"callers": caller_matrices(plan, callers, request.trees, jobs)}
        if callers
        else {"matrix": planned.github_matrix(), "plan": _merge_input(plan, uploaded=uploaded)}
    )
    if output_units("".join(outputs.values())) > MAX_OUTPUT_UNITS:
        hint = "plan fewer kernels, or fewer backends"
        common.fail("the plan is larger than the outputs of a job may be", 1, hint)
    parallel = allowances(("", leg) for leg in plan.legs).get(("", False), MAX_MATRIX)
    common.set_outputs(**outputs, parallel=parallel, has_work=bool(plan.legs or plan.tests))
    # the whole plan, for the gate
    whole = common.compact_json(planned.as_json() | {"attempt": ci_run().attempt or 1})
    write_atomic(common.runner_temp() / "kci-plan" / PLAN_FILE, whole.encode())
    common.show(f"{count(len(plan.legs), 'leg')}, {count(len(plan.skipped), 'variant')} skipped")
    common.show(left_out_sentence(plan) or "nothing is left out")
    common.add_tables(*plan_tables(planned))


def _merge_input(plan: kci.Plan, *, uploaded: bool) -> str:
    text = common.compact_json(plan.tree_plan())
    if len(common.compact_json(text).encode()) <= MAX_INPUT:
        return text
    if not uploaded:
        then = "give kci/build/merge the folder with the artifact run-plan.*"
        message = "the plan is larger than an input of kci/build/merge may be"
        common.fail(message, 1, f'set `upload: "true"`, and {then}')
    return "too large for an input: download the artifact run-plan.*"


def tier_of(settings: Settings, name: str) -> str:
    """The tier of that name; for `auto` that of kci.toml for the run's event."""
    if name != "auto":
        return name
    checked = settings.pull_request.tier
    by_event = {"pull_request": checked, "merge_group": checked, "schedule": settings.schedule.tier}
    return by_event.get(os.environ.get("GITHUB_EVENT_NAME", ""), Tier.RELEASE)


def part_jobs(text: str) -> int:
    """The number of jobs that compile parts: `true` is one."""
    if text in ("true", "false"):
        return int(text == "true")
    return common.count_input("parts", 0, 999) or 0


def affected_base() -> str | None:
    """The commit that changes are counted from; None to plan everything."""
    base = common.text_input("affected-base")
    if base == "pull-request":
        return pull_request_base(Path(), os.environ.get("KCI_PULL_REQUEST", ""))
    return base or None


def earlier_trees() -> TreeIndex:
    """Read and forward the index of earlier trees; it is uploaded at once: the next run needs it in
    any case.
    """
    folder, run = common.text_input("earlier"), common.text_input("earlier-run")
    try:
        index = next_index(Path(folder) if folder else None, run, today())
    except kci.FindingsError as error:
        common.warn(f"everything is built once more: {error.message}")
        index = TreeIndex(day=today())
    if os.environ.get("GH_TOKEN"):
        index = without_lost(index, GitHubApi(os.environ["GITHUB_REPOSITORY"]), common.warn)
    index = replace(index, attempt=ci_run().attempt or 1)
    place = common.runner_temp() / "kci-plan"
    write_record(place / INDEX_FILE, index)
    common.set_outputs(folder=place, file_name=f"run-plan.{index.attempt}")
    return index
