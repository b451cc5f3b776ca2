"""What a container or a job of a batch system may use of this machine: the limits of its control group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def memory_limit(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> int | None:
    """The bytes that this process and its children may use; None where nothing limits them."""
    found = [_number(place / "memory.max") for place in _unified(membership, mount)]
    found += [_number(place / "memory.limit_in_bytes") for place in _controller("memory", membership, mount)]
    # The older kind writes a number near 2**63 where there is no limit.
    return min((limit for limit in found if limit is not None and limit < 1 << 60), default=None)


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
    """The group and those above it, of the newer kind."""
    for line in _text(membership).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            yield from _upwards(mount, group)


def _controller(name: str, membership: Path, mount: Path) -> Iterator[Path]:
    """The same of the older kind, where each controller has a tree of its own."""
    for line in _text(membership).splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if name in controllers.split(","):
            for folder in dict.fromkeys((name, controllers)):
                yield from _upwards(mount / folder, group)


def _upwards(root: Path, group: str) -> Iterator[Path]:
    """In a container the group can be named as the host sees it, while its own files are at the top."""
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
