"""What the commands of a ninja take while they run: seconds by ninja's own log, memory by /proc.

Nothing is added to a compiler's command line. Memory is what is resident (RSS), summed over all processes of a command:
what two of them share counts twice, so the sum errs to the safe side by a few megabytes. A process's own high-water
mark catches what lies between two looks. Where there is no /proc (macOS, Windows) no memory is known.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import msgspec

NINJA_LOG = ".ninja_log"
"""Where ninja notes how long each command took that succeeded, in the work directory."""

_PROC = Path("/proc")
_PACE_SECONDS = 0.3
_LOOKS_SHARE = 0.01
"""The part of one core that looking may take: with thousands of processes it looks less often."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# They start a compiler, or take its place; one that does no more than that has compiled nothing in its own processes.
_NO_COMPILERS = (b"ninja", b"sh", b"dash", b"bash", b"ccache", b"sccache", b"distcc", b"icecc")


class EndedCommand(msgspec.Struct, frozen=True):
    """A command of ninja that succeeded."""

    output: str
    """What it made, as build.ninja names it."""
    seconds: float | None
    peak: int | None
    """The most bytes that its processes had at once; None where it was too short to be seen, or compiled elsewhere."""


class _Running(msgspec.Struct):
    output: str
    peak: int = 0


class RunningCommands:
    """Watches a ninja from `follow` on until it is left, and tells of each command that succeeds.

    `ended` is called in a thread of its own, at most a second after a command's end; what it raises is raised where the
    watch is left.
    """

    def __init__(self, work: Path, outputs: Collection[str], ended: Callable[[EndedCommand], None]) -> None:
        # outputs: those to tell of
        self._log = work / NINJA_LOG
        self._outputs = frozenset(outputs)
        self._ended = ended
        self._told = set(self._entries())
        self._running: dict[int, _Running] = {}
        self._peaks: dict[str, int] = {}
        self._session: int | None = None
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="kci-running-commands", daemon=True)

    def __enter__(self) -> RunningCommands:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def follow(self, session: int) -> None:
        """The ninja that was started is in this session, the number of which is that of its first process."""
        self._session = session

    def peak(self, output: str) -> int | None:
        """The most bytes that the last command for an output had, whether it succeeded or not."""
        return self._peaks.get(output)

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
        seen: dict[int, int] = {}
        for process in _processes(self._session) if self._session else ():
            if process.group == self._session or process.name in _NO_COMPILERS:
                continue
            if process.group not in self._running:
                self._running[process.group] = _Running(self._output_of(process.group))
            command = self._running[process.group]
            seen[process.group] = seen.get(process.group, 0) + process.resident
            command.peak = max(command.peak, seen[process.group], process.most())
        for group, command in list(self._running.items()):
            self._peaks[command.output] = command.peak
            if group not in seen:
                del self._running[group]
        self._tell()

    def _output_of(self, group: int) -> str:
        # the command itself, or a shell that was given it as one word
        words = _read(f"/proc/{group}/cmdline").decode(errors="replace").replace("\0", " ").split()
        named = (after for word, after in pairwise(words) if word == "-o")
        return next((name for name in named if name in self._outputs), "")

    def _tell(self) -> None:
        for entry in self._entries():
            if entry in self._told:
                continue
            self._told.add(entry)
            begun, ended, _, output, _ = entry.split("\t")
            if output in self._outputs:
                self._ended(EndedCommand(output, (int(ended) - int(begun)) / 1000, self._peaks.get(output)))

    def _entries(self) -> Iterator[str]:
        # ninja may write the file anew as it starts, so that there is no place in it from which to read on
        text = _read(str(self._log)).decode(errors="replace")
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
