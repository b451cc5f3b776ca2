"""Whether work grows with its input in proportion: what takes n steps, and not n times n.

Nothing here knows how fast a machine is. What is compared is the processor time of this thread
alone, for an input and for one of four times the size, so that other processes do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_AT_MOST = 10.0
"""Between the 4 of proportion and the 16 of a square."""


def assert_in_proportion(work: Callable[[int], object], size: int) -> None:
    """Do some work with an input of about a size and with a quarter of it.

    Noise makes one measurement too long; what is a square by nature is one in every round, so one
    good round of six is enough.
    """

    def cost(size: int) -> int:
        start = time.thread_time_ns()
        work(size)
        return max(1, time.thread_time_ns() - start)

    ratios: list[float] = []
    while not ratios or ratios[-1] > _AT_MOST:
        assert len(ratios) < 6, f"four times the input took {ratios} times as long"
        ratios.append(cost(size) / cost(size // 4))
