"""How far a download is: bytes, rate, and the time left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import msgspec

from kci.processes.process import Log

_SECONDS = 0.5
"""How often it is said."""

_SELDOM = 10.0
"""How often it is shown where lines stay."""

_TOLD = re.compile(r"(.+): (\d+\.\d(?: of (\d+\.\d))? MB), (\d+\.\d MB/s)(?:, (.+) left)?")


class Transfer:
    """Counts what arrives, and says so in a line now and then."""

    def __init__(self, what: str, total: int, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        """A download that begins now.

        Args:
            what: what is downloaded, for the line.
            total: how many bytes it will be; 0 where that is not known.
            log: takes the lines.
            clock: the time in seconds.
        """
        self._what, self._total, self._log, self._clock = what, total, log, clock
        self._begun = self._said = clock()
        self._done = 0
        self._told = False

    def heard(self, count: int) -> None:
        """So many bytes more have arrived."""
        self._done += count
        now = self._clock()
        if now - self._said >= _SECONDS or (self._told and self._done == self._total):
            self._said, self._told = now, True
            self._log(progress_line(self._what, self._done, self._total, now - self._begun))


class Transferred(msgspec.Struct, frozen=True):
    """What a line says of a download, in its words."""

    what: str
    amount: str
    rate: str
    left: str
    """The time that it will take; nothing at its end, and where its size is not known."""
    ended: bool


def progress_line(what: str, done: int, total: int, seconds: float) -> str:
    """A line such as `headers of torch: 6.1 of 13.2 MB, 2.1 MB/s, 4 s left`."""
    rate = done / seconds if seconds > 0 else 0.0
    amount = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
    left = f", {duration(max(1, round((total - done) / rate)))} left" if total > done and rate else ""
    return f"{what}: {amount}, {rate / 1e6:.1f} MB/s{left}"


def duration(seconds: int) -> str:
    """A time to wait, in words."""
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"


def read_transfer(line: str) -> Transferred | None:
    """What one of the lines says; None for a line that says something else."""
    found = _TOLD.fullmatch(line)
    if found is None:
        return None
    return Transferred(found[1], found[2], found[4], found[5] or "", ended=bool(found[3]) and not found[5])


class SeldomTransfers:
    """Passes lines on, and of those about one download only the first, one in ten seconds, and the last.

    For logs and pipes, where a line stays.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        """Lines of any build may come.

        Args:
            log: takes what is passed on.
            clock: the time in seconds.
        """
        self._log, self._clock = log, clock
        self._said: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        """Take one line."""
        told = read_transfer(line)
        if told is not None:
            now = self._clock()
            if now - self._said.get(told.what, -_SELDOM) < _SELDOM and not told.ended:
                return
            self._said[told.what] = now
        self._log(line)
