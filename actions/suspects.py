"""kci/build/suspects: what failed in a scheduled run in a way that is new, as the jobs that look at it again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import compact_json, fail, history_branch, required_input, run_action, runner_temp, set_output
from kci.cli._output import print_diagnostics
from kci.config.settings import Decisions
from kci.diagnostics import Diagnostic
from kci.plan.github_limits import github_matrix, tests_matrix, work_of
from kci.run.tree_index import NO_PLAN, RunUploads, read_uploads
from kci.utils.suggest import count
from kci.watch.decide import WatchState
from kci.watch.history import each_run, gather, merged, read_results
from kci.watch.scheduled_leg import MOST, second_look


def main() -> None:
    """Compare what the legs uploaded with the history, and plan the second look."""
    folder, records = Path(required_input("results")), Path(required_input("records"))
    plan = (read_uploads(records) if records.is_dir() else RunUploads()).plan
    if plan == NO_PLAN:
        fail("there is no plan of this run", 1, "see the plan job")
    results, problems = read_results([folder] if folder.is_dir() else [])
    runs, _ = gather(results)
    suspects: list[str] = []
    if runs:
        found: list[Diagnostic] = []
        watch, this = WatchState(Decisions()), merged(runs)
        with tempfile.TemporaryDirectory(dir=runner_temp()) as place:
            for run in each_run(history_branch().fetch(Path(place) / "clone"), found.append):
                if run.run != this.run:
                    watch.step(run)
        print_diagnostics([*problems, *found])
        suspects = watch.suspects(this)
    again = second_look(plan, suspects)
    jobs = len(again.legs) + len(again.tests)
    for leg in suspects:
        print(leg)
    print(f"{count(len(suspects), 'suspect')}, {count(jobs, 'job')} to look again")
    if max(len(again.legs), len(again.tests)) == MOST:
        print(f"no more than {MOST} jobs look again; the others are suspects until the next run")
    set_output("has-work", "true" if jobs else "false")
    set_output("has-legs", "true" if again.legs else "false")
    set_output("matrix", github_matrix(again))
    set_output("tests", compact_json(tests_matrix(again.tests)))
    set_output("callers", work_of(again, 1, unmerged=True)[1:-1])  # of a list of one


if __name__ == "__main__":
    run_action(main)
