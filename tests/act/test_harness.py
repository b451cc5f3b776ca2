"""What the tests under act rely on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from act.harness import act_path, commit_all, run_workflow

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
]

FAILING = """
on: push
jobs:
  fails:
    runs-on: ubuntu-24.04
    steps:
      - run: |
          seq 30000
          echo "::error::the last word"
          exit 1
        shell: bash
"""


def test_all_that_a_failed_step_printed_is_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "repository" / ".github" / "workflows" / "fails.yml"
    file.parent.mkdir(parents=True)
    file.write_text(FAILING)
    commit_all(tmp_path / "repository")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "actions").mkdir()
    where = (tmp_path / "repository", ".github/workflows/fails.yml", "push", tmp_path / "scratch")
    run = run_workflow(*where, checkout=tmp_path / "actions")
    assert run.jobs == {"fails": "failure"}
    printed = run.log.splitlines()
    assert "30000" in printed
    assert sum(line.endswith("❗  ::error::the last word") for line in printed) == 1
