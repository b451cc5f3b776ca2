"""What the commands of a ninja take while they run: seconds by ninja's own log, memory by /proc.

Nothing is added to a compiler's command line. Memory is what is resident (RSS), summed over all processes of a command:
what two of them share counts twice, so the sum errs to the safe side by a few megabytes. A process's own high-water
mark catches what lies between two looks. Where there is no /proc (macOS, Windows) no memory is known.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import msgspec

from kci.processes.memory_gate import THIS_MACHINE, MemoryGate, Need, RunningCommand
from kci.processes.process import Log, silent

NINJA_LOG = ".ninja_log"
"""Where ninja notes how long each command took that succeeded, in the work directory."""

_PROC = Path("/proc")
_PACE_SECONDS = 0.3
_LOOKS_SHARE = 0.01
"""The part of one core that looking may take: with thousands of processes it looks less often."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# They start a compiler, or take its place; one that does no more than that has compiled nothing in its own processes.
_ENOUGH_SEEN = 3
_NO_COMPILERS = (b"ninja", b"sh", b"dash", b"bash", b"ccache", b"sccache", b"distcc", b"icecc")


class EndedCommand(msgspec.Struct, frozen=True):
    """A command of ninja that succeeded, or was lost."""

    output: str
    """What it made, as build.ninja names it."""
    seconds: float | None
    """What it took, without the time that it waited for memory; None where nobody saw it run."""
    peak: int | None
    """The most bytes that its processes had at once; None where it was too short to be seen, or compiled elsewhere."""
    alone: bool = False
    """Whether it ran alone, because it was killed for want of memory before."""
    lost: bool = False
    """Whether it still ran when its build was ended."""


