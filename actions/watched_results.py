"""What the actions of a scheduled run's legs share: which run it is, and the results that they upload."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from common import add_table, fail, runner_temp, set_output, warn
from kci.ci.watched_leg import WatchedRun, write_results
from kci.watch.history import LegOutcome, LegResult


def watched_run(catalog: str, attempt: int, run_id: str) -> WatchedRun:
    """The scheduled run that this job is a part of."""
    number, server = os.environ.get("GITHUB_RUN_NUMBER", ""), os.environ.get("GITHUB_SERVER_URL", "")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        fail("GITHUB_RUN_NUMBER is not a number: results belong to a run of a workflow", 2)
    log = f"{server}/{os.environ.get('GITHUB_REPOSITORY', '')}/actions/runs/{run_id}" if server else ""
    return WatchedRun(int(number), attempt, catalog, os.environ.get("GITHUB_SHA", ""), log)


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
    set_output("results-name", f"watch-{name}")
    set_output("results-folder", str(folder))
