"""kci/build/actions/schedule: the steps of a scheduled run after its legs: `record`, `retry` and
`report`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.actions import common
from kci.cli._output import print_diagnostics
from kci.config.discovery import find_settings
from kci.config.settings import Decisions
from kci.diagnostics import Diagnostic, printable
from kci.plan.github_limits import caller_matrices
from kci.run.gate import NO_PLAN, read_uploads
from kci.run.records import ci_run
from kci.utils.suggest import count
from kci.watch.decide import FailureTracker, decide, latest_decisions
from kci.watch.history import (
    LegOutcome,
    LegResult,
    RecordedRun,
    github_history,
    group_results,
    merge_parts,
    read_results,
    read_runs,
)
from kci.watch.issue_tracker import GitHubIssues, apply_actions
from kci.watch.report import make_grid, markdown_report
from kci.watch.scheduled_leg import MAX_SECOND_LOOKS, blank_result, second_look, write_results


def main() -> None:
    """Run the step that the input names."""
    steps = {"record": record, "retry": retry, "report": report}
    step = common.required_input("step")
    if step not in steps:
        common.fail(f"the input `step` must be one of {', '.join(steps)}, not {step[:40]!r}")
    steps[step]()


def record() -> None:
    """Append the legs' results to the history."""
    results, problems = _results()
    print_diagnostics(problems)
    new = github_history().record(group_results(results)) if results else 0
    print(f"{count(len(results), 'result')}, {count(new, 'new file')} in the history")


def retry() -> None:
    """Compare the results with the history and plan a second look at new failures."""
    plan = read_uploads(common.runner_temp() / "kci-records").plan
    if plan == NO_PLAN:
        common.fail("there is no plan of this run", 1, "see the plan job")
    results, problems = _results()
    suspects: list[str] = []
    if results:
        watch, this = FailureTracker(Decisions()), merge_parts(group_results(results))
        decide((run for run in _history(problems) if run.run != this.run), watch)
        print_diagnostics(problems)
        suspects = watch.suspects(this)
    again = second_look(plan, suspects)
    jobs = len(again.legs) + len(again.tests)
    for leg in suspects:
        print(leg)
    print(f"{count(len(suspects), 'suspect')}, {count(jobs, 'job')} to look again")
    if max(len(again.legs), len(again.tests)) == MAX_SECOND_LOOKS:
        rest = "the others are suspects until the next run"
        print(f"no more than {MAX_SECOND_LOOKS} jobs look again; {rest}")
    common.set_outputs(has_work=jobs > 0, callers=caller_matrices(again, 1, unmerged=True)[1:-1])


def report() -> None:
    """Update the issues and write the report."""
    repository, problems = os.environ["GITHUB_REPOSITORY"], list[Diagnostic]()
    watch = FailureTracker(find_settings(Path()).settings.schedule.issues)
    actions = latest_decisions(_history(problems), watch)
    print_diagnostics(problems)
    common.add_summary((), markdown_report(make_grid(watch), repository).splitlines())
    if not watch.policy.carry_out:
        for action in actions:
            print(f"{action.kind} {action.id}: {printable(action.title)}")
        return
    recorded = (watch.runs[0].run, watch.runs[-1].run) if watch.runs and not problems else None
    for line in apply_actions(actions, GitHubIssues(repository), recorded):
        print(printable(line))


def _history(problems: list[Diagnostic]) -> Iterator[RecordedRun]:
    with tempfile.TemporaryDirectory(dir=common.runner_temp()) as place:
        yield from read_runs(github_history().fetch(Path(place) / "clone"), problems.append)


def _results() -> tuple[list[LegResult], list[Diagnostic]]:
    return read_results(common.runner_temp().glob("kci-results"))  # no folder without a leg


def scheduled_result(catalog: str) -> LegResult:
    """A result that identifies this job's scheduled run and look."""
    known, run = os.environ.get, ci_run()
    number, server = known("GITHUB_RUN_NUMBER", ""), known("GITHUB_SERVER_URL", "")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        common.fail("GITHUB_RUN_NUMBER is not a number: results belong to a run of a workflow")
    # A second look counts only on another machine: a GitHub-hosted runner has no name to compare.
    machine = "" if known("RUNNER_ENVIRONMENT") == "github-hosted" else known("RUNNER_NAME", "")
    return blank_result(
        int(number),
        attempt=run.attempt or 1,
        catalog=catalog,
        commit=known("GITHUB_SHA", ""),
        log=f"{server}/{known('GITHUB_REPOSITORY', '')}/actions/runs/{run.id}" if server else "",
        look=2 if common.flag_input("retry") else 1,
        machine=re.sub(r"[^A-Za-z0-9._+-]", "-", machine)[:200],
    )


def upload_results(results: Sequence[LegResult], name: str) -> None:
    """Write the results of a leg for the upload, and report them."""
    folder = common.runner_temp() / "kci-results"
    write_results(folder, results)
    rows = []
    for item in results:
        first = item.error.partition("\n")[0][:300]
        rows.append((item.kernel, item.variant, item.torch, item.outcome, first))
        if item.outcome is LegOutcome.FAILED:
            common.warn(f"{item.variant} with torch {item.torch}: {first}")
            common.show(f"To do the same on your machine:\n  {item.replay}")
    common.add_table("Results", ("kernel", "variant", "torch", "result", "error"), rows)
    retry = "-retry" if any(item.look > 1 for item in results) else ""
    common.set_outputs(results_name=f"watch-{name}{retry}", results_folder=folder)
