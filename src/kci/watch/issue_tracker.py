"""GitHub's API through its command line, which carries out what was decided about issues.

It can be done again at any time: an issue is found by the mark in its text, which names the cause and the run in which
it began, so that none is opened twice and one that was missed is made up for by the next run. An issue that a person
has closed stays closed. The run in which a cause began can turn out to be another, one that records late or runs again:
so an issue is also that of a cause if it began while the cause was there. One that no decision is about any more, as
after a change of the rules, is closed.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from kci.diagnostics import printable
from kci.errors import FindingsError, MissingToolError
from kci.utils.bounded_json import decode_json
from kci.watch.decide import ActionKind, IssueAction

_SECONDS = 120

_Shape = TypeVar("_Shape")


class Account(msgspec.Struct, frozen=True):
    """Who has made something."""

    login: str = ""


class GitHubApi:
    """What one repository is asked and told."""

    def __init__(self, repository: str, hint: str, run: Callable[..., Any] = subprocess.run) -> None:
        """Name the repository (`owner/name`), and what to look at when GitHub refuses; `run` is as `subprocess.run`."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}", repository):
            raise FindingsError(f"{repository[:80]!r} is not the name of a repository")
        self.owner = repository.partition("/")[0]
        self._root = f"repos/{repository}"
        self._hint = hint
        self._process = run

    def ask(self, method: str, path: str, **fields: object) -> bytes:
        """Ask once, by a method of HTTP for a path below the repository; `fields` are sent as JSON.

        MissingToolError without `gh`; FindingsError if GitHub does not answer, or refuses.
        """
        command = ["gh", "api", "--method", method, f"{self._root}/{path}"]
        command += ["--input", "-"] if fields else []
        try:
            done = self._process(
                command, input=json.dumps(fields).encode(), capture_output=True, check=False, timeout=_SECONDS
            )
        except FileNotFoundError:
            raise MissingToolError("GitHub's command line is not installed", hint="install gh") from None
        except subprocess.TimeoutExpired:
            raise FindingsError("GitHub does not answer", hint="the next run does what this one could not") from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = printable((said or ["no reason"])[0], " ")[:300]
            raise FindingsError(f"{method} {self._root}/{path.partition('?')[0]}: {reason}", hint=self._hint)
        return bytes(done.stdout)

    def told(self, shape: type[_Shape], method: str, path: str, **fields: object) -> _Shape:
        """The answer as a type. Raises as `ask`, and FindingsError if it has another type."""
        try:
            return decode_json(self.ask(method, path, **fields), shape)
        except ValueError as error:
            raise FindingsError(f"cannot read GitHub's answer: {error}") from None


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


def carry_out(
    actions: Sequence[IssueAction], tracker: GitHubIssues, recorded: tuple[int, int] | None = None
) -> list[str]:
    """Make the issues what they should be; returns a line for each issue that was changed.

    Args:
        actions: the latest decisions about each cause, see `kci.watch.decide.standing`.
        tracker: the issues.
        recorded: the first and the last run of the whole history. An open issue that began in between and that no
            decision is about is closed; without it, as where a part could not be read, none is.
    """
    left: dict[tuple[str, int], TrackedIssue] = {}
    twice: list[TrackedIssue] = []
    for issue in tracker.issues():
        if issue.key is not None and left.setdefault(issue.key, issue) is not issue and issue.is_open:
            twice.append(issue)
    ours = [(action, left.pop((action.id, action.since), None)) for action in actions]
    done = []
    for action, exact in reversed(ours):  # the latest first: an open issue is about what is there now
        there = exact or _of_same(action, left)
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
    first, last = recorded or (0, -1)
    for issue in [*twice, *(issue for (_, since), issue in left.items() if first <= since <= last)]:
        if issue.is_open:
            tracker.close(issue.number, issue.title, f"{_OVER}\n\n{issue.body or ''}"[:_BODY])
            done.append(f"closed #{issue.number}, which no decision is about: {issue.title}")
    return done


_OVER = (
    "No decision of kci is about this any more: what it says is in another issue, or was a mistake of an earlier run."
)
_BODY = 60_000


def _of_same(action: IssueAction, left: dict[tuple[str, int], TrackedIssue]) -> TrackedIssue | None:
    """The issue of the same cause that began while the cause was there, if there is one; it is taken out of `left`."""
    until = 2**63 if action.until is None else action.until
    found = [key for key in left if key[0] == action.id and action.since <= key[1] <= until]
    found += [key for key, issue in left.items() if key[0] == action.id and issue.is_open and key not in found]
    return left.pop(found[0]) if found else None
