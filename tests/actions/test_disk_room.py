"""What is removed for the sake of an image, and on whose machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from kci.run.disk_room import HostedDisk, make_room
from kci.utils.shipped import shipped

HOSTED = {"RUNNER_ENVIRONMENT": "github-hosted"}
DIRECTORIES = shipped("run/data/hosted-disk.toml", HostedDisk)().directories


class Disk:
    """A disk on which every directory of the list has 5 GB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free, self.removed = free, list[str]()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=self.free * 10**9))
        monkeypatch.setattr(Path, "is_dir", lambda path: str(path) in DIRECTORIES)
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: list[str], **_: object) -> None:
        assert command[:4] == ["sudo", "rm", "-rf", "--"]
        self.removed.append(command[4])
        self.free += 5


def test_enough_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = Disk(monkeypatch, 40), list[str]()
    assert make_room(40, log.append, HOSTED)
    assert (disk.removed, log) == ([], [])


def test_no_more_is_removed_than_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = Disk(monkeypatch, 18), list[str]()
    assert make_room(30, log.append, HOSTED)
    assert disk.removed == list(DIRECTORIES[:3])
    assert len(log) == 3


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = Disk(monkeypatch, 1), list[str]()
    assert not make_room(1000, log.append, HOSTED)
    assert disk.removed == list(DIRECTORIES)
    assert log[-1].startswith("::warning::")


@pytest.mark.parametrize("environ", [{}, {"RUNNER_ENVIRONMENT": "self-hosted"}])
def test_somebodys_machine_is_not_touched(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    disk, log = Disk(monkeypatch, 18), list[str]()
    assert not make_room(40, log.append, environ)
    assert disk.removed == []
    assert "18 GB of disk are free" in log[0]
