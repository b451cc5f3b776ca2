"""A repository whose workflows get kci elsewhere: from a copy of its actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from act.harness import NEEDS_ACT, commit_all, copy_whole_actions, offline_pip, run_workflow
from cli.runner import kci
from conftest import write_noarch

pytestmark = [pytest.mark.programs, pytest.mark.network, *NEEDS_ACT]

RELEASE = ".github/workflows/kci.yml"
PASSED = dict.fromkeys(["build some-kernel torch-cpu", "kci", "merge some-kernel", "plan"], "success")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One kernel of one variant, without workflows."""
    return write_noarch(tmp_path / "repository" / "some-kernel").parent


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    return place


def test_actions_of_another_repository(repository: Path, scratch: Path, tmp_path: Path) -> None:
    (repository / "kci.toml").write_text('[actions]\nrepository = "acme/kci-fork"\nref = "ci/main"\n')
    done = kci("render", "--output", repository, repository)
    assert (done.code, done.stderr) == (0, ""), done.stderr
    for file in (repository / ".github" / "workflows").iterdir():
        assert "kci/build" not in file.read_text()
    commit_all(repository)
    checkout = copy_whole_actions(tmp_path / "checkout")
    env = offline_pip(tmp_path / "wheels")
    run = run_workflow(repository, RELEASE, "push", scratch, checkout=checkout, env=env, own="acme/kci-fork@ci/main")
    assert run.jobs == PASSED, run.log
    assert run.log.count("Install what kci depends on") == len(run.jobs)
