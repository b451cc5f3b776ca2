"""How far a download is: bytes, rate, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable

from kci.builders.request import Log

_SECONDS = 0.5
"""How often it is said."""


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

    def heard(self, count: int) -> None:
        """So many bytes more have arrived."""
        self._done += count
        now = self._clock()
        if now - self._said >= _SECONDS:
            self._said = now
            self._log(progress_line(self._what, self._done, self._total, now - self._begun))


def progress_line(what: str, done: int, total: int, seconds: float) -> str:
    """A line such as `headers of torch: 6.1 of 13.2 MB, 2.1 MB/s, 4 s left`."""
    rate = done / seconds if seconds > 0 else 0.0
    amount = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
    left = f", {max(1, round((total - done) / rate))} s left" if total > done and rate else ""
    return f"{what}: {amount}, {rate / 1e6:.1f} MB/s{left}"
