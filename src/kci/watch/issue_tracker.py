"""Carries out what was decided about issues, on GitHub through its command line.

It can be done again at any time: an issue is found by the mark in its text, which names the cause and the run in which
it began, so that none is opened twice and one that was missed is made up for by the next run. An issue that a person
has closed stays closed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from kci.watch.decide import ActionKind, IssueAction
from kci.watch.github_api import Account, GitHubApi

_MARK = re.compile(r"<!-- kci-cause: ([0-9a-f]{12}) since run (\d{1,20}) -->")
_PAGE, _PAGES = 100, 100


class TrackedIssue(msgspec.Struct, frozen=True):
    """An issue or pull request, as GitHub tells it."""

    number: int
    state: str
    title: str
    body: str | None = None
    user: Account | None = None
    pull_request: Any = None

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    @property
    def key(self) -> tuple[str, int] | None:
        """The cause and the run that it is about; None if it is not one of kci's."""
        found = _MARK.match(self.body or "")
        return (found[1], int(found[2])) if found else None


class GitHubIssues:
    """The issues of a repository on GitHub."""

    def __init__(self, repository: str, author: str, run: Callable[..., Any] = subprocess.run) -> None:
        """Name the repository, and whose issues count; others may hold a mark that somebody has copied."""
        hint = "may the job change issues (issues: write), and does the repository have any?"
        self._api = GitHubApi(repository, hint, run)
        self._author = author

    def issues(self) -> Iterator[TrackedIssue]:
        """All that kci has opened, open or closed, the newest first."""
        for page in range(1, _PAGES + 1):
            query = f"state=all&creator={self._author}&sort=created&direction=desc&per_page={_PAGE}&page={page}"
            found = self._api.told(list[TrackedIssue], "GET", f"issues?{query}")
            for item in found:
                if item.pull_request is None and item.user is not None and item.user.login == self._author:
                    yield item
            if len(found) < _PAGE:
                return

    def create(self, title: str, body: str) -> None:
        self._api.ask("POST", "issues", title=title, body=body)

    def edit(self, number: int, title: str, body: str) -> None:
        self._api.ask("PATCH", f"issues/{number}", title=title, body=body)

    def close(self, number: int, title: str, body: str) -> None:
        """Close one, and say why in its text."""
        self._api.ask("PATCH", f"issues/{number}", title=title, body=body, state="closed", state_reason="completed")


def carry_out(actions: Iterable[IssueAction], tracker: GitHubIssues) -> list[str]:
    """Make the issues what they should be; returns a line for each issue that was changed.

    `actions` are the latest decisions about each cause, see `kci.watch.decide.standing`.
    """
    known: dict[tuple[str, int], TrackedIssue] = {}
    for issue in tracker.issues():
        if issue.key is not None:
            known.setdefault(issue.key, issue)
    done = []
    for action in actions:
        there = known.get((action.id, action.since))
        body = action.body + (f"\ncc {' '.join(action.tell)}\n" if action.tell else "")
        if there is None:
            if action.kind is not ActionKind.CLOSE:
                tracker.create(action.title, body)
                done.append(f"opened: {action.title}")
        elif there.is_open and action.kind is ActionKind.CLOSE:
            tracker.close(there.number, action.title, body)
            done.append(f"closed #{there.number}: {action.title}")
        elif there.is_open and (there.title, (there.body or "").strip()) != (action.title, body.strip()):
            tracker.edit(there.number, action.title, body)
            done.append(f"updated #{there.number}: {action.title}")
    return done
