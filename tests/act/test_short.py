"""The short file and the reusable workflow that it calls, run by act: which jobs ran, and what came
of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from act.harness import NEEDS_ACT, commit_all, pull_request
from act.test_workflow import (
    LEGS,
    RELEASE,
    Runner,
    add_kernel,
    place,
    render,
    tree_names,
)
from conftest import AT_TOP, ROOT
from kci.workflows.render import COMPAT_FILE
from planning import git

pytestmark = [pytest.mark.network, *NEEDS_ACT]

FILE, PAGES = ".github/workflows/kernel.yml", ("README.md", "docs/workflows.md")
AROUND = ["kci", "merge some-kernel", "plan"]


def short(tmp_path: Path, *names: str, settings: str = "") -> Path:
    """A committed repository with the short file and nothing else."""
    repository = tmp_path / "repository"
    for name in names:
        add_kernel(repository, name, ("cpu", "cuda") if name == "some-kernel" else ("cpu",))
    (repository / "kci.toml").write_text(settings)
    render(repository, "--short")
    files = {file.name for file in (repository / RELEASE).parent.iterdir()}
    assert files - {"kci-compat.yml"} == {"kci.yml"}
    return repository


def change(kernel: Path, text: str) -> None:
    """Commit other Python for a kernel."""
    next((kernel / "torch-ext").glob("*/__init__.py")).write_text(text)
    commit_all(kernel.parent)


def test_one_kernel_is_built_once_and_a_failed_leg_again(tmp_path: Path, runner: Runner) -> None:
    repository = short(tmp_path, "some-kernel")
    first = runner.run(repository, RELEASE, "push", place(tmp_path, "1"))
    assert first.jobs == dict.fromkeys([*LEGS, *AROUND], "success"), first.log
    assert first.ok
    assert first.checks["kci/kci (push)"] == "success"
    assert tree_names(first.artifacts) == {*AT_TOP, "torch-cpu", "torch-cuda"}

    change(repository / "some-kernel", "VALUE = 2\n")
    machine = Runner(runner.checkout, runner.env, {"KCI_CONTAINER": "nowhere.example/image"})
    folder = place(tmp_path, "2")
    second = machine.run(repository, RELEASE, "push", folder, [first])
    assert not second.ok
    failed = dict.fromkeys([*LEGS, "merge some-kernel"], "failure")
    assert second.jobs == {**failed, "plan": "success"}, second.log
    attempt = Runner(runner.checkout, {**runner.env, "GITHUB_RUN_ATTEMPT": "2"})
    again = attempt.run(repository, RELEASE, "push", folder, [first])
    assert again.jobs == first.jobs, again.log
    assert tree_names(again.artifacts, attempt=2) == tree_names(first.artifacts)


def test_of_three_kernels_what_a_pull_request_or_a_merge_group_touches_is_built(
    tmp_path: Path, runner: Runner
) -> None:
    repository = short(tmp_path, "some-kernel", "other-kernel", "third-kernel")
    base = git(repository, "rev-parse", "HEAD")
    change(repository / "other-kernel", "VALUE = 1\n")
    ran = ["build other-kernel torch-cpu", "kci", "merge other-kernel", "plan"]
    wanted = dict.fromkeys(ran, "success")
    queued = {"merge_group": {"base_sha": base}}
    group = runner.run(repository, RELEASE, "merge_group", place(tmp_path, "1"), **queued)
    assert group.jobs == wanted, group.log
    assert group.checks["kci/kci"] == "success"
    asked = pull_request(repository, base, "somebody/kernels")
    pull = runner.run(repository, RELEASE, "pull_request", place(tmp_path, "2"), **asked)
    assert pull.jobs == wanted, pull.log
    assert pull.checks["kci/kci"] == "success"


def test_the_lines_of_the_page_build_what_event_and_settings_say(
    tmp_path: Path, runner: Runner
) -> None:
    tiers = '[tiers.cpu]\nbackends = ["cpu"]\n[schedule]\ntier = "cpu"\n'
    repository = short(tmp_path, "some-kernel", settings=tiers)
    pages = "".join((ROOT / page).read_text() for page in PAGES)
    shown, other = re.findall(r"```yaml\n(name: kernel\n.*?)```", pages, re.DOTALL)
    assert shown == other
    assert len(shown.splitlines()) <= 15
    (repository / FILE).write_text(shown)
    (repository / RELEASE).unlink()
    commit_all(repository)
    scheduled = runner.run(repository, COMPAT_FILE, "schedule", place(tmp_path, "1"))
    assert scheduled.jobs == dict.fromkeys([LEGS[0], *AROUND], "success"), scheduled.log
    by_hand = runner.run(repository, FILE, "workflow_dispatch", place(tmp_path, "2"))
    assert by_hand.jobs == dict.fromkeys([*LEGS, *AROUND], "success"), by_hand.log
