"""What is removed for the sake of an image, and on whose machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from kci.run.disk_room import HostedDisk, make_room
from kci.utils.shipped import shipped

DIRECTORIES = shipped("run/data/hosted-disk.toml", HostedDisk)().directories


def removed(
    monkeypatch: pytest.MonkeyPatch, free: int, need: int, runner: str
) -> tuple[list[str], list[str]]:
    """What goes from a disk on which every directory of the list has 5 GB, and what is said."""
    gone, said = list[str](), list[str]()

    def run(command: list[str], **_: object) -> None:
        assert command[:4] == ["sudo", "rm", "-rf", "--"]
        gone.append(command[4])

    disk = lambda _: SimpleNamespace(free=(free + 5 * len(gone)) * 10**9)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", disk)
    monkeypatch.setattr(os.path, "isdir", lambda path: path in DIRECTORIES)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("RUNNER_ENVIRONMENT", runner)
    make_room(need, said.append)
    return gone, said


@pytest.mark.parametrize(
    ("free", "need", "runner", "count", "last"),
    [
        (40, 40, "github-hosted", 0, ""),
        (18, 30, "github-hosted", 3, "33 GB are free now"),  # no more than is needed
        (1, 1000, "github-hosted", len(DIRECTORIES), "::warning::"),
        (18, 40, "self-hosted", 0, "::warning::18 GB of disk are free"),  # somebody's machine
        (18, 40, "", 0, "::warning::18 GB of disk are free"),
    ],
)
def test_a_hosted_runner_has_room_made(
    monkeypatch: pytest.MonkeyPatch, free: int, need: int, runner: str, count: int, last: str
) -> None:
    gone, said = removed(monkeypatch, free, need, runner)
    assert gone == list(DIRECTORIES[:count])
    assert (bool(said), last in "".join(said[-1:])) == (bool(last), True)
