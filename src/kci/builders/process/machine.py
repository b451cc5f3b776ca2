"""Cores and memory of the machine or its cgroup, and the number of parallel compilers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kci.config.facts import BACKENDS
from kci.errors import UsageError
from kci.matrix.catalog.runners import default_runners
from kci.utils.frozen import Frozen

_UNKNOWN = 4 * 2**30
"""Assumed memory in bytes where the machine does not tell."""
_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def cores() -> int:
    """Cores available to compilers."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = cpu_limit()
    return count if limit is None else max(1, min(count, round(limit)))


def memory() -> int:
    """Bytes of memory available to this process and its children."""
    if sys.platform == "win32":
        return _UNKNOWN
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # macOS lacks some names
        size = _UNKNOWN
    limit = memory_limit()
    return size if limit is None else min(size, limit)


def memory_limit() -> int | None:
    """The cgroup's memory limit in bytes; None without one."""
    files = [place / "memory.max" for place in _groups("")]
    files += [place / "memory.limit_in_bytes" for place in _groups("memory")]
    limits = (limit for path in files if (limit := _number(path)) is not None)
    # cgroup v1 writes a number near 2**63 for no limit
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def cpu_limit() -> float | None:
    """The cgroup's limit in cores; None without one."""
    limits: list[float] = []
    for place in _groups(""):
        quota, _, period = _text(place / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            limits.append(int(quota) / int(period))
    for place in _groups("cpu"):
        allowed, every = _number(place / "cpu.cfs_quota_us"), _number(place / "cpu.cfs_period_us")
        if allowed is not None and every:
            limits.append(allowed / every)
    return min(limits, default=None)


def _groups(controller: str) -> Iterator[Path]:
    # the group and its parents: cgroup v1 has a hierarchy per controller, and v2 one without a name
    for line in _text(_MEMBERSHIP).splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            # in a container the path may be the host's, with the files at the top
            path = PurePosixPath("/", group)
            for folder in dict.fromkeys((controller, controllers)):
                for part in (path, *path.parents):
                    yield _MOUNT / folder / part.relative_to("/")


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def job_count(requested: int | None, builds: int = 1) -> int:
    """Number of parallel ninja commands per build: requested, `MAX_JOBS`, or cores.

    Raises UsageError.
    """
    if requested is not None and requested < 1:
        raise UsageError(f"the number of jobs must be at least 1, not {requested}")
    jobs = requested or _positive("MAX_JOBS") or cores()
    return max(1, jobs // builds)


def pool_depth(
    requested: int | None, backend: str, *, cutlass: bool = False, builds: int = 1
) -> int:
    """Number of compilers that fit into memory, or the number of jobs that the user chose. nvcc's
    threads count.
    """
    if chosen := requested or _positive("MAX_JOBS"):
        return chosen
    threads = nvcc_threads() if BACKENDS[backend].compiler == "nvcc" else None
    one = default_runners().compiler_memory(backend, cutlass=cutlass) * (threads or 1)
    return max(1, memory() // (one * builds))


def nvcc_threads() -> int | None:
    """`NVCC_THREADS`; None if unset. Raises UsageError."""
    return _positive("NVCC_THREADS")


def _positive(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UsageError(
            f"{name}={text!r} is not a positive number", f"set {name} to 1 or more, or unset it"
        )
    return int(text)


# `[3/17 00:42] c++ csrc/relu.cpp`; hours are optional, and `?` comes first
_STATUS_LINE = re.compile(r"\[(\d+)/(\d+)(?: (?:\?|(?:(\d+):)?(\d\d):(\d\d)))?\] (.*)", re.DOTALL)


class Progress(Frozen):
    """The progress of a ninja run."""

    done: int
    """Finished commands."""
    total: int
    seconds_left: int | None
    """Estimated seconds; None without an estimate."""
    command: str
    """Last finished command, such as `c++ csrc/relu.cpp`."""


def read_progress(line: str) -> Progress | None:
    """Parse a status line of ninja; None for other lines."""
    match = _STATUS_LINE.fullmatch(line)
    if not match:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.group(3, 4, 5))
    seconds_left = hours * 3600 + minutes * 60 + seconds if match[4] else None
    return Progress(int(match[1]), int(match[2]), seconds_left, match[6])
