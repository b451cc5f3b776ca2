"""Rendered workflows, run by act on this machine with the real kci: which jobs ran, and what came
of them.

The kernels are Python only, so that every leg is built in seconds; runs of compilers are tested
elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from act.harness import (
    NEEDS_ACT,
    ROOT,
    Run,
    commit_all,
    pull_request,
    run_workflow,
)
from buildkit import write_tree
from checkout import copy_checkout
from cli.runner import ended, kci
from conftest import AT_TOP, ran, read_yaml, write_noarch
from planning import git

pytestmark = [pytest.mark.network, *NEEDS_ACT]

RELEASE = ".github/workflows/kci.yml"
LEGS = ["build some-kernel torch-cpu", "build some-kernel torch-cuda"]


class Runner(NamedTuple):
    """The checkout of kci's actions, and where it is installed."""

    checkout: Path
    env: dict[str, str]
    variables: dict[str, str] | None = None

    def run(
        self, repository: Path, workflow: str, event: str, scratch: Path,
        earlier: Sequence[Run] = (), **payload: Any,
    ) -> Run:  # fmt: skip
        """One run of a workflow; see `run_workflow`."""
        return run_workflow(
            repository, workflow, event, scratch, checkout=self.checkout, payload=payload,
            env=self.env, earlier=earlier, variables=self.variables,
        )  # fmt: skip


def add_kernel(
    repository: Path, name: str = "some-kernel", backends: tuple[str, ...] = ("cpu", "cuda")
) -> Path:
    code = "def double(x):\n    return x + x\n"
    return write_noarch(repository / name, name, backends, code=code)


@pytest.fixture
def one_leg(tmp_path: Path) -> Path:
    """A committed repository with a kernel of one leg and the workflows that kci renders for it."""
    place = tmp_path / "repository"
    add_kernel(place, backends=("cpu",))
    render(place)
    return place


def render(repository: Path, *options: str) -> str:
    """Write the workflows and commit all; the commit.

    What is built is not loaded: that takes longer than all else of a job.
    """
    settings = repository / "kci.toml"
    told = settings.read_text() if settings.exists() else ""
    settings.write_text(told if "\nload = " in told else f"{told}\n[plan]\nload = []\n")
    ended(kci("render", "--output", repository, *options, repository), 0)
    return commit_all(repository)


def tree_names(artifacts: Path, kernel: str = "some-kernel", attempt: int = 1) -> set[str]:
    with tarfile.open(artifacts / f"tree.{kernel}.{attempt}" / "kci-tree.tar") as archive:
        return {name.split("/")[0] for name in archive.getnames()}


