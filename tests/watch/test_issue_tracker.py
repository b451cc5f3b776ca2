"""Decisions carried out: no issue twice, none closed without a pass, and what a run missed is made
up for.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from conftest import failure
from kci.config.settings import Decisions
from kci.errors import FindingsError, MissingToolError
from kci.watch.decide import FailureTracker, IssueAction, latest_decisions
from kci.watch.history import RecordedRun
from kci.watch.issue_text import mark
from kci.watch.issue_tracker import GitHubIssues, TrackedIssue, apply_actions
from watch.test_decide import AGAIN, run

BOT = "github-actions[bot]"


class Tracker:
    """Issues in memory."""

    def __init__(self) -> None:
        self.all: list[TrackedIssue] = []

    def issues(self) -> Iterable[TrackedIssue]:
        return reversed(self.all)

    def create(self, title: str, body: str) -> None:
        self.all.append(TrackedIssue(len(self.all) + 1, "open", title, body))

    def edit(self, number: int, title: str, body: str) -> None:
        self.all[number - 1] = replace(self.all[number - 1], title=title, body=body)

    def close(self, number: int, title: str, body: str) -> None:
        self.all[number - 1] = TrackedIssue(number, "closed", title, body)

    def open_numbers(self) -> list[int]:
        return [issue.number for issue in self.all if issue.is_open]


def days(*outcomes: dict[str, str]) -> list[RecordedRun]:
    return [run(number, **outcome) for number, outcome in enumerate(outcomes, 1)]


FAIL, PASS, BOTH = {"cpu": "fail"}, {"cpu": "pass"}, {"cpu": "fail", "norm": "fail"}


def latest(runs: list[RecordedRun]) -> list[IssueAction]:
    return latest_decisions(runs, FailureTracker(Decisions()))


def follow(tracker: Tracker, runs: list[RecordedRun]) -> list[list[str]]:
    """What is done after each run."""
    return [apply_actions(latest(runs[: number + 1]), tracker) for number in range(len(runs))]


def test_an_issue_is_opened_updated_and_closed() -> None:
    tracker = Tracker()
    passing = {"cpu": "pass", "norm": "pass"}
    done = follow(tracker, days(FAIL, FAIL, FAIL, BOTH, BOTH, passing, PASS))
    assert [[line.split(" ")[0].rstrip(":") for line in lines] for lines in done] == [
        [], ["opened"], [], [], ["updated"], ["closed"], [],
    ]  # fmt: skip
    assert len(tracker.all) == 1
    assert tracker.open_numbers() == []
    assert "Every leg below passes again." in tracker.all[0].body


def test_an_issue_is_closed_by_a_person_and_not_by_a_lost_history() -> None:
    tracker = Tracker()
    follow(tracker, days(FAIL, FAIL))
    assert apply_actions(latest([]), tracker) == []
    assert tracker.open_numbers() == [1]
    tracker.close(1, tracker.all[0].title, tracker.all[0].body)
    assert follow(tracker, days(FAIL, FAIL, BOTH, BOTH)) == [[], [], [], []]
    assert tracker.open_numbers() == []


def test_a_mark_counts_at_the_beginning_only() -> None:
    made = "<!-- kci-cause: 0123456789ab since run 1 -->"
    for body, key in ((f"> {made}", None), (f"{made}\nx", ("0123456789ab", 1))):
        assert TrackedIssue(1, "open", "t", body).key == key


# --- GitHub ---------------------------------------------------------------------------------------


class Gh:
    """Stands for `subprocess.run` of gh."""

    def __init__(self, *answers: Any, code: int = 0) -> None:
        self.answers = list(answers)
        self.code = code
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(
        self, command: list[str], *, input: bytes, **_: Any
    ) -> subprocess.CompletedProcess[bytes]:
        assert command[:3] == ["gh", "api", "--method"]
        self.asked.append((command[3], command[4], json.loads(input)))
        answer = json.dumps(self.answers.pop(0) if self.answers else {}).encode()
        return subprocess.CompletedProcess(command, self.code, answer, b"HTTP 403: no\nmore")


def told(number: int, **more: Any) -> dict[str, Any]:
    said = {"number": number, "state": "open", "title": "t", "body": "b", "user": {"login": BOT}}
    return said | more


def test_issues_of_others_and_pull_requests_are_left_alone() -> None:
    others = [told(2, user={"login": "mallory"}), told(3, pull_request={})]
    gh = Gh([told(1), *others, told(4, body=None, state="closed")])
    issues = GitHubIssues("acme/kernels", gh).issues()
    found = [(issue.number, issue.is_open, issue.body) for issue in issues]
    assert found == [(1, True, "b"), (4, False, None)]


def test_changes_are_sent_as_json() -> None:
    gh = Gh()
    issues = GitHubIssues("acme/kernels", gh)
    issues.create("t", "b")
    issues.edit(3, "t", "b")
    issues.close(3, "t", "b")
    place, sent = "repos/acme/kernels/issues", {"title": "t", "body": "b"}
    assert gh.asked == [
        ("POST", place, sent),
        ("PATCH", f"{place}/3", sent),
        ("PATCH", f"{place}/3", {**sent, "state": "closed", "state_reason": "completed"}),
    ]


def test_a_refusal_is_said() -> None:
    refused = GitHubIssues("acme/kernels", Gh(code=1)).create
    failure(FindingsError, "POST repos/acme/kernels/issues: HTTP 403: no", refused, "t", "b")
    failure(FindingsError, "not the name of a repository", GitHubIssues, "acme/kernels/../x")

    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError

    alone = GitHubIssues("acme/kernels", missing).create
    failure(MissingToolError, "command line", alone, "t", "b")


# --- two runs at once, and histories of other versions --------------------------------------------


def test_a_run_that_records_late_opens_no_second_issue() -> None:
    """Run 3 is recorded before run 2, and the cause turns out to have begun earlier."""
    one, two, three = days(PASS, AGAIN, AGAIN)
    tracker = Tracker()
    apply_actions(latest([one, three]), tracker, (1, 3))
    assert tracker.all[0].key == (latest([one, three])[0].id, 3)
    apply_actions(latest([one, two, three]), tracker, (1, 3))
    assert [issue.key for issue in tracker.all] == [(latest([one, three])[0].id, 2)]
    assert tracker.open_numbers() == [1]


def test_an_issue_that_no_decision_is_about_is_closed() -> None:
    """An older version named causes in another way, or the run that began it was run again and
    passed.
    """
    tracker = Tracker()
    tracker.create("relu: old words", f"{mark('0' * 12, 2)}\nold")
    runs = days(PASS, AGAIN, AGAIN)
    # What was not read can name it.
    assert apply_actions(latest(runs), tracker) == ["opened: relu: no member named 'x'"]
    assert tracker.open_numbers() == [1, 2]
    assert apply_actions(latest(runs), tracker, (5, 9)) == [], "it began before the history does"
    done = apply_actions(latest(runs), tracker, (1, 3))
    assert done == ["closed #1, which no decision is about: relu: old words"]
    assert "No decision of kci is about this any more" in (tracker.all[0].body or "")
    assert tracker.open_numbers() == [2]
