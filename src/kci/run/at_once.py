"""Several pieces of work at once, and one thread that hears of them: what they tell comes out one after the other."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from kci.processes.process import ProgramScope

_Told = TypeVar("_Told")

Work = Callable[[Callable[[_Told], None]], None]
"""Does its work, and tells of it by calling what it is given."""


def at_once(
    works: Sequence[Work[_Told]], width: int, hear: Callable[[_Told], None], wake: Callable[[], None] = lambda: None
) -> None:
    """Do all the work, and return when it is done.

    Whatever ends this, Ctrl-C above all, ends the programs that were started, and waits for the threads.

    Args:
        works: what to do.
        width: how many at once.
        hear: is called in this thread with everything that they tell.
        wake: lets threads go on that wait for something else than a program, once they are to be stopped.

    Raises:
        BaseException: what one of them, or `hear`, raised.
    """
    scope = ProgramScope()
    told: queue.SimpleQueue[tuple[_Told] | Future[None]] = queue.SimpleQueue()

    def tell(item: _Told) -> None:
        scope.require_running()
        told.put((item,))

    def do(work: Work[_Told]) -> None:
        with scope.entered():
            work(tell)

    with ThreadPoolExecutor(max(1, width)) as pool:
        try:
            for work in works:
                pool.submit(do, work).add_done_callback(told.put)
            ended = 0
            while ended < len(works):
                item = told.get()
                if isinstance(item, Future):
                    item.result()
                    ended += 1
                else:
                    hear(item[0])
        except BaseException:
            scope.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            wake()
            raise
