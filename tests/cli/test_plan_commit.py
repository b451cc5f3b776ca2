"""The commit in a plan: merging holds artifacts against it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from act.harness import commit_all
from cli.runner import kci

BUILD = (
    '[general]\nname = "norm"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    'hub.repo-id = "a/b"\n[torch-noarch]\n'
)


def planned_commit(*roots: Path) -> str | None:
    return json.loads(kci("plan", *roots, "--format", "json").stdout)["commit"]


@pytest.mark.usefixtures("no_git_environment")
def test_a_plan_says_which_commit_it_is_about(tmp_path: Path) -> None:
    root = tmp_path / "one"
    (root / "torch-ext" / "norm").mkdir(parents=True)
    (root / "torch-ext" / "norm" / "__init__.py").write_text("")
    (root / "build.toml").write_text(BUILD)
    assert planned_commit(root) is None
    commit_all(root)
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert planned_commit(root) == head.stdout.strip()
    shutil.copytree(root, tmp_path / "other")
    (tmp_path / "other" / "build.toml").write_text(BUILD.replace("norm", "norm-two"))
    (root / "build.toml").write_text(BUILD + "# changed\n")
    assert planned_commit(root) is None
