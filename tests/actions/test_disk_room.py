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
DIRECTORIES = list(shipped("run/data/hosted-disk.toml", HostedDisk)().directories)


@pytest.mark.parametrize(
    ("free", "need", "environ", "removed", "enough", "says"),
    [
        (40, 40, HOSTED, 0, True, ""),
        (18, 30, HOSTED, 3, True, DIRECTORIES[2]),
        (1, 1000, HOSTED, len(DIRECTORIES), False, "::warning::"),
        (18, 40, {}, 0, False, "18 GB of disk are free"),
        (18, 40, {"RUNNER_ENVIRONMENT": "self-hosted"}, 0, False, "18 GB of disk are free"),
    ],
    ids=["enough", "no more than needed", "all of it", "somebody's machine", "self-hosted"],
)
def test_room_is_made_on_a_hosted_runner_only(
    monkeypatch: pytest.MonkeyPatch, free: int, need: int, environ: dict[str, str], removed: int,
    enough: bool, says: str,
) -> None:  # fmt: skip
    """Every directory of the list has 5 GB."""
    gone, log = list[str](), list[str]()

    def remove(command: list[str], **_: object) -> None:
        assert command[:4] == ["sudo", "rm", "-rf", "--"]
        gone.append(command[4])

    def usage(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=(free + 5 * len(gone)) * 10**9)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) in DIRECTORIES)
    monkeypatch.setattr(subprocess, "run", remove)
    assert make_room(need, log.append, environ) is enough
    assert gone == DIRECTORIES[:removed]
    assert (bool(log), says in "".join(log[-1:])) == (bool(says), True)
    assert len(log) >= removed
