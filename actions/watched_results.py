"""What the actions of a scheduled run's legs share: which run it is, and the results that they upload."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from common import add_table, fail, flag_input, runner_temp, set_output, warn
from kci.watch.history import LegOutcome, LegResult
from kci.watch.scheduled_leg import WatchedRun, write_results


def watched_run(catalog: str, attempt: int, run_id: str) -> WatchedRun:
    """The scheduled run that this job is a part of, and which look at a leg it is."""
    number, server = os.environ.get("GITHUB_RUN_NUMBER", ""), os.environ.get("GITHUB_SERVER_URL", "")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        fail("GITHUB_RUN_NUMBER is not a number: results belong to a run of a workflow", 2)
    log = f"{server}/{os.environ.get('GITHUB_REPOSITORY', '')}/actions/runs/{run_id}" if server else ""
    look = 2 if flag_input("again", "false") else 1
    # A runner that GitHub hosts exists for one job; the name of another one says whether two looks had two machines.
    machine = "" if os.environ.get("RUNNER_ENVIRONMENT") == "github-hosted" else os.environ.get("RUNNER_NAME", "")
    machine = re.sub(r"[^A-Za-z0-9._+-]", "-", machine)[:200]
    return WatchedRun(int(number), attempt, catalog, os.environ.get("GITHUB_SHA", ""), log, look, machine)


def upload_results(results: Sequence[LegResult], name: str) -> None:
    """Write the results of a leg of a scheduled run for the upload, and say what they are."""
    folder = runner_temp() / "kci-results"
    write_results(folder, results)
    rows = []
    for item in results:
        first = item.error.partition("\n")[0][:300]
        rows.append((item.kernel, item.variant, item.torch, item.outcome, first))
        if item.outcome is LegOutcome.FAILED:
            warn(f"{item.variant} with torch {item.torch}: {first}")
            print(f"To do the same on your machine:\n  {item.replay}", flush=True)
    add_table("Results", ("kernel", "variant", "torch", "result", "error"), rows)
    again = "-again" if any(item.look > 1 for item in results) else ""  # names of artifacts are taken once
    set_output("results-name", f"watch-{name}{again}")
    set_output("results-folder", str(folder))
