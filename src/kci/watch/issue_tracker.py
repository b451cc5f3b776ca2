"""Issues on GitHub through `gh api`, brought to the state that the decisions ask for.

It is idempotent: a mark in the text names the cause and its first run. An issue that a person
closed stays closed. The first run of a cause moves when a run is recorded late, so an issue also
matches if it began while the cause was there.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from kci.diagnostics import printable
from kci.errors import FindingsError, KciError, MissingToolError
from kci.run.gate import KEPT_DAYS, TreeIndex
from kci.utils.bounded_json import decode_json
from kci.utils.frozen import Frozen
from kci.utils.suggest import first_of
from kci.watch.decide import ActionKind, IssueAction

_SECONDS = 120

_Shape = TypeVar("_Shape")


class Account(Frozen):
    """A GitHub account."""

    login: str = ""


class GitHubApi:
    """The REST API of one repository."""

    hint = ""
    """It goes with each error."""

    def __init__(self, repository: str, run: Callable[..., Any] = subprocess.run) -> None:
        # `run` stands in for `subprocess.run`
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}", repository):
            raise FindingsError(f"{repository[:80]!r} is not the name of a repository")
        self._root = f"repos/{repository}"
        self._process = run

    def request(self, method: str, path: str, **fields: object) -> bytes:
        """Send one request for a path of the repository; MissingToolError without `gh`,
        FindingsError if it fails.
        """
        command = ["gh", "api", "--method", method, f"{self._root}/{path}"]
        command += ["--input", "-"] if fields else []
        try:
            done = self._process(
                command,
                input=json.dumps(fields).encode(),
                capture_output=True,
                check=False,
                timeout=_SECONDS,
            )
        except FileNotFoundError:
            raise MissingToolError("GitHub's command line is not installed", "install gh") from None
        except subprocess.TimeoutExpired:
            raise FindingsError(
                "GitHub does not answer", "the next run does what this one could not"
            ) from None
        if done.returncode != 0:
            output = done.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = printable((output or ["no reason"])[0], " ")[:300]
            raise FindingsError(
                f"{method} {self._root}/{path.partition('?')[0]}: {reason}", self.hint
            )
        return bytes(done.stdout)

    def get(self, shape: type[_Shape], path: str) -> _Shape:
        """The answer about a path, decoded as `shape`; as `request`, and FindingsError if it does
        not fit.
        """
        try:
            return decode_json(self.request("GET", path), shape)
        except ValueError as error:
            raise FindingsError(f"cannot read GitHub's answer: {error}") from None


_PAGE, _PAGES = 100, 100


def all_pages(ask: Callable[[str], Sequence[_Shape]]) -> Iterator[_Shape]:
    """The entries of at most `_PAGES` pages; `ask` gets the words of a query for one."""
    for page in range(1, _PAGES + 1):
        entries = ask(f"per_page={_PAGE}&page={page}")
        yield from entries
        if len(entries) < _PAGE:
            return


class Artifact(Frozen):
    """An artifact of GitHub's API."""

    id: int
    name: str
    size_in_bytes: int
    expired: bool = False


class _Artifacts(Frozen):
    artifacts: list[Artifact]


def run_artifacts(api: GitHubApi, run: int) -> Iterator[Artifact]:
    """The artifacts of a run; FindingsError if GitHub refuses or does not answer."""
    path = f"actions/runs/{run}/artifacts"
    return all_pages(lambda page: api.get(_Artifacts, f"{path}?{page}").artifacts)


def without_lost(index: TreeIndex, api: GitHubApi, warn: Callable[[str], None]) -> TreeIndex:
    """The index without the trees that are no longer in their runs, as far as GitHub says so."""
    names: dict[str, list[str]] = {}
    for run in sorted({place.run for place in index.trees.values()}):
        try:
            artifacts = run_artifacts(api, int(run or 0))
            names[run] = [item.name for item in artifacts if not item.expired]
        except KciError as error:
            if "HTTP 404" in error.message:  # as of a run that was deleted
                names[run] = []
            else:
                what = f"whether the trees of run {run} are still there"
                warn(f"it is unknown {what}: {error.message}")
    there = {
        kernel: place
        for kernel, place in index.trees.items()
        if place.run not in names
        or any(name.startswith(f"tree.{kernel}.") for name in names[place.run])
    }
    if lost := sorted(index.trees.keys() - there.keys()):
        gone = f"its artifact was deleted, or kept for less than {KEPT_DAYS} days"
        warn(f"the tree of {first_of(lost, 3)} is gone: {gone}; it is built once more")
    return replace(index, trees=there)


