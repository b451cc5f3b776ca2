"""Which compilers run now, of those that ninja has started: as many as there is memory for, and time.

ninja cannot be asked to start fewer: a token of its jobserver that comes back is taken again at once, and one that is
added is seen only when a command ends (1.13). So it starts as many as there are cores, and one for which there is no
room is stopped (SIGSTOP) as it begins, until others have ended. A compiler knows nothing of it, and its output is the
same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from kci.processes.machine import free_memory

_RESERVE = 256 * 2**20
"""Bytes that are left to the rest of the machine."""
_SHORT = 512 * 2**20
"""With less than this free one of those that run is stopped, whatever it was expected to take."""


class Need(msgspec.Struct, frozen=True):
    """What compiling an object is expected to take."""

    memory: int = 0
    """Bytes at its worst; 0 where nothing is known, and then it always begins."""
    seconds: float = 0.0
    measured: bool = False
    """Whether that was recorded; what is guessed gives way to what similar objects take in this build."""
    what: str = ""
    """How messages name it, such as its source; by default as the output."""
    alone: bool = False
    """Whether nothing may run beside it: it was killed for want of memory before."""


class RunningCommand(msgspec.Struct):
    """A command of ninja that runs, or is stopped."""

    output: str
    """What it makes; empty for one that is not to wait, such as a link."""
    need: Need
    since: float
    group: int
    """The number of its process group."""
    ends_at: float | None = None
    """When its build ends (`time.monotonic`): what would not be done by then does not begin."""
    resident: int = 0
    peak: int = 0
    until: float = 0.0
    """When it was last seen."""
    running: bool = False
    begun: bool = False
    """Whether it was ever let run."""
    held_since: float | None = None
    held_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it has run, without the time that it waited."""
        return (self.held_since or self.until) - self.since - self.held_seconds

    @property
    def growth(self) -> int:
        """The bytes that it is still expected to take."""
        return max(0, self.need.memory - self.resident)

    def late(self, now: float) -> bool:
        """Whether it has not begun, and would not be done when its build ends."""
        return not self.begun and self.ends_at is not None and now + self.need.seconds >= self.ends_at


class MemoryGate:
    """All compilers that this process runs, whichever builds they are for: the memory is the machine's."""

    def __init__(self, free: Callable[[], int | None] = free_memory) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._builds: dict[object, Sequence[RunningCommand]] = {}

    def look(self, build: object, commands: Sequence[RunningCommand]) -> list[RunningCommand]:
        """Let the commands of one build run or wait; those that begin to wait are returned."""
        with self._lock:
            self._builds[build] = commands
            everything = sorted((item for mine in self._builds.values() for item in mine), key=lambda item: item.since)
            now = time.monotonic()
            may_run = decide(everything, self._free(), now)
            begun = []
            for item in commands:
                item.running = item.group in may_run
                item.begun |= item.running
                if not item.running and item.held_since is None:
                    begun.append(item)
                    item.held_since = now
                    _hold(item, held=True)
                elif item.running and item.held_since is not None:
                    item.held_seconds += now - item.held_since
                    item.held_since = None
                    _hold(item, held=False)
            return begun

    def release(self, commands: Iterable[RunningCommand]) -> None:
        """Let go on what waits, because it is to end."""
        for item in commands:
            if item.held_since is not None:
                _hold(item, held=False)

    def leave(self, build: object) -> None:
        """A build has ended."""
        with self._lock:
            self._builds.pop(build, None)


def decide(commands: Sequence[RunningCommand], free: int | None, now: float = 0.0) -> set[int]:
    """The groups of the commands that may run; `commands` in the order in which they began, `free` in bytes.

    One that was let run goes on. Of the others, those run for which there is room beside what all before them are
    still expected to take; one always runs. Only where memory ends nevertheless, the last one is stopped again.
    """
    others = {item.group for item in commands if not item.output}
    objects = [item for item in commands if item.output]
    going = [item for item in objects if item.running]
    if free is not None and free < _SHORT and len(going) > 1:
        last = going.pop()
        last.need = msgspec.structs.replace(last.need, memory=max(last.need.memory, last.resident * 3 // 2))
        return others | {item.group for item in going}
    room = None if free is None else free - _RESERVE - sum(item.growth for item in going)
    may_run = {item.group for item in going}
    alone = any(item.need.alone for item in going)
    for item in objects:
        if item.running or item.late(now):
            continue
        if may_run and (alone or item.need.alone):
            break
        if not may_run or room is None or item.growth <= room:
            may_run.add(item.group)
            room = None if room is None else room - item.growth
            alone = item.need.alone
    return others | may_run


def _hold(command: RunningCommand, *, held: bool) -> None:
    if sys.platform == "win32":  # where nothing is known of memory, and nothing waits
        return
    number = signal.SIGSTOP if held else signal.SIGCONT
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command.group, number)


THIS_MACHINE = MemoryGate()
"""The gate of this process."""
