"""Rendered workflows where a machine tests: which jobs run, and what is green, when only a test
failed or changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from act.harness import NEEDS_ACT, Run, commit_all, copy_actions, installed, pull_request
from act.test_publishing import PUBLISH, SETTINGS, TESTED, published, ready
from act.test_workflow import RELEASE, Runner, add_kernel, place, render
from buildkit import write_tree
from cli.runner import kci_process
from publish.fake_hub import TOKEN, FakeHub, serving
from publish.test_publish import hub_environment
from run.cuda_python import python_with_cuda

pytestmark = [pytest.mark.network, *NEEDS_ACT]

TEST = "test some-kernel cuda-x86_64-linux"
BUILT = ["build some-kernel torch-cuda", "merge some-kernel"]
OTHERS = ["kci", "plan"]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub("acme/some-kernel")) as running:
        yield running


@pytest.fixture
def runner(hub: FakeHub, shared_by_workers: Path, tmp_path: Path) -> Runner:
    env = installed(shared_by_workers, "publish") | hub_environment(hub, tmp_path / "home")
    env["HF_TOKEN"] = TOKEN
    variables = {"KCI_TEST_PYTHON": str(python_with_cuda(tmp_path))}
    return Runner(copy_actions(tmp_path / "checkout"), env, variables)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A kernel of one variant with a test."""
    made = tmp_path / "repository"
    write_test(add_kernel(made, "some-kernel", ("cuda",)), "# fine\n")
    commit_all(made)
    return made


def write_test(kernel: Path, text: str) -> None:
    write_tree(kernel, {"tests/test_it.py": text})


def ended(good: Sequence[str], bad: Sequence[str] = ()) -> dict[str, str]:
    return {**dict.fromkeys(good, "success"), **dict.fromkeys(bad, "failure")}


class Branch:
    """Pushes to a branch, one after the other."""

    def __init__(self, repository: Path, runner: Runner, scratch: Path) -> None:
        self.repository, self.runner, self.scratch = repository, runner, scratch
        self.runs: list[Run] = []

    def run(self, workflow: str, event: str, **payload: Any) -> Run:
        scratch = place(self.scratch, str(len(list(self.scratch.iterdir()))))
        return self.runner.run(self.repository, workflow, event, scratch, self.runs, **payload)

    def push(self) -> Run:
        self.runs.append(self.run(RELEASE, "push"))
        return self.runs[-1]

    def of_tag(self) -> Run:
        return self.run(PUBLISH, "push", ref="refs/tags/v1.0")


@pytest.fixture
def branch(repository: Path, runner: Runner, tmp_path: Path) -> Branch:
    return Branch(repository, runner, place(tmp_path, "scratch"))


def test_a_kernel_whose_test_failed_stays_red_and_unpublished_until_it_passes_on_that_tree(
    branch: Branch, hub: FakeHub, tmp_path: Path
) -> None:
    settings = branch.repository / "kci.toml"
    settings.write_text(SETTINGS)
    render(branch.repository)
    first = branch.push()
    assert first.jobs == ended([*BUILT, *OTHERS]), "there is no machine yet"

    settings.write_text(TESTED)
    write_test(branch.repository / "some-kernel", "# BROKEN\n")
    render(branch.repository)
    broken = branch.push()
    assert broken.jobs == ended(["plan"], [TEST]), broken.log
    assert "AssertionError: 3 is not 4" in broken.log
    assert not broken.ok
    there = {path.name for path in broken.artifacts.iterdir()}
    assert "tree.some-kernel.1" not in there, "it has the tree of run 41"

    tag = branch.of_tag()
    assert tag.jobs == ended(["plan"], [TEST]), tag.log
    scratch = place(tmp_path, "ready")
    offered, said = ready(branch.repository, branch.runner, tag, scratch)
    assert (offered, published(hub)) == ([], set())
    assert "job some-kernel / test cuda-x86_64-linux: " in said

    write_test(branch.repository / "some-kernel", "# mended\n")
    commit_all(branch.repository)
    mended = branch.push()
    assert mended.jobs == ended([TEST, *OTHERS]), mended.log
    tag = branch.of_tag()
    passed = "that very tree has passed these very tests"
    assert tag.jobs == ended([*OTHERS, "ready", "publish some-kernel"]), passed
    assert published(hub) == {"acme/some-kernel"}


@pytest.mark.torch
def test_a_new_kernel_is_built_and_tested_and_so_is_a_pull_request_of_tests_only(
    torch_cache: Path, shared_by_workers: Path, tmp_path: Path
) -> None:
    """What `kci init` writes, of one torch, with no machine in kci.toml: loaded and tested."""
    words = ("init", "softcap", "--framework", "torch-noarch", "--backend", "cpu", "-y")
    assert kci_process(*words, cwd=tmp_path).code == 0
    repository = tmp_path / "softcap"
    tests = repository / "tests" / "test_softcap.py"
    # torch's compiler takes longer than all else
    text = tests.read_text().partition("def test_a_tensor")[0]
    tests.write_text(text)
    with (repository / "kci.toml").open("a") as settings:
        settings.write('[[overlay]]\nkeep = ["torch == 2.13 and system == x86_64-linux"]\n')
    base = commit_all(repository)
    env = installed(shared_by_workers) | {"KCI_CACHE": str(torch_cache)}
    runner = Runner(copy_actions(tmp_path / "checkout"), env)
    branch = Branch(repository, runner, place(tmp_path, "scratch"))
    push, test = branch.push(), "test softcap cpu-x86_64-linux"
    assert push.jobs == ended(["build softcap torch-cpu", "merge softcap", test, *OTHERS]), push.log
    tests.write_text(text.replace("functional.silu(x)", "functional.gelu(x)"))
    commit_all(repository)
    pull = branch.run(RELEASE, "pull_request", **pull_request(repository, base))
    assert pull.jobs == ended(["plan"], [test]), pull.log
    assert "read by the tests; the tests run again on cpu-x86_64-linux" in pull.log
