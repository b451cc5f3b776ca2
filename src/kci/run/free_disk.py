"""Room on the disk for a build image: of what a hosted runner brings, no more is removed than the image needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kci.build.process.run import Log
from kci.utils.shipped import Dated, shipped

_GIGA = 10**9
_STORES = ("/var/lib/docker", "/var/lib/containers", "/")
"""Where images go, the first that there is; podman and docker share the disk with the system where that is one."""


class HostedDisk(Dated, frozen=True):
    """`data/hosted-disk.toml`."""

    directories: tuple[str, ...]


def make_room(need: int, log: Log, environ: Mapping[str, str] = os.environ) -> bool:
    """See that so many gigabytes are free for a container image.

    Only a runner that GitHub hosts, which is used for one job, has something removed; another machine is not touched.

    Args:
        need: gigabytes.
        log: takes a line about what was removed, or about what is missing.
        environ: where the runner says what it is.

    Returns:
        whether they are free now.
    """
    store = next(place for place in _STORES if Path(place).exists())
    if _free(store) >= need:
        return True
    if environ.get("RUNNER_ENVIRONMENT") == "github-hosted":
        directories = shipped("run/data/hosted-disk.toml", HostedDisk)().directories
        for directory in directories:
            if Path(directory).is_dir():
                subprocess.run(["sudo", "rm", "-rf", "--", directory], check=False)
                log(f"removed {directory}: {_free(store)} GB are free now")
            if _free(store) >= need:
                return True
    log(f"::warning::{_free(store)} GB of disk are free in {store}, and the image and a build in it need {need}")
    return False


def _free(place: str) -> int:
    return shutil.disk_usage(place).free // _GIGA
