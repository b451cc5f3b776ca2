"""kci/build/talk: what kci says in pull requests, and what it is told there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from common import fail, flag_input, raw_input, required_input, run_action, runner_temp, show, text_input
from kci.ci.comment_commands import CommandSetup, Said, obey
from kci.ci.pull_comment import comment_of
from kci.ci.pull_talk import PullTalk, github_api, require_number
from kci.diagnostics import printable


def main() -> None:
    """Do what `about` says."""
    repository, about = os.environ["GITHUB_REPOSITORY"], required_input("about")
    pulls = PullTalk(github_api(repository), required_input("author"))
    if about == "comment":
        keep_comment(repository, pulls)
    elif about == "command":
        follow(repository, pulls)
    else:
        fail(f"the input `about` cannot be {about[:40]!r}", 2)


def follow(repository: str, pulls: PullTalk) -> None:
    """Do what a comment says, if it says something."""
    number, comment = text_input("number"), text_input("comment")
    pull, about = require_number(number, "pull request"), require_number(comment, "comment")
    said = Said(pull, about, text_input("by"), raw_input("text"), text_input("at"))
    several, publishes = flag_input("several", "false"), flag_input("publishes", "false")
    show(printable(obey(said, pulls, CommandSetup(repository, text_input("branch"), several, publishes))))


def keep_comment(repository: str, pulls: PullTalk) -> None:
    """Say what a run came to in each pull request whose newest commit it is of."""
    run = pulls.run(require_number(text_input("run"), "run"))
    if not run.of_pull_request:
        show("the run is not one of kci.yml for a pull request")
        return
    found = pulls.pulls_of(run)
    if not found:
        show(f"no open pull request is at {run.head_sha[:12]}: a newer commit was pushed, or it is closed")
        return
    with tempfile.TemporaryDirectory(dir=runner_temp()) as place:
        left = pulls.fetch_records(run, Path(place))
        for pull in found:
            body = comment_of(pull, run, Path(place), left, repository)
            show(f"#{pull.number}: {pulls.keep_comment(pull.number, body)}")


if __name__ == "__main__":
    run_action(main)
