"""What the machine, or the control group that a build is in, has of cores and memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNKNOWN = 4 * 2**30
"""What to count with where the machine does not say."""
_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def cores() -> int:
    """The cores that compilers may use; in a container they can be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    found = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = cpu_limit()
    return found if limit is None else max(1, min(found, round(limit)))


def memory() -> int:
    """The bytes of memory that this process and its children may use."""
    if sys.platform == "win32":
        return _UNKNOWN
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # macOS has not all names
        found = _UNKNOWN
    limit = memory_limit()
    return found if limit is None else min(found, limit)


def memory_limit(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> int | None:
    """The bytes that this process and its children may use; None where nothing limits them."""
    files = [place / "memory.max" for place in _unified(membership, mount)]
    files += [place / "memory.limit_in_bytes" for place in _controller("memory", membership, mount)]
    limits = (limit for path in files if (limit := _number(path)) is not None)
    # The older kind writes a number near 2**63 where there is no limit.
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def cpu_limit(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> float | None:
    """The cores that they may use together; None where nothing limits them."""
    found: list[float] = []
    for place in _unified(membership, mount):
        quota, _, period = _text(place / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    for place in _controller("cpu", membership, mount):
        allowed, every = _number(place / "cpu.cfs_quota_us"), _number(place / "cpu.cfs_period_us")
        if allowed is not None and every:
            found.append(allowed / every)
    return min(found, default=None)


def _unified(membership: Path, mount: Path) -> Iterator[Path]:
    # the group and those above it, of the newer kind
    for line in _text(membership).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            yield from _upwards(mount, group)


def _controller(name: str, membership: Path, mount: Path) -> Iterator[Path]:
    # the same of the older kind, where each controller has a tree of its own
    for line in _text(membership).splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if name in controllers.split(","):
            for folder in dict.fromkeys((name, controllers)):
                yield from _upwards(mount / folder, group)


def _upwards(root: Path, group: str) -> Iterator[Path]:
    # in a container the group can be named as the host sees it, while its own files are at the top
    path = PurePosixPath("/", group)
    for part in (path, *path.parents):
        yield root / part.relative_to("/")


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
