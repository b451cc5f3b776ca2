"""kci/build/actions/pull-request: writes the comment in pull requests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kci.actions import common
from kci.watch.pull_request import PullRequestComments, comment_text, run_number


def main() -> None:
    """Comment in each pull request with the run's commit as its head."""
    repository = os.environ["GITHUB_REPOSITORY"]
    pulls = PullRequestComments(repository)
    run = pulls.run(run_number(common.required_input("run")))
    if not run.is_for_pull_request:
        common.show("the run is not a run of kci.yml for a pull request")
        return
    if not (pull_requests := pulls.open_pull_requests(run)):
        why = "a newer commit was pushed, or it is closed"
        common.show(f"no open pull request is at {run.head_sha[:12]}: {why}")
        return
    with tempfile.TemporaryDirectory(dir=common.runner_temp()) as place:
        unread = pulls.fetch_records(run, Path(place))
        for pull in pull_requests:
            body = comment_text(pull, run, Path(place), unread, repository)
            common.show(f"#{pull.number}: {pulls.update_comment(pull.number, body)}")
