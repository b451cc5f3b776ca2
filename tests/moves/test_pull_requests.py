"""Pull requests: one for each subject, updated and never doubled, withdrawn when it is over, and a no that is kept."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from typing import Any
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

from conftest import ROOT
from kci.errors import FindingsError
from kci.moves.pull_requests import (
    EDITION_BRANCH,
    MIGRATE,
    FileChange,
    GitHubPulls,
    KnownPull,
    PullState,
    WantedPull,
    carry_out_pulls,
    decide_pulls,
)

BOT = "github-actions[bot]"
BASE = "b" * 40
EDITION = WantedPull(
    EDITION_BRANCH, "a" * 12, "Toolchains: torch 2.14, 2.15", "what changes\n",
    (FileChange("kci-catalog.toml", "rows\n"), FileChange("kci.toml", "catalog\n")), "c" * 12,
)  # fmt: skip


def kernel(name: str, about: str = "1" * 12) -> WantedPull:
    return WantedPull(MIGRATE + name, about, f"{name}: x", "b\n", (FileChange(f"{name}/build.toml", "t\n"),), "2" * 12)


def there(wanted: WantedPull, state: PullState = PullState.OPEN, *, number: int = 7, own: bool = True) -> KnownPull:
    return KnownPull(number, wanted.branch, state, wanted.about, wanted.content, own)


def decided(wanted: list[WantedPull], known: list[KnownPull], most: int = 5) -> list[tuple[str, str, int]]:
    return [(str(item.kind), item.branch, item.number) for item in decide_pulls(wanted, known, most)]


# --- the decisions ----------------------------------------------------------------------------------------------------


def test_one_is_opened_where_there_is_none() -> None:
    assert decided([EDITION], []) == [("open", EDITION_BRANCH, 0)]


def test_one_that_is_as_it_should_be_is_left_without_a_word() -> None:
    assert decided([EDITION], [there(EDITION)]) == []


def test_one_that_would_be_another_by_now_is_updated_and_no_second_one_opened() -> None:
    assert decided([replace(EDITION, about="d" * 12, content="e" * 12)], [there(EDITION)]) == [
        ("update", EDITION_BRANCH, 7)
    ]


def test_what_somebody_has_committed_to_is_theirs() -> None:
    other = replace(EDITION, content="e" * 12)
    assert decided([other], [there(EDITION, own=False)]) == [("leave", EDITION_BRANCH, 7)]
    assert decided([], [there(EDITION, own=False)]) == [("leave", EDITION_BRANCH, 7)]


@pytest.mark.parametrize("state", [PullState.CLOSED, PullState.MERGED])
def test_an_answer_is_kept_and_another_question_is_asked(state: PullState) -> None:
    assert decided([EDITION], [there(EDITION, state)]) == [("leave", EDITION_BRANCH, 7)]
    updated = replace(EDITION, content="e" * 12)
    assert decided([updated], [there(EDITION, state)]) == [("leave", EDITION_BRANCH, 7)], "the same, in other words"
    assert decided([replace(EDITION, about="d" * 12)], [there(EDITION, state)]) == [("open", EDITION_BRANCH, 0)]


def test_what_kci_has_withdrawn_is_no_answer() -> None:
    assert decided([EDITION], [there(EDITION, PullState.WITHDRAWN)]) == [("open", EDITION_BRANCH, 0)]


def test_one_that_is_not_wanted_any_more_is_closed() -> None:
    known = [there(EDITION), there(kernel("a"), PullState.MERGED, number=3)]
    assert decided([], known) == [("close", EDITION_BRANCH, 7)]


def test_only_so_many_kernels_at_once_and_the_edition_beside_them() -> None:
    wanted = [EDITION, *(kernel(name) for name in "abcd")]
    known = [there(kernel("c"), number=9)]
    assert decided(wanted, known, most=2) == [
        ("open", EDITION_BRANCH, 0),
        ("open", f"{MIGRATE}a", 0),
        ("leave", f"{MIGRATE}b", 0),
        ("leave", f"{MIGRATE}d", 0),
    ]


def test_one_that_somebody_works_on_has_a_place_and_one_that_is_closed_has_none() -> None:
    wanted = [kernel("a"), kernel("b")]
    assert decided(wanted, [there(kernel("x"), own=False)], most=2) == [
        ("open", f"{MIGRATE}a", 0),
        ("leave", f"{MIGRATE}b", 0),
        ("leave", f"{MIGRATE}x", 7),
    ]
    assert decided(wanted, [there(kernel("x"))], most=2)[:2] == [
        ("open", f"{MIGRATE}a", 0),
        ("open", f"{MIGRATE}b", 0),
    ]


def test_the_order_does_not_matter() -> None:
    wanted = [kernel("b"), EDITION, kernel("a")]
    known = [there(EDITION, PullState.CLOSED, number=2), there(replace(EDITION, about="f" * 12), number=5)]
    assert decided(wanted, known) == decided(wanted[::-1], known[::-1])


# --- carried out ------------------------------------------------------------------------------------------------------


def _stand_in() -> Any:
    spec = importlib.util.spec_from_file_location(
        "github_pulls", ROOT / "tests" / "act" / "stand-ins" / "github_pulls.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GitHub:
    """What `gh api` would do, in memory; a request can be made to fail."""

    def __init__(self) -> None:
        self.code: dict[str, Any] = {}
        self.requests: list[str] = []
        self.fails = 0
        self._answered = _stand_in().answered

    def __call__(self, command: list[str], *, input: bytes, **_: object) -> subprocess.CompletedProcess[bytes]:
        method, address = command[3], command[4].removeprefix("repos/example/kernels/")
        path, _, query = address.partition("?")
        self.requests.append(f"{method} {path}")
        asked = {key: value[0] for key, value in parse_qs(query).items()}
        answer = None
        if method == "GET" or self.fails != 1:
            answer = self._answered(self.code, method, path, asked, json.loads(input))
        if method != "GET":
            self.fails -= 1
        if answer is None:
            return subprocess.CompletedProcess(command, 1, b"", b"gh: refused")
        return subprocess.CompletedProcess(command, 0, json.dumps(answer).encode(), b"")

    def tracker(self, commit: str = BASE) -> GitHubPulls:
        return GitHubPulls("example/kernels", BOT, "main", commit, self)

    def run(self, *wanted: WantedPull) -> list[str]:
        tracker = self.tracker()
        known = list(tracker.pulls([item.branch for item in wanted]))
        return carry_out_pulls(decide_pulls(wanted, known, 5), tracker)

    @property
    def pulls(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.code.get("pulls", [])
        return found

    def files(self, branch: str) -> dict[str, str]:
        found: dict[str, str] = self.code["trees"][self.code["commits"][self.code["refs"][branch]]["tree"]["sha"]]
        return found


@pytest.fixture
def hub() -> GitHub:
    """A repository without pull requests."""
    return GitHub()


def test_one_is_opened_updated_and_withdrawn(hub: GitHub) -> None:
    assert hub.run(EDITION) == [f"open {EDITION_BRANCH}: {EDITION.title}"]
    assert hub.files(EDITION_BRANCH) == {"kci-catalog.toml": "rows\n", "kci.toml": "catalog\n"}
    assert hub.code["commits"][hub.code["refs"][EDITION_BRANCH]]["parents"] == [BASE]
    before = len(hub.requests)
    assert hub.run(EDITION) == []
    assert {item.split()[0] for item in hub.requests[before:]} == {"GET"}
    other = replace(EDITION, content="e" * 12, title="other", files=(FileChange("kci-catalog.toml", "more\n"),))
    assert hub.run(other) == [f"update {EDITION_BRANCH} #1: other"]
    assert hub.files(EDITION_BRANCH) == {"kci-catalog.toml": "more\n"}
    assert hub.run() == [f"close {EDITION_BRANCH} #1: it is not needed any more"]
    assert [pull["state"] for pull in hub.pulls] == ["closed"]
    assert hub.code["refs"] == {}
    assert "Withdrawn by kci" in hub.pulls[0]["body"]
    assert hub.run(other) == [f"open {EDITION_BRANCH}: other"], "kci's own withdrawal is no answer"


@pytest.mark.parametrize("request_number", range(1, 5))
def test_what_broke_off_anywhere_is_made_up_for_by_the_next_run(hub: GitHub, request_number: int) -> None:
    hub.fails = request_number  # tree, commit, branch, pull request
    with pytest.raises(FindingsError, match="refused"):
        hub.run(EDITION)
    hub.fails = 0
    assert hub.run(EDITION) == [f"open {EDITION_BRANCH}: {EDITION.title}"]
    other = replace(EDITION, content="e" * 12)
    hub.fails = request_number
    with pytest.raises(FindingsError, match="refused"):
        hub.run(other)
    hub.fails = 0
    assert hub.run(other) == [f"update {EDITION_BRANCH} #1: {EDITION.title}"]
    assert [pull["state"] for pull in hub.pulls] == ["open"]
    assert hub.run(other) == []


def test_a_person_says_no_merges_or_commits(hub: GitHub) -> None:
    hub.run(EDITION, kernel("a"), kernel("b"))
    by_branch = {pull["head"]["ref"]: pull for pull in hub.pulls}
    by_branch[EDITION_BRANCH]["state"] = "closed"
    by_branch[f"{MIGRATE}a"].update(state="closed", merged_at="2026-11-22T00:00:00Z")
    hub.code["refs"][f"{MIGRATE}b"] = "d" * 40  # a commit that kci did not make
    done = hub.run(EDITION, kernel("a"), replace(kernel("b"), content="9" * 12))
    assert [line.partition(":")[0] for line in done] == [
        f"leave {EDITION_BRANCH} #1", f"leave {MIGRATE}a #2", f"leave {MIGRATE}b #3",
    ]  # fmt: skip
    assert len(hub.pulls) == 3


@pytest.mark.parametrize(
    "change", [{"user": {"login": "somebody"}}, {"body": "no mark"}, {"body": None}], ids=["author", "mark", "empty"]
)
def test_what_kci_did_not_open_is_not_its_own(hub: GitHub, change: dict[str, Any]) -> None:
    hub.run(EDITION)
    hub.pulls[0].update(change)
    assert list(hub.tracker().pulls([EDITION_BRANCH])) == []


def test_an_answer_that_cannot_be_read_changes_nothing(hub: GitHub) -> None:
    def broken(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 0, b'{"no": "list"}', b"")

    with pytest.raises(FindingsError, match="cannot read GitHub's answer"):
        list(GitHubPulls("example/kernels", BOT, "main", BASE, broken).pulls([EDITION_BRANCH]))
