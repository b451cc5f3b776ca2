"""What kci says in pull requests and does when it is told there, by act, with GitHub's API as jobs may use it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from act.harness import Run, act_path, commit_all, copy_whole_actions, installed, pull_request
from act.test_workflow import RELEASE, Runner, add_kernel, break_package, place, render
from conftest import read_yaml
from publish.fake_hub import TOKEN, FakeHub, serving
from publish.test_publish import hub_environment

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
]

COMMENT, COMMANDS, STAGE = (f".github/workflows/kci-{name}.yml" for name in ("comment", "commands", "stage"))
SETTINGS = """
[pull-request]
comment = true
commands = true
staging = "acme-staging"

[publish]
repo-prefix = "acme"
"""
FORK = {"full_name": "stranger/kernels", "owner": {"login": "stranger"}}


class Talk:
    """A repository with a pull request of a fork, and what GitHub knows of it."""

    def __init__(self, folder: Path, shared: Path, settings: str, hub: FakeHub | None = None) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.kernel = add_kernel(self.repository, backends=("cpu",))
        (self.repository / "kci.toml").write_text(settings)
        commit_all(self.repository)
        render(self.repository)
        self.state = folder / "github.json"
        env = {**installed(shared, *(["publish"] if hub else [])), "KCI_ACT_ISSUES": str(self.state)}
        if hub is not None:
            env |= {**hub_environment(hub, folder / "home"), "HF_TOKEN": TOKEN}
        self.runner = Runner(copy_whole_actions(folder / "checkout"), env)
        self.known: dict[str, Any] = {"issues": [], "requests": [], "runs": [], "pulls": [], "artifacts": {}}
        self.count, self.said = 40, 0

    def propose(self, base: str) -> Run:
        """A run for the newest commit of the pull request, which GitHub then tells about."""
        self.count += 1
        payload = pull_request(self.repository, base, by=FORK["full_name"])
        run = self.runner.run(
            self.repository, RELEASE, "pull_request", place(self.folder, f"run-{self.count}"), **payload
        )
        sha = payload["pull_request"]["head"]["sha"]
        known = self.told() if self.state.exists() else self.known
        known["runs"].append(
            {
                "id": self.count, "event": "pull_request", "path": RELEASE, "head_sha": sha, "head_branch": "topic",
                "head_repository": FORK, "run_attempt": 1, "conclusion": "success" if run.ok else "failure",
                "created_at": f"2026-11-23T07:{self.count}:00Z",
            }
        )  # fmt: skip
        known["pulls"] = [{"number": 7, "state": "open", "head": {"sha": sha, "repo": FORK}, "merged_at": None}]
        known["artifacts"][str(self.count)] = str(run.artifacts)
        self.state.write_text(json.dumps(known))
        return run

    def told(self) -> dict[str, Any]:
        return json.loads(self.state.read_text())

    def comments(self) -> list[str]:
        return [item["body"] for item in self.told().get("comments", ())]

    def run(self, workflow: str, event: str, name: str, earlier: Sequence[Run] = (), **payload: Any) -> Run:
        return self.runner.run(self.repository, workflow, event, place(self.folder, name), earlier, **payload)

    def say(self, text: str, by: str = "writer", action: str = "created") -> Run:
        """What a comment does; the one that is run is what GitHub says, whatever it was edited to since."""
        self.said += 1
        comment = {"id": 500 + self.said, "body": text, "user": {"login": by, "type": "User"}}
        comment["created_at"] = "2026-11-23T08:00:00Z"
        about = {"issue": {"number": 7, "pull_request": {}}, "comment": comment, "action": action}
        run = self.run(COMMANDS, "issue_comment", f"said-{self.said}", **about)
        assert run.jobs in ({"command": "success"}, {}), run.log
        return run

    def change(self, **pull: Any) -> None:
        """What has happened to the pull request."""
        known = self.told()
        known["pulls"][0] |= pull
        self.state.write_text(json.dumps(known))


def head(repository: Path) -> str:
    import subprocess

    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub("acme/some-kernel", "acme-staging/some-kernel")) as running:
        yield running


def test_a_pull_request_of_a_fork_has_one_comment_is_staged_and_released(
    tmp_path: Path, shared_by_workers: Path, hub: FakeHub
) -> None:
    """Its run cannot do that; others do, that run nothing of the pull request."""
    talk = Talk(tmp_path, shared_by_workers, SETTINGS, hub)
    base, good = head(talk.repository), (talk.kernel / "torch-ext" / "some_kernel" / "__init__.py").read_text()
    break_package(talk.kernel)
    commit_all(talk.repository)
    broken = talk.propose(base)
    assert not broken.ok
    told = {"id": talk.count, "event": "pull_request"}
    run = talk.run(COMMENT, "workflow_run", "comment-1", workflow_run=told)
    assert run.jobs == {"comment": "success"}, run.log
    (body,) = talk.comments()
    headline = "1 of what was planned did not happen, in 1 kernel"
    assert body.startswith(f"<!-- kci-pull-request: run 41 attempt 1 -->\n### kci: {headline}\n")
    assert "gh pr checkout 7 && kci build --variant=torch-cpu --container=auto -- some-kernel" in body
    assert talk.told()["comments"][0]["user"]["login"] == "github-actions[bot]"

    (talk.kernel / "torch-ext" / "some_kernel" / "gone.py").unlink()
    (talk.kernel / "torch-ext" / "some_kernel" / "__init__.py").write_text(good + "# more\n")
    commit_all(talk.repository)
    repaired = talk.propose(base)
    assert repaired.ok, repaired.log
    run = talk.run(COMMENT, "workflow_run", "comment-2", workflow_run=told | {"id": talk.count})
    assert run.ok, run.log
    (body,) = talk.comments()
    assert "### kci: all that was planned is there, in 1 kernel\n" in body
    assert "| `some-kernel` | `torch-cpu` | " in body
    assert " kB | built |" in body

    older = talk.run(COMMENT, "workflow_run", "comment-3", workflow_run=told | {"id": 41})
    assert "no open pull request is at" in older.log
    assert talk.comments() == [body]
    pushed = talk.run(COMMENT, "workflow_run", "comment-4", workflow_run={"id": 1, "event": "push"})
    assert pushed.jobs == {}

    # Staging: whoever may write asks for it, and the reviewers of the environment are GitHub's.
    known = talk.told() | {"permissions": {"writer": "write", "stranger": "read"}}
    talk.state.write_text(json.dumps(known))
    talk.say("/kci stage", by="stranger")
    talk.say("> /kci stage")
    assert "dispatched" not in talk.told()
    talk.say("/kci stage")
    ((file, sent),) = talk.told()["dispatched"]
    sha = known["pulls"][0]["head"]["sha"]
    assert (file, sent["inputs"]) == ("kci-stage.yml", {"number": "7", "commit": sha})
    runs = [broken, repaired]
    # Closed while it is uploaded: the run for that finds nothing to remove, for the comment does not name it yet.
    staging = hub["acme-staging/some-kernel"]
    closed = {"action": "closed", "number": 7, "pull_request": {"number": 7, "head": {"sha": sha}}}
    hub.once(r"POST .*/commit/", lambda: talk.change(state="closed"))
    run = talk.run(STAGE, "workflow_dispatch", "stage-closed", runs, inputs=sent["inputs"])
    ran = ["find", "stage some-kernel", "tell", "clean some-kernel"]
    assert run.jobs == dict.fromkeys(sorted(ran), "success"), run.log
    assert set(staging.branches) == {"main"}
    talk.change(state="open")
    run = talk.run(STAGE, "workflow_dispatch", "stage", runs, inputs=sent["inputs"])
    assert run.jobs == dict.fromkeys(["find", "stage some-kernel", "tell"], "success"), run.log
    assert "build/torch-cpu/metadata.json" in staging.files("pr-7")
    assert set(staging.branches) == {"main", "pr-7"}
    assert set(hub["acme/some-kernel"].branches) == {"main"}
    text = talk.comments()[0]
    assert text.startswith(body)
    loads = 'some_kernel = get_kernel("acme-staging/some-kernel", revision="pr-7", trust_remote_code=True)'
    assert f"from kernels import get_kernel\n{loads}\n" in text

    # Once there is a newer commit, or the pull request is closed, the reviewers' word is too late.
    talk.change(head={"sha": "b" * 40, "repo": FORK})
    run = talk.run(STAGE, "workflow_dispatch", "stage-late", runs, inputs=sent["inputs"])
    assert run.jobs["find"] == "failure"
    assert "#7 is at bbbbbbbbbbbb now" in run.log
    talk.change(head={"sha": sha, "repo": FORK}, state="closed")
    run = talk.run(STAGE, "pull_request_target", "closed", runs, **closed)
    assert run.jobs == dict.fromkeys(["find", "clean some-kernel"], "success"), run.log
    assert set(staging.branches) == {"main"}

    # One step from a pull request to a release: GitHub merges it, or says why not.
    talk.change(state="open")
    talk.say("/kci release some-kernel")
    assert talk.told()["pulls"][0]["merged_at"]
    assert talk.told()["dispatched"][1:] == [
        ["kci-publish.yml", {"ref": "main", "inputs": {}, "return_run_details": True}]
    ]


def test_a_token_that_may_not_write_changes_nothing_and_says_so(tmp_path: Path, shared_by_workers: Path) -> None:
    talk = Talk(tmp_path, shared_by_workers, "[pull-request]\ncomment = true\n")
    base = head(talk.repository)
    (talk.kernel / "torch-ext" / "some_kernel" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    commit_all(talk.repository)
    assert talk.propose(base).ok
    file = talk.repository / COMMENT
    text = file.read_text()
    assert read_yaml(text)["jobs"]["comment"]["permissions"]["pull-requests"] == "write"
    file.write_text(text.replace("pull-requests: write", "pull-requests: read"))
    told = {"id": talk.count, "event": "pull_request"}
    run = talk.run(COMMENT, "workflow_run", "comment", workflow_run=told)
    assert run.jobs == {"comment": "failure"}, run.log
    assert "Resource not accessible by integration" in run.log
    assert "pull-requests: write" in run.log
    assert talk.comments() == []
