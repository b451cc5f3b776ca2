"""kci/build/talk: what kci says in pull requests, and what it is told there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from common import (
    compact_json,
    fail,
    flag_input,
    raw_input,
    required_input,
    run_action,
    runner_temp,
    set_output,
    show,
    text_input,
)
from kci.ci.comment_commands import CommandSetup, Said, obey
from kci.ci.pull_comment import comment_of
from kci.ci.pull_talk import PullTalk, github_api, require_number
from kci.ci.staging import staged_before, staged_section, to_stage
from kci.diagnostics import printable


def main() -> None:
    """Do what `about` says."""
    repository, about = os.environ["GITHUB_REPOSITORY"], required_input("about")
    pulls = PullTalk(github_api(repository), required_input("author"))
    if about == "comment":
        keep_comment(repository, pulls)
    elif about == "command":
        follow(repository, pulls)
    elif about in ("stage", "unstage"):
        find_trees(pulls, required_input("staging"), commit=text_input("commit") if about == "stage" else "")
    elif about == "staged":
        tell_staged(repository, pulls)
    else:
        fail(f"the input `about` cannot be {about[:40]!r}", 2)


def follow(repository: str, pulls: PullTalk) -> None:
    """Do what a comment says, if it says something."""
    number, comment = text_input("number"), text_input("comment")
    pull, about = require_number(number, "pull request"), require_number(comment, "comment")
    said = Said(pull, about, text_input("by"), raw_input("text"), text_input("at"))
    several, publishes = flag_input("several", "false"), flag_input("publishes", "false")
    setup = CommandSetup(repository, text_input("branch"), several, publishes, flag_input("stages", "false"))
    show(printable(obey(said, pulls, setup)))


def find_trees(pulls: PullTalk, owner: str, *, commit: str) -> None:
    """Find what to stage of a commit, or without one what is staged."""
    number = require_number(text_input("number"), "pull request")
    with tempfile.TemporaryDirectory(dir=runner_temp()) as place:
        found = to_stage(pulls, number, commit, Path(place)) if commit else staged_before(pulls, number, owner)
    set_output("has-trees", "true" if found else "false")
    set_output("trees", compact_json({"include": found}))
    set_output("names", ",".join(tree.kernel for tree in found))
    show(", ".join(tree.kernel for tree in found) or "nothing is staged")


def tell_staged(repository: str, pulls: PullTalk) -> None:
    """Say in the comment of a pull request how to load what is staged, and then whether it is closed by now."""
    number, commit = require_number(text_input("number"), "pull request"), text_input("commit")
    run = pulls.newest_run(commit)
    if run is None:
        fail(f"{commit[:40]!r} has no run", 1)
    link = f"[run]({os.environ['GITHUB_SERVER_URL']}/{repository}/actions/runs/{os.environ['GITHUB_RUN_ID']})"
    names = required_input("names").split(",")
    text = staged_section(required_input("staging"), number, run.head_sha, names, text_input("ended"), link)
    pulls.keep_staged(number, run, text)
    set_output("closed", "false" if pulls.pull(number).state == "open" else "true")


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
