"""How many compilers run at once: what the machine allows, and how several builds share it.

Builds share by the protocol that GNU make's jobserver speaks. A token stands for one compiler. Every build takes one as
it starts ninja, which takes more while there are some, so that a build that has nothing to do in parallel leaves the
cores to the others. The tokens are bytes in a pipe, which ninja opens by its name in /proc: nothing lies on a disk, and
nothing is left when kci is killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from kci.catalog.runners import default_runners
from kci.errors import UsageError
from kci.processes.machine import cores, free_memory, memory

_LEAST_MEMORY = 2**29
"""No compiler of torch sources takes less; so many bytes for each bound how many are started at once."""


def job_count(asked: int | None, backend: str, *, hidden: bool = False) -> int:
    """How many compilers run at once at most: what was asked for, else `MAX_JOBS`, else by cores.

    How many of them really run is decided by the memory that is free (`kci.processes.memory_gate`). Where a machine
    does not say what is free, and where compilers are `hidden` because a server starts them, so many run for which
    there is memory at their worst. nvcc may itself run several threads (`NVCC_THREADS`), and each of them counts.

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
        held = free_memory() is not None and not hidden
        least = _LEAST_MEMORY if held else default_runners().compiler_memory(backend)
        jobs = max(1, min(cores(), memory() // least))
    threads = nvcc_threads() if backend == "cuda" else None
    return max(1, jobs // (threads or 1))


def jobs_are_chosen(asked: int | None) -> bool:
    """Whether somebody said how many compilers are to run."""
    return asked is not None or _positive("MAX_JOBS") is not None


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