BOT = "github-actions[bot]"
"""The account of the jobs. Only its marks count: others can be copies."""

_MARK = re.compile(r"<!-- kci-cause: ([0-9a-f]{12}) since run (\d{1,20}) -->")


class TrackedIssue(Frozen):
    """An issue or pull request of GitHub's API."""

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
        """The cause id and the first run in its mark; None without one."""
        match = _MARK.match(self.body or "")
        return (match[1], int(match[2])) if match else None


class GitHubIssues(GitHubApi):
    """The issues of a repository on GitHub that `BOT` has opened."""

    hint = "may the job change issues (issues: write), and does the repository have any?"

    def issues(self) -> Iterator[TrackedIssue]:
        query = f"issues?state=all&creator={BOT}&sort=created&direction=desc"
        for item in all_pages(lambda page: self.get(list[TrackedIssue], f"{query}&{page}")):
            if item.pull_request is None and item.user and item.user.login == BOT:
                yield item

    def create(self, title: str, body: str) -> None:
        self.request("POST", "issues", title=title, body=body)

    def edit(self, number: int, title: str, body: str, **more: str) -> None:
        self.request("PATCH", f"issues/{number}", title=title, body=body, **more)

    def close(self, number: int, title: str, body: str) -> None:
        self.edit(number, title, body, state="closed", state_reason="completed")


def apply_actions(
    actions: Sequence[IssueAction], tracker: GitHubIssues, recorded: tuple[int, int] | None = None
) -> list[str]:
    """Apply decisions; returns a line per change.

    Open issues of `recorded` runs without a decision are closed.
    """
    unmatched: dict[tuple[str, int], TrackedIssue] = {}
    twice: list[TrackedIssue] = []
    for issue in tracker.issues():
        if issue.key and unmatched.setdefault(issue.key, issue) is not issue:
            twice.append(issue)
    ours = [(action, unmatched.pop((action.id, action.since), None)) for action in actions]
    report = []
    for action, exact in reversed(ours):
        current = exact or _find_issue(action, unmatched)
        body = action.body + (f"\ncc {' '.join(action.tell)}\n" if action.tell else "")
        if not current:
            if action.kind is not ActionKind.CLOSE:
                tracker.create(action.title, body)
                report.append(f"opened: {action.title}")
        elif current.is_open and action.kind is ActionKind.CLOSE:
            tracker.close(current.number, action.title, body)
            report.append(f"closed #{current.number}: {action.title}")
        elif current.is_open and (current.title, (current.body or "").strip()) != (
            action.title,
            body.strip(),
        ):
            tracker.edit(current.number, action.title, body)
            report.append(f"updated #{current.number}: {action.title}")
    first, last = recorded or (0, -1)
    for issue in [
        *twice,
        *(issue for (_, since), issue in unmatched.items() if first <= since <= last),
    ]:
        if issue.is_open:
            tracker.close(
                issue.number, issue.title, f"{_NO_DECISION}\n\n{issue.body or ''}"[:_BODY]
            )
            report.append(f"closed #{issue.number}, which no decision is about: {issue.title}")
    return report


_NO_DECISION = (
    "No decision of kci is about this any more: what it says is in another issue, or was a "
    "mistake of an earlier run."
)
_BODY = 60_000


def _find_issue(
    action: IssueAction, unmatched: dict[tuple[str, int], TrackedIssue]
) -> TrackedIssue | None:
    until = 2**63 if action.until is None else action.until
    same = [key for key in unmatched if key[0] == action.id]
    keys = [key for key in same if action.since <= key[1] <= until]
    keys += [key for key in same if unmatched[key].is_open]
    return unmatched.pop(keys[0]) if keys else None
