"""A history on a branch: made when it is missing, and complete whoever records at the same time."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kci.errors import FindingsError
from kci.watch import history
from kci.watch.history import HistoryBranch, RecordedRun, leg_key

LEG = leg_key("relu", "torch213-cxx11-cpu-x86_64-linux", "x86_64-linux", "2.13")


def run(number: int) -> RecordedRun:
    return RecordedRun(number, "2026-11-21T03:17:00+00:00", passed=(LEG,))


@pytest.fixture
def remote(tmp_path: Path) -> str:
    place = tmp_path / "origin.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(place)], check=True)
    return str(place)


def numbers(remote: str, tmp_path: Path, branch: str = "kci-history") -> list[int]:
    """The runs that a new clone has."""
    clone = tmp_path / f"look-{len(list(tmp_path.iterdir()))}"
    files = HistoryBranch(remote, branch).fetch(clone).iterdir()
    return sorted(int(path.name[:19]) for path in files)


def commits(remote: str) -> int:
    count = ["rev-list", "--count", "kci-history"]
    return int(subprocess.check_output(["git", "-C", remote, *count], text=True))


def test_the_branch_is_made_and_grows(remote: str, tmp_path: Path) -> None:
    branch = HistoryBranch(remote, "kci-history")
    assert numbers(remote, tmp_path) == []
    assert [branch.record([run(1)]), branch.record([run(2), run(3)])] == [1, 2]
    assert numbers(remote, tmp_path) == [1, 2, 3]
    assert commits(remote) == 2


@pytest.mark.parametrize("empty", [True, False], ids=["the first two runs", "later runs"])
def test_a_run_that_was_recorded_in_between_stays(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    if not empty:
        HistoryBranch(remote, "kci-history").record([run(1)])
    slow, other = HistoryBranch(remote, "kci-history"), HistoryBranch(remote, "kci-history")
    pushes: list[str] = []
    ask = history.remote_git

    def with_another_first(place: Path, *arguments: str, **how: Any) -> Any:
        if arguments[0] == "push":
            pushes.append(arguments[0])
            if len(pushes) == 1:
                other.record([run(7)])
        return ask(place, *arguments, **how)

    monkeypatch.setattr(history, "remote_git", with_another_first)
    assert slow.record([run(6)]) == 1
    assert len(pushes) == 3, "of the other, and two"
    assert numbers(remote, tmp_path) == [*([] if empty else [1]), 6, 7]


def test_a_remote_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="cannot read"):
        HistoryBranch(str(tmp_path / "nowhere"), "kci-history").fetch(tmp_path / "clone")


def test_a_branch_that_takes_nothing_is_said(remote: str) -> None:
    hook = Path(remote) / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho this branch is protected >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(FindingsError, match="takes no commit"):
        HistoryBranch(remote, "kci-history").record([run(1)])
