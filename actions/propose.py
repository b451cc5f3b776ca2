"""kci/build/propose: from what exists in the world to pull requests with the next edition and with migrations."""

from __future__ import annotations

import datetime
import os
import re

import kci
from common import add_summary, fail, flag_input, lines_input, required_input, run_action, set_output
from kci.diagnostics import printable
from kci.moves.proposals import wanted_moves
from kci.moves.pull_requests import GitHubPulls, PullActionKind, carry_out_pulls, decide_pulls, pull_line


def main() -> None:
    """Make the pull requests what the world and kci.toml ask for. What cannot be read changes nothing."""
    dry_run, author, base = flag_input("dry-run", "false"), required_input("author"), required_input("base")
    commit = os.environ["GITHUB_SHA"]
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        fail("GITHUB_SHA is not a commit", 2)
    workspace = kci.open_workspace(lines_input("kernels") or ["."])
    found = wanted_moves(workspace, datetime.datetime.now(datetime.UTC).date().isoformat())
    tracker = GitHubPulls(os.environ["GITHUB_REPOSITORY"], author, base, commit)
    known = tracker.pulls([pull.branch for pull in found.wanted])
    actions = decide_pulls(found.wanted, known, workspace.settings.settings.schedule.moves.most)
    done = [pull_line(action) for action in actions] if dry_run else carry_out_pulls(actions, tracker)
    for line in [*done, *(f"by hand: {line}" for line in found.by_hand)]:
        print(printable(line))
    changed = 0 if dry_run else sum(action.kind is not PullActionKind.LEAVE for action in actions)
    print(f"{len(found.wanted)} wanted, {changed} changed")
    set_output("changed", str(changed))
    if found.by_hand:
        add_summary(["### Takes a person", ""], [f"    {printable(line)}" for line in found.by_hand])


if __name__ == "__main__":
    run_action(main)