class RunningCommands:
    """Watches a ninja from `follow` on until it is left, and tells of each command that succeeds or is lost.

    On Linux it holds back those for which there is no memory or no time.
    `ended` is called in a thread of its own, about a second after a command's end, one after the other; what it raises
    is raised where the watch is left. It may keep an object for as long as it takes: others are looked at meanwhile.
    """

    def __init__(
        self,
        work: Path,
        needs: Mapping[str, Need],
        ended: Callable[[EndedCommand], None],
        log: Log = silent,
        gate: MemoryGate = THIS_MACHINE,
    ) -> None:
        # needs: of the objects to tell of, by output
        self._ninja_log = work / NINJA_LOG
        self._needs = needs
        self._ended = ended
        self._log = log
        self._gate = gate
        self._told = set(self._entries())
        self._running: dict[int, RunningCommand] = {}
        self._last: dict[str, RunningCommand] = {}
        self._made: set[str] = set()
        self._similar: dict[int, list[int]] = {}
        self._longest = 0.0
        self._waited = False
        self._began = False
        self._session: int | None = None
        self._ends_at: float | None = None
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="kci-running-commands", daemon=True)
        self._telling = ThreadPoolExecutor(1, "kci-ended-commands")
        self._tellings: list[Future[None]] = []
        self.stopped = False
        """Whether ninja was ended because its time was over."""

    def __enter__(self) -> RunningCommands:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._gate.leave(self)
        if self.stopped or error is not None:
            self._tell_lost()
        self._telling.shutdown()
        if error is None:
            for wrong in (self._error, *(telling.exception() for telling in self._tellings)):
                if wrong is not None:
                    raise wrong

    def follow(self, session: int) -> None:
        """The ninja that was started is in this session, the number of which is that of its first process."""
        self._session = session

    def end_at(self, when: float | None) -> None:
        """End ninja at this time (`time.monotonic`); before it nothing begins that would not be done by then.

        What is begun first has all the time that there is, and is not held back.
        """
        self._ends_at = when

    def peak(self, output: str) -> int | None:
        """The most bytes that the last command for an output had, whether it succeeded or not."""
        return self._last[output].peak if output in self._last else None

    def _watch(self) -> None:
        try:
            pause = 0.0
            while not self._over.wait(pause):
                started = time.thread_time()
                self._look()
                pause = max(_PACE_SECONDS, (time.thread_time() - started) / _LOOKS_SHARE)
            self._tell()
        except BaseException as error:
            self._error = error

    def _look(self) -> None:
        now, seen = time.monotonic(), dict[int, int]()
        for process in _processes(self._session) if self._session else ():
            if process.group == self._session or process.name in _NO_COMPILERS:
                continue
            if process.group not in self._running:
                output = self._output_of(process.group)
                self._running[process.group] = RunningCommand(output, Need(), now, process.group)
            command = self._running[process.group]
            command.resident = seen[process.group] = seen.get(process.group, 0) + process.resident
            command.peak = max(command.peak, command.resident, process.most())
        self._running = {group: command for group, command in self._running.items() if group in seen}
        commands = list(self._running.values())
        for command in commands:
            command.ends_at, command.until = self._ends_at if self._began else None, now
            command.need = command.need if command.begun else self._need(command.output)
            self._last[command.output] = command
        for command in self._gate.look(self, commands):
            self._tell_waits(command)
        self._began |= any(command.begun and command.output for command in commands)
        self._tell()
        waits = commands and all(command.late(now) for command in commands)
        if self._ends_at is not None and self._session and not self.stopped and (now >= self._ends_at or waits):
            self.stopped = True
            os.kill(self._session, signal.SIGTERM)
            self._gate.release(commands)

    def _need(self, output: str) -> Need:
        """What was recorded, else a guess, made better by what three of the same guess have taken in this build."""
        need = self._needs.get(output, Need())
        seen = self._similar.get(need.memory, [])
        if need.memory and not need.measured and seen:
            likely = max(seen) * 5 // 4
            if len(seen) >= _ENOUGH_SEEN or likely > need.memory:
                need = msgspec.structs.replace(need, memory=likely)
        return need if need.seconds else msgspec.structs.replace(need, seconds=self._longest)

    def _output_of(self, group: int) -> str:
        # the command itself, or a shell that was given it as one word
        words = _read(f"/proc/{group}/cmdline").decode(errors="replace").replace("\0", " ").split()
        named = (after for word, after in pairwise(words) if word == "-o")
        return next((name for name in named if name in self._needs), "")

    def _tell_waits(self, command: RunningCommand) -> None:
        if not self._waited and not command.late(command.since):
            self._waited = True
            self._log(
                f"memory is short: {command.need.what or command.output} waits until others have ended, "
                f"since it is expected to take {command.need.memory / 2**30:.1f} GiB"
            )

    def _tell(self) -> None:
        for entry in self._entries():
            if entry in self._told:
                continue
            self._told.add(entry)
            begun, ended, _, output, _ = entry.split("\t")
            if output not in self._needs:
                continue
            self._made.add(output)
            need, command = self._needs[output], self._last.get(output)
            seconds = (int(ended) - int(begun)) / 1000 - (command.held_seconds if command else 0)
            self._longest = max(self._longest, seconds)
            if command and not need.measured:
                self._similar.setdefault(need.memory, []).append(command.peak)
            self._end(EndedCommand(output, round(seconds, 3), command.peak if command else None, need.alone))

    def _tell_lost(self) -> None:
        for output, command in self._last.items():
            if output in self._needs and command.begun and output not in self._made:
                self._end(EndedCommand(output, round(command.seconds, 3), command.peak, command.need.alone, lost=True))

    def _end(self, command: EndedCommand) -> None:
        self._tellings.append(self._telling.submit(self._ended, command))

    def _entries(self) -> Iterator[str]:
        # ninja may write the file anew as it starts, so that there is no place in it from which to read on
        text = _read(str(self._ninja_log)).decode(errors="replace")
        return (line for line in text.splitlines(keepends=True) if line.endswith("\n") and line.count("\t") == 4)


class _Process(msgspec.Struct, frozen=True):
    pid: str
    name: bytes
    group: int
    resident: int

    def most(self) -> int:
        """The most bytes that it ever had."""
        _, _, rest = _read(f"/proc/{self.pid}/status").partition(b"VmHWM:")
        kilobytes = rest.split(None, 1)[0] if rest else b""
        return int(kilobytes) * 1024 if kilobytes.isdigit() else self.resident


def _processes(session: int) -> Iterator[_Process]:
    """The processes of a session, without those that have ended; none where there is no /proc."""
    wanted = str(session).encode()
    if not _PROC.is_dir():
        return
    for pid in [entry.name for entry in os.scandir(_PROC)]:
        if pid.isdigit():
            before, _, rest = _read(f"/proc/{pid}/stat").rpartition(b") ")
            # from the third field on: state, parent, group, session; resident pages are the 24th
            fields = rest.split(None, 22)
            if len(fields) > 21 and fields[3] == wanted and fields[0] != b"Z":
                yield _Process(pid, before.partition(b"(")[2], int(fields[2]), int(fields[21]) * _PAGE)


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        found = b""
        while part := os.read(handle, 1 << 16):
            found += part
        return found
    except OSError:  # the process has ended meanwhile
        return b""
    finally:
        os.close(handle)
