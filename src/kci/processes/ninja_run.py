"""Running ninja: what was killed for want of memory is compiled again alone, and what has no time left is ended."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kci.errors import BuildFailedError
from kci.processes.jobs import read_progress
from kci.processes.machine import memory
from kci.processes.process import Finished, Log, guarded

NINJA_LOG = ".ninja_log"
"""Where ninja notes how long each command took that succeeded, in the work directory."""

# ninja: `FAILED: [code=1] obj/000/relu.cpp.o`; older ones have no code.
_FAILED = re.compile(r"FAILED: (?:\[code=(?P<code>-?\d+)\] )?(?P<made>.+?) *")
# g++, nvcc, clang++ and a shell of a part that died by signal 9.
_KILLED = re.compile(
    r"Killed signal terminated program|(?:(?:fatal|internal compiler) error|unable to execute command): Killed"
    r"|died due to signal 9|^Killed$"
    # They and the C library of memory that the system refused; a source's own words do not stand at a line's begin.
    r"|^(?:\S+: )?(?:fatal error: |\w+ fatal +: |LLVM ERROR: )?"
    r"(?:virtual memory exhausted|out of memory|Memory allocation failure|Cannot allocate memory)"
    r"|^terminate called after throwing an instance of 'std::bad_alloc'",
    re.MULTILINE,
)
_KILLED_CODES = ("137", "-9")


class FailedCommand(msgspec.Struct, frozen=True):
    """A command of ninja that failed."""

    made: str
    """What it was to make, relative to the work directory."""
    command: str
    said: tuple[str, ...]
    killed: bool
    """Whether it had no memory."""


class NinjaRun(msgspec.Struct, frozen=True):
    """What ninja is to do."""

    command: Sequence[str]
    work: Path
    environment: Mapping[str, str]
    objects: Mapping[str, str]
    """How messages name each object, by output. An output that is not here is none, such as a link."""
    lock: int | None = None
    ends_at: float | None = None
    """When to end it (`time.monotonic`); None for never."""


def ending(minutes: float | None) -> float | None:
    """When a build ends that may take so long from now on (`time.monotonic`)."""
    return None if minutes is None else time.monotonic() + 60 * minutes


def run_ninja(run: NinjaRun, log: Log) -> Finished | None:
    """Run ninja until all is made or a command has failed.

    None where the time was over: what still ran was ended.

    Raises:
        BuildFailedError: an object was killed for want of memory, and again when it was compiled alone.
    """
    tried, queue = set[str](), list[str]()
    while True:
        alone = queue.pop(0) if queue else ""
        command = [*run.command, "-j1", alone] if alone else run.command
        with _time_limit(run.ends_at) as limit:
            done = guarded(command, log, env=run.environment, lock=run.lock, started=limit.follow)
        if limit.over:
            return None
        killed = [item.made for item in failed_commands(done.output) if item.killed and item.made in run.objects]
        for made in killed:
            if made in tried:
                raise _too_big(run.objects[made])
            log(f"{run.objects[made]} was killed for want of memory: it is compiled again, alone")
            tried.add(made)
            queue.append(made)
        if not killed and (done.code != 0 or not alone):
            return done


class _TimeLimit:
    """Asks a session's first process to end when its time is over."""

    def __init__(self) -> None:
        self.over = False
        self._session: int | None = None

    def follow(self, session: int) -> None:
        self._session = session
        if self.over:
            self.end()

    def end(self) -> None:
        self.over = True
        if self._session is not None:
            with suppress(ProcessLookupError):
                os.kill(self._session, signal.SIGTERM)


@contextmanager
def _time_limit(ends_at: float | None) -> Iterator[_TimeLimit]:
    limit = _TimeLimit()
    if ends_at is None:
        yield limit
        return
    timer = threading.Timer(max(0.0, ends_at - time.monotonic()), limit.end)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()
        timer.join()


def failed_commands(output: str) -> list[FailedCommand]:
    """The failed commands in what ninja said, each with its own output.

    What other commands say while ninja waits for their end stands in between.
    """
    lines = output.splitlines()
    found = []
    for number, line in enumerate(lines):
        if (failed := _FAILED.fullmatch(line)) is None:
            continue
        said = []
        for after in lines[number + 2 :]:
            if not of_failure(after, begun=True) or _FAILED.fullmatch(after):
                break
            said.append(after)
        command = lines[number + 1] if number + 1 < len(lines) else ""
        killed = failed["code"] in _KILLED_CODES or was_killed("\n".join(said))
        found.append(FailedCommand(failed["made"], command, tuple(said), killed))
    return found


def of_failure(line: str, *, begun: bool) -> bool:
    """Whether a line of ninja's is about a command that failed; `begun` says whether the line before it was."""
    goes_on = begun and read_progress(line) is None and not line.startswith("ninja: ")
    return goes_on or _FAILED.fullmatch(line) is not None


def was_killed(said: str) -> bool:
    """Whether a compiler says that it, or a part of it, had no memory."""
    return _KILLED.search(said) is not None


def _too_big(made: str) -> BuildFailedError:
    hint = "build on a machine with more memory, or compile less at once: fewer archs (--arch), a source that is split"
    message = f"compiling {made} was killed for want of memory, alone as well"
    return BuildFailedError(f"{message}; this machine has {memory() / 2**30:.1f} GiB for a build", hint=hint)
