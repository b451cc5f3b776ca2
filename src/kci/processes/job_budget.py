"""How many compilers run at once: what the machine allows, and how several builds share it.

Builds share by the protocol that GNU make's jobserver speaks. A token stands for one compiler. Every build takes one as
it starts ninja, which takes more while there are some, so that a build that has nothing to do in parallel leaves the
cores to the others. The tokens are bytes in a pipe, which ninja opens by its name in /proc: nothing lies on a disk, and
nothing is left when kci is killed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType

import msgspec

from kci.catalog.runners import default_runners
from kci.errors import UsageError

_UNKNOWN_MEMORY = 4
"""What to count with where the machine does not say, or where the compiler was never measured."""


def job_count(asked: int | None, backend: str) -> int:
    """How many compilers run at once: what was asked for, else `MAX_JOBS`, else by cores and memory.

    nvcc may itself run several threads (`NVCC_THREADS`), and each of them counts.

    Raises:
        UsageError: the number asked for is not a positive integer.
    """
    if asked is not None:
        if asked < 1:
            raise UsageError(f"the number of jobs must be at least 1, not {asked}")
        return asked
    if (limit := _positive("MAX_JOBS")) is not None:
        jobs = limit
    else:
        build = default_runners().build.get(backend)
        memory = build.memory if build is not None and build.memory else _UNKNOWN_MEMORY
        jobs = max(1, min(_cores(), _memory_gib() // memory))
    threads = nvcc_threads() if backend == "cuda" else None
    return max(1, jobs // (threads or 1))


def nvcc_threads() -> int | None:
    """`NVCC_THREADS`, or None if it is not set.

    Raises:
        UsageError: it is not a positive integer.
    """
    return _positive("NVCC_THREADS")


def _positive(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UsageError(f"{name}={text!r} is not a positive number", hint=f"set {name} to 1 or more, or unset it")
    return int(text)


def _cores() -> int:
    # in a container they can be fewer than the machine has
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = cpu_limit()
    return cores if limit is None else max(1, min(cores, round(limit)))


def _memory_gib() -> int:
    if sys.platform == "win32":
        return _UNKNOWN_MEMORY
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = _UNKNOWN_MEMORY * 2**30
    limit = memory_limit()
    return (memory if limit is None else min(memory, limit)) // 2**30


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


_SPEAKS_JOBSERVER = (1, 13)
"""Since this version ninja takes tokens, and says how much time is left."""

_MOST_TOKENS = 4096
"""A pipe holds at least so many bytes."""

_STATUS = "[%f/%t] "
_STATUS_WITH_TIME = "[%f/%t %W] "
# `[3/17 00:42] c++ csrc/relu.cpp`; the time can have hours, and is `?` at first
_TOLD = re.compile(r"\[(\d+)/(\d+)(?: (?:\?|(?:(\d+):)?(\d\d):(\d\d)))?\] (.*)", re.DOTALL)
_CHATTER = "ninja: Jobserver mode detected"


class Progress(msgspec.Struct, frozen=True):
    """How far ninja has come."""

    done: int
    """Commands that have ended: one for each translation unit, and the links."""
    total: int
    left: int | None
    """Seconds that the rest will take, by what the same commands took the last time; None if it does not say."""
    what: str
    """The command that has just ended, such as `c++ csrc/relu.cpp`."""


class JobShare(msgspec.Struct, frozen=True):
    """What ninja is given to run so many compilers and no more."""

    arguments: tuple[str, ...]
    settings: dict[str, str]


class JobBudget:
    """So many compilers for several builds at once."""

    def __init__(self, jobs: int, builds: int = 1) -> None:
        # builds: how many there may be at once; where tokens cannot be shared each has an equal part
        if jobs < 1:
            raise UsageError(f"the number of jobs must be at least 1, not {jobs}")
        self.jobs = jobs
        self._part = max(1, jobs // max(1, builds))
        self._take, self._give = os.pipe()
        os.write(self._give, b"+" * min(jobs, _MOST_TOKENS))
        self._place = Path(f"/proc/{os.getpid()}/fd/{self._take}")

    def __enter__(self) -> JobBudget:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._take)
        os.close(self._give)

    def wake(self, builds: int) -> None:
        """Let builds go on that wait for a token, because they are to be stopped."""
        os.write(self._give, b"+" * builds)

    @contextmanager
    def share(self, version: Sequence[int]) -> Iterator[JobShare]:
        """Take one token for a ninja of a version (major and minor), and give it back when that has ended."""
        token = os.read(self._take, 1)
        try:
            if tuple(version) >= _SPEAKS_JOBSERVER and self._place.exists():
                flags = f" -j{self.jobs} --jobserver-auth=fifo:{self._place}"
                yield JobShare((), {"MAKEFLAGS": flags, "NINJA_STATUS": _STATUS_WITH_TIME})
            else:
                yield JobShare(("-j", str(self._part)), {"NINJA_STATUS": _STATUS})
        finally:
            os.write(self._give, token)


def alone(jobs: int, version: Sequence[int]) -> JobShare:
    """What ninja is given where there is one build only."""
    status = _STATUS_WITH_TIME if tuple(version) >= _SPEAKS_JOBSERVER else _STATUS
    return JobShare(("-j", str(jobs)), {"NINJA_STATUS": status})


def read_progress(line: str) -> Progress | None:
    """What one of ninja's lines says about its progress; None for a line that says something else."""
    found = _TOLD.fullmatch(line)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.group(3, 4, 5))
    left = hours * 3600 + minutes * 60 + seconds if found[4] else None
    return Progress(int(found[1]), int(found[2]), left, found[6])


def is_chatter(line: str) -> bool:
    """Whether a line is about how ninja was started, and nothing that the reader of a log wants."""
    return line.startswith(_CHATTER)
