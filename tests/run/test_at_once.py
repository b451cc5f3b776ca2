"""Several pieces of work at once: they do run at once, one thread hears of them, and they end
together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from builders.process.test_process import is_running
from conftest import failure
from kci.builders.process.run import run_in_group
from kci.run.local import run_in_parallel

Tell = Callable[[str], None]


def test_they_run_at_once_and_are_heard_in_one_thread() -> None:
    meet = threading.Barrier(2, timeout=60)
    heard: list[tuple[str, threading.Thread]] = []

    def work(tell: Tell) -> None:
        tell("begun")
        meet.wait()  # for ever, if the other one began only after this one
        tell("ended")

    run_in_parallel([work, work], 2, lambda told: heard.append((told, threading.current_thread())))
    assert sorted(told for told, _ in heard) == ["begun", "begun", "ended", "ended"]
    assert {thread for _, thread in heard} == {threading.current_thread()}


def test_an_error_of_one_ends_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    pids: list[int] = []
    started = threading.Event()

    def endless(tell: Tell) -> None:
        def log(line: str) -> None:
            pids.append(int(line))
            started.set()

        run_in_group(["sh", "-c", f"echo $$; exec cat {tmp_path / 'never'}"], log)
        tell("it must not come to this")

    def failing(tell: Tell) -> None:
        started.wait()
        raise ValueError("of one")

    heard: list[str] = []
    failure(ValueError, "of one", run_in_parallel, [endless, failing], 2, heard.append)
    assert not is_running(pids[0])
    assert heard == []


def test_an_interrupt_ends_the_programs_of_all_and_starts_no_more(tmp_path: Path) -> None:
    """Programs that read no signal of the terminal, because they have a session of their own, and
    plain ones.
    """
    os.mkfifo(tmp_path / "never")
    pids: list[int] = []
    later: list[str] = []

    def endless(tell: Tell) -> None:
        run_in_group(["sh", "-c", f"echo $$; exec cat {tmp_path / 'never'}"], tell)

    def never_begun(tell: Tell) -> None:
        later.append("begun")

    def hear(told: str) -> None:
        pids.append(int(told))
        if len(pids) == 2:
            raise KeyboardInterrupt

    failure(KeyboardInterrupt, "", run_in_parallel, [endless, endless, never_begun], 2, hear)
    assert [pid for pid in pids if is_running(pid)] == []
    assert later == []
