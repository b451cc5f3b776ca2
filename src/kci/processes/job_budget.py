"""How several builds share the cores and the memory of one machine: by the protocol that GNU make's jobserver speaks.

A token stands for one compiler. Every build takes one as it starts ninja, which takes more while there are some, so
that a build that has nothing to do in parallel leaves the cores to the others. The tokens are bytes in a pipe, which
ninja opens by its name in /proc: nothing lies on a disk, and nothing is left when kci is killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from kci.errors import UsageError

_SPEAKS_JOBSERVER = (1, 13)
"""Since this version ninja takes tokens, and says how much time is left."""

_MOST_TOKENS = 4096
"""A pipe holds at least so many bytes."""

_STATUS = "[%f/%t] "
_STATUS_WITH_TIME = "[%f/%t %W] "
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
        """Fill the pipe.

        Args:
            jobs: the compilers that may run at once.
            builds: how many builds there may be at once; where tokens cannot be shared each has an equal part.

        Raises:
            UsageError: there is no job to give.
        """
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
        """Take one token for a ninja, and give it back when that has ended.

        Args:
            version: ninja's version, major and minor.
        """
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
