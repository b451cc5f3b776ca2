"""Room on the disk of a GitHub-hosted runner, for images and toolkits."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kci.builders.process.run import Log
from kci.utils.shipped import Dated, shipped

_GIGA = 10**9
_STORES = ("/var/lib/docker", "/var/lib/containers", "/")
"""Where images are stored: the first that exists."""


class HostedDisk(Dated):
    """`data/hosted-disk.toml`."""

    directories: tuple[str, ...]


def make_room(need: int, log: Log, environ: Mapping[str, str] = os.environ) -> bool:
    """Free gigabytes for a container image by removing tools; only on a GitHub-hosted runner.

    True if they are free.
    """
    store = next(place for place in _STORES if Path(place).exists())
    if _free(store) >= need:
        return True
    hosted = environ.get("RUNNER_ENVIRONMENT") == "github-hosted"
    for directory in (
        shipped("run/data/hosted-disk.toml", HostedDisk)().directories if hosted else ()
    ):
        if Path(directory).is_dir():
            subprocess.run(["sudo", "rm", "-rf", "--", directory], check=False)
            log(f"removed {directory}: {_free(store)} GB are free now")
        if _free(store) >= need:
            return True
    log(f"::warning::{_free(store)} GB of disk are free in {store}, and this leg needs {need}")
    return False


def _free(place: str) -> int:
    return shutil.disk_usage(place).free // _GIGA