def place(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def test_pushes_build_what_changed_and_what_is_broken_stops_only_itself(
    runner: Runner, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    for name, backends in {"some-kernel": ("cpu", "cuda"), "other-kernel": ("cpu",)}.items():
        add_kernel(repository, name, backends)
    render(repository)
    first = runner.run(repository, RELEASE, "push", place(tmp_path, "1"))
    built = [*LEGS, "build other-kernel torch-cpu"]
    ran = [*built, "kci", "merge other-kernel", "merge some-kernel", "plan"]
    assert first.jobs == dict.fromkeys(ran, "success"), first.log
    assert first.ok
    assert gates(first) == {"kci (push)": "success"}
    assert "Install what kci depends on" not in first.log
    assert sorted(path.name for path in first.artifacts.iterdir()) == [
        "kci-other-kernel.torch-cpu-1", "kci-some-kernel.torch-cpu-1",
        "kci-some-kernel.torch-cuda-1", "run-plan.1", "run-record.other-kernel.1",
        "run-record.some-kernel.1", "tree.other-kernel.1", "tree.some-kernel.1",
    ]  # fmt: skip
    assert tree_names(first.artifacts) == {*AT_TOP, "torch-cpu", "torch-cuda"}

    # One of two variants changes: the other one is carried over. One kernel does not build, one has
    # a fault.
    (repository / "some-kernel" / "README.md").write_text("# better words\n")
    need_capability(repository)
    break_package(repository / "other-kernel")
    wrong = add_kernel(repository, "wrong-kernel", ("cpu",))
    (wrong / "torch-ext" / "wrong_kernel" / "__init__.py").write_text("import numpy\n")
    render(repository)  # what is wrong with sources does not keep the files from being written
    second = runner.run(repository, RELEASE, "push", place(tmp_path, "2"), [first])
    assert second.jobs == {
        **dict.fromkeys(["build other-kernel torch-cpu", "merge other-kernel"], "failure"),
        **dict.fromkeys(["build some-kernel torch-cuda", "merge some-kernel", "plan"], "success"),
    }, second.log
    assert not second.ok
    before, after = digests(first), digests(second)
    assert after[LEG_CPU] == before[LEG_CPU]
    assert set(after) == {LEG_CPU, ("some-kernel", "torch-cuda")}, "the broken one has no tree"

    done = gate(repository, second, tmp_path / "2", runner)
    assert (done.jobs, done.ok) == ({"kci": "failure"}, False), done.log
    how = "--builder=auto --container=none --tier=release --output=build"
    assert "other-kernel torch-cpu, job other-kernel / torch-cpu: " in done.log
    assert "torch-ext/other_kernel/gone.py is a link to nothing" in done.log
    assert f"\n  kci build --variant=torch-cpu {how} other-kernel\n" in done.log
    assert "job some-kernel" not in done.log
    assert "kci check wrong-kernel" in done.log
    assert done.log.count("::error") == 3, "one for each of the two, and one with their number"

    # Mended, the kernel has its tree of the first push.
    shutil.rmtree(wrong)
    (repository / "other-kernel" / "torch-ext" / "other_kernel" / "gone.py").unlink()
    commit_all(repository)
    third = runner.run(repository, RELEASE, "push", place(tmp_path, "3"), [first, second])
    assert third.jobs == dict.fromkeys(["kci", "plan"], "success"), third.log

    inputs = {"tier": "release", "only": "torch-cu*", "backends": "cuda,cpu"}
    inputs["kernel"] = "some-kernel"
    by_hand = runner.run(
        repository, RELEASE, "workflow_dispatch", place(tmp_path, "4"), inputs=inputs
    )
    ran = ["build some-kernel torch-cuda", "kci", "merge some-kernel", "plan"]
    assert by_hand.jobs == dict.fromkeys(ran, "success"), by_hand.log
    assert gates(by_hand) == {"kci (workflow_dispatch)": "success"}
    assert tree_names(by_hand.artifacts) == {*AT_TOP, "torch-cuda"}


LEG_CPU = ("some-kernel", "torch-cpu")


def need_capability(repository: Path) -> None:
    """What changes the kernel's variant for CUDA and no other."""
    file, table = repository / "some-kernel" / "build.toml", "[torch-noarch]"
    file.write_text(file.read_text().replace(table, f'{table}\ncuda_capabilities = ["9.0"]'))


def digests(run: Run) -> dict[tuple[str, str], str]:
    """The digest of every variant of the tree that a run uploads."""
    found = {}
    for tree in run.artifacts.glob("tree.*"):
        with tarfile.open(tree / "kci-tree.tar") as archive:
            manifest = json.load(archive.extractfile("kci-manifest.json"))  # type: ignore[arg-type]
        assert manifest["complete"]
        for item in manifest["present"]:
            found[manifest["kernel"], item["variant"]] = item["digest"]
    return found


def test_the_workflow_around_the_actions_does_what_the_page_says(
    one_leg: Path, tmp_path: Path
) -> None:
    """Each job installs kci from the checkout, as on GitHub, but from local files."""
    page = (ROOT / "docs" / "rendered.md").read_text(encoding="utf-8")
    (text,) = re.findall(
        r"## A workflow around the actions\n.*?```yaml\n(.*?)```", page, flags=re.DOTALL
    )
    (one_leg / ".github" / "workflows" / "kernel.yml").write_text(text)
    commit_all(one_leg)
    parts = ("actions/", "src/", "templates/", "action.yml", ":(glob)*/action.yml")
    lock, wheels = ROOT / "actions" / "requirements.txt", tmp_path / "wheels"
    how = ("--quiet", "--require-hashes", "--no-deps", "--dest", str(wheels))
    done = ran(sys.executable, "-m", "pip", "download", *how, "--requirement", str(lock))
    assert done.returncode == 0, done.stderr
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    installing = Runner(copy_checkout(tmp_path / "checkout", *parts), index)
    scratch = place(tmp_path, "scratch")
    run = installing.run(one_leg, ".github/workflows/kernel.yml", "push", scratch)
    assert run.jobs == dict.fromkeys([LEGS[0], "merge", "plan"], "success"), run.log
    assert run.log.count("Install what kci depends on") == len(run.jobs)


def break_package(kernel: Path) -> None:
    """What `kci check` does not see and the build does."""
    package = next((kernel / "torch-ext").iterdir())
    (package / "gone.py").symlink_to("nowhere.py")


def gate(
    repository: Path, run: Run, scratch: Path, runner: Runner,
    workflow: str = RELEASE, name: str = "kci", commit: str = "",
) -> Run:  # fmt: skip
    """The gate job of a run, which act leaves out after a called workflow that failed, whatever
    `always()` says.

    It is the job as it is rendered, with the results of the jobs in place of its needs, on the
    artifacts of the run.
    """
    job = read_yaml((repository / workflow).read_text())["jobs"][name]
    del job["needs"]
    text = json.dumps({"on": "push", "permissions": {}, "jobs": {name: job}})
    known = {"needs.plan.result": run.jobs["plan"], "needs.kernels.result": "failure"}
    for value, told in (known | {"inputs.commit": commit}).items():
        text = text.replace(f"${{{{ {value} }}}}", told)
    assert "needs." not in text
    alone = ".github/workflows/gate-alone.yml"
    (repository / alone).write_text(text)
    return runner.run(repository, alone, "push", scratch)


def test_what_was_merged_meanwhile_is_no_part_of_a_pull_request(
    one_leg: Path, runner: Runner, tmp_path: Path
) -> None:
    """GitHub's word for the base is as old as the last push to the pull request."""
    add_kernel(one_leg, "other-kernel", ("cpu",))
    begun = render(one_leg)
    write_tree(one_leg, {"some-kernel/torch-ext/some_kernel/__init__.py": "half = 1\n"})
    commit_all(one_leg)
    git(one_leg, "checkout", "--quiet", "-b", "meanwhile", begun)
    break_package(one_leg / "other-kernel")
    newest = commit_all(one_leg)
    git(one_leg, "checkout", "--quiet", "main")
    change = pull_request(one_leg, newest, known_base=begun)
    run = runner.run(one_leg, RELEASE, "pull_request", place(tmp_path, "merge"), **change)
    ran = ["build some-kernel torch-cpu", "kci", "merge some-kernel", "plan"]
    assert run.jobs == dict.fromkeys(ran, "success"), run.log
    assert gates(run) == {"kci": "success"}


def gates(run: Run) -> dict[str, str]:
    """The results that branch protection sees; only what may be merged makes the check that it
    requires.
    """
    checks = run.checks.items()
    return {name: result for name, result in checks if "/" not in name and name != "plan"}


OWN = ".github/workflows/kci-own-machines.yml"
DISPATCHED = """
[pull-request]
forks = "dispatch"
[runners.cuda.x86_64-linux]
labels = ["self-hosted", "gpu"]
[runners.noarch.x86_64-linux]
labels = ["self-hosted", "gpu"]
"""


def statuses(scratch: Path) -> list[tuple[str, str]]:
    """The commit statuses that a run has set: the commit and the state."""
    kept = scratch / "statuses"
    asked = r"/statuses/(\S+) -f state=(\w+) -f context=kci/own-machines "
    return re.findall(asked, kept.read_text()) if kept.exists() else []


def test_a_maintainer_starts_the_self_hosted_part_of_a_forks_pull_request(
    one_leg: Path, runner: Runner, tmp_path: Path
) -> None:
    (one_leg / "kci.toml").write_text(DISPATCHED)
    base, commit = render(one_leg), commit_all(one_leg)
    own = pull_request(one_leg, base)
    pull = runner.run(one_leg, RELEASE, "pull_request", place(tmp_path, "same"), **own)
    assert pull.jobs == {"kci": "success", "plan": "success"}, pull.log
    assert statuses(tmp_path / "same") == [(commit, "success")], "the repository's has built all"
    git(one_leg, "checkout", "--quiet", "main")
    write_tree(one_leg, {"some-kernel/torch-ext/some_kernel/__init__.py": "double = 2\n"})
    commit = commit_all(one_leg)
    fork = pull_request(one_leg, base, "somebody/kernels")
    pull = runner.run(one_leg, RELEASE, "pull_request", place(tmp_path, "pull"), **fork)
    nothing_yet = "nothing of it runs before somebody has looked"
    assert pull.jobs == {"kci": "success", "plan": "success"}, nothing_yet
    assert statuses(tmp_path / "pull") == [], "so the required status is missing: the merge waits"

    # The file and the commit to compare with are those of the default branch.
    git(one_leg, "checkout", "--quiet", base)
    inputs = {"inputs": {"commit": commit}}
    run = runner.run(one_leg, OWN, "workflow_dispatch", place(tmp_path, "own"), **inputs)
    ran = [LEGS[0], "merge some-kernel", "plan", "status"]
    assert run.jobs == dict.fromkeys(ran, "success"), run.log
    assert statuses(tmp_path / "own") == [(commit, "pending"), (commit, "success")]
    # with a job that failed
    judged = gate(one_leg, run, tmp_path / "own", runner, OWN, "status", commit)
    assert judged.jobs == {"status": "failure"}, judged.log
    assert statuses(tmp_path / "own")[2:] == [(commit, "failure")]
