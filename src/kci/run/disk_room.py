"""Room on the disk of a GitHub-hosted runner, for images and toolkits."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from kci.builders.process.run import Log
from kci.utils.shipped import Dated, shipped

_GIGA = 10**9
_STORES = ("/var/lib/docker", "/var/lib/containers", "/")
"""Where images are stored: the first that exists."""


class HostedDisk(Dated):
    """`data/hosted-disk.toml`."""

    directories: tuple[str, ...]


def make_room(need: int, log: Log) -> None:
    """Free gigabytes for a container image by removing tools; only on a GitHub-hosted runner."""
    store = next(place for place in _STORES if Path(place).exists())
    hosted = os.environ.get("RUNNER_ENVIRONMENT") == "github-hosted"
    tools = shipped("run/data/hosted-disk.toml", HostedDisk)().directories if hosted else ()
    for directory in filter(os.path.isdir, tools):
        if _free(store) < need:
            subprocess.run(["sudo", "rm", "-rf", "--", directory], check=False)
            log(f"removed {directory}: {_free(store)} GB are free now")
    if (free := _free(store)) < need:
        log(f"::warning::{free} GB of disk are free in {store}, and this leg needs {need}")


def _free(place: str) -> int:
    return shutil.disk_usage(place).free // _GIGA
