"""What kci says in pull requests, by act, with GitHub's API as jobs may use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from act.harness import NEEDS_ACT, Run, commit_all, copy_actions, installed, pull_request
from act.test_workflow import RELEASE, Runner, add_kernel, break_package, place, render
from conftest import read_yaml

pytestmark = [pytest.mark.network, *NEEDS_ACT]

COMMENT = ".github/workflows/kci-comment.yml"
SETTINGS = "[pull-request]\ncomment = true\n"
FORK = {"full_name": "stranger/kernels", "owner": {"login": "stranger"}}


class Talk:
    """A repository with a pull request of a fork, and what GitHub knows of it."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.kernel = add_kernel(self.repository, backends=("cpu",))
        (self.repository / "kci.toml").write_text(SETTINGS)
        self.base = render(self.repository)
        self.state = folder / "github.json"
        env = {**installed(shared), "KCI_ACT_ISSUES": str(self.state)}
        self.runner = Runner(copy_actions(folder / "checkout"), env)
        lists = ("issues", "requests", "runs", "pulls")
        self.known: dict[str, Any] = {name: [] for name in lists} | {"artifacts": {}}
        self.count = 40

    def propose(self, base: str) -> Run:
        """A run for the newest commit of the pull request, which GitHub then tells about."""
        self.count += 1
        payload = pull_request(self.repository, base, by=FORK["full_name"])
        scratch = place(self.folder, f"run-{self.count}")
        run = self.runner.run(self.repository, RELEASE, "pull_request", scratch, **payload)
        sha = payload["pull_request"]["head"]["sha"]
        known = self.told() if self.state.exists() else self.known
        ended = {
            "id": self.count, "event": "pull_request", "path": RELEASE, "head_sha": sha,
            "head_branch": "topic", "head_repository": FORK, "run_attempt": 1,
            "conclusion": "success" if run.ok else "failure",
        }  # fmt: skip
        known["runs"].append(ended)
        known["pulls"] = [{"number": 7, "state": "open", "head": {"sha": sha, "repo": FORK}}]
        known["artifacts"][str(self.count)] = str(run.artifacts)
        self.state.write_text(json.dumps(known))
        return run

    def told(self) -> dict[str, Any]:
        return json.loads(self.state.read_text())

    def comments(self) -> list[str]:
        return [item["body"] for item in self.told().get("comments", ())]

    def comment(self, name: str, run: dict[str, Any]) -> Run:
        """What follows from a run that has ended."""
        scratch = place(self.folder, name)
        return self.runner.run(self.repository, COMMENT, "workflow_run", scratch, workflow_run=run)


def test_a_pull_request_of_a_fork_has_one_comment(tmp_path: Path, shared_by_workers: Path) -> None:
    """Its run cannot write that; another does, that runs nothing of the pull request."""
    talk = Talk(tmp_path, shared_by_workers)
    base, package = talk.base, talk.kernel / "torch-ext" / "some_kernel"
    good = (package / "__init__.py").read_text()
    break_package(talk.kernel)
    commit_all(talk.repository)
    broken = talk.propose(base)
    assert not broken.ok
    told = {"id": talk.count, "event": "pull_request"}
    run = talk.comment("comment-1", told)
    assert run.jobs == {"comment": "success"}, run.log
    (body,) = talk.comments()
    headline = "1 of what was planned did not happen, in 1 kernel"
    assert body.startswith(f"<!-- kci-pull-request: run 41 attempt 1 -->\n### kci: {headline}\n")
    assert "gh pr checkout 7 && kci build --variant=torch-cpu --container=auto some-kernel" in body
    assert talk.told()["comments"][0]["user"]["login"] == "github-actions[bot]"

    (package / "gone.py").unlink()
    (package / "__init__.py").write_text(good + "# more\n")
    commit_all(talk.repository)
    repaired = talk.propose(base)
    assert repaired.ok, repaired.log

    # A token that may not write changes nothing, and says so.
    file = talk.repository / COMMENT
    text = file.read_text()
    assert read_yaml(text)["jobs"]["comment"]["permissions"]["pull-requests"] == "write"
    file.write_text(text.replace("pull-requests: write", "pull-requests: read"))
    run = talk.comment("refused", told | {"id": talk.count})
    assert run.jobs == {"comment": "failure"}, run.log
    assert "Resource not accessible by integration" in run.log
    assert "pull-requests: write" in run.log
    assert talk.comments() == [body]
    file.write_text(text)

    run = talk.comment("comment-2", told | {"id": talk.count})
    assert run.ok, run.log
    (body,) = talk.comments()
    assert "### kci: all that was planned is there, in 1 kernel\n" in body
    assert "| `some-kernel` | `torch-cpu` | " in body
    assert " kB | built |" in body

    older = talk.comment("comment-3", told | {"id": 41})
    assert "no open pull request is at" in older.log
    assert talk.comments() == [body]
    pushed = talk.comment("comment-4", {"id": 1, "event": "push"})
    assert pushed.jobs == {}
