"""kci/build/decide: from the history of scheduled runs to issues and a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import (
    add_summary,
    flag_input,
    history_branch,
    required_input,
    run_action,
    runner_temp,
    set_output,
)
from kci.cli._output import print_diagnostics
from kci.config.discovery import find_settings
from kci.diagnostics import Diagnostic, printable
from kci.plan.settings_lints import replaced_settings
from kci.watch.decide import standing
from kci.watch.history import RecordedRun, each_run
from kci.watch.issue_tracker import GitHubIssues, carry_out
from kci.watch.leg_grid import grid_of
from kci.watch.report_page import markdown_report, write_site


def main() -> None:
    """Make issues and report what the history asks for."""
    dry_run, author = flag_input("dry-run", "false"), required_input("author")
    repository = os.environ["GITHUB_REPOSITORY"]
    settings = find_settings(Path())
    policy = settings.settings.schedule.issues
    dry_run = dry_run or not policy.carry_out
    problems: list[Diagnostic] = []
    numbers: list[int] = []

    def each(history: Path) -> Iterator[RecordedRun]:
        for run in each_run(history, problems.append):
            numbers.append(run.run)
            yield run

    with tempfile.TemporaryDirectory(dir=runner_temp()) as folder:
        history = history_branch().fetch(Path(folder) / "clone")
        actions = standing(each(history), policy)
        grid = grid_of(each_run(history, lambda _: None), policy)
    print_diagnostics([*problems, *replaced_settings(settings)])
    site = runner_temp() / "kci-report"
    write_site(grid, site, repository)
    set_output("report", str(site))
    add_summary([], markdown_report(grid, repository).splitlines())
    if dry_run:
        for action in actions:
            print(f"{action.kind} {action.id}: {printable(action.title)}")
        return
    recorded = (min(numbers), max(numbers)) if numbers and not problems else None
    for line in carry_out(actions, GitHubIssues(repository, author), recorded):
        print(printable(line))


if __name__ == "__main__":
    run_action(main)
