"""Whether work grows with its input in proportion: what takes n steps, and not n times n.

Nothing here knows how fast a machine is. What is compared is the processor time of this thread
alone, for an input and for one of four times the size, so that other processes do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TIMES = 4
_AT_MOST = 10.0
"""Between the 4 of proportion and the 16 of a square."""
_ROUNDS = 6


def assert_in_proportion(work: Callable[[int], object], size: int) -> None:
    """Do some work with an input of a size and with a quarter of it.

    Noise makes one measurement too long; what is a square by nature is one in every round, so one
    good round is enough.

    Args:
        work: does it with an input of about the size given.
        size: of the larger input.
    """
    ratios = []
    for _ in range(_ROUNDS):
        ratios.append(_cost(work, size) / _cost(work, size // _TIMES))
        if ratios[-1] <= _AT_MOST:
            return
    raise AssertionError(
        f"{_TIMES} times the input took {', '.join(f'{ratio:.0f}' for ratio in ratios)} times as "
        "long"
    )


def _cost(work: Callable[[int], object], size: int) -> int:
    start = time.thread_time_ns()
    work(size)
    return max(1, time.thread_time_ns() - start)
