"""Running ninja: what was killed for want of memory is compiled again alone, and what has no time left is ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kci.errors import BuildFailedError
from kci.processes.job_budget import read_progress
from kci.processes.machine import memory
from kci.processes.memory_gate import Need
from kci.processes.process import Finished, Log, guarded
from kci.processes.running_commands import EndedCommand, RunningCommands

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
    needs: Mapping[str, Need]
    """What each object is expected to take, by output. An output that is not here is none, such as a link."""
    lock: int | None = None
    ends_at: float | None = None
    """When to end it (`time.monotonic`); None for never."""


def ending(minutes: float | None) -> float | None:
    """When a build ends that may take so long from now on (`time.monotonic`)."""
    return None if minutes is None else time.monotonic() + 60 * minutes


def run_ninja(run: NinjaRun, log: Log, ended: Callable[[EndedCommand], None]) -> Finished | None:
    """Run ninja until all is made or a command has failed; `ended` takes each object that was made.

    None where the time was over: what would not have been done by then was not begun (on Linux), and what still ran
    was ended.

    Raises:
        BuildFailedError: an object was killed for want of memory, and again when it was compiled alone.
    """
    needs, queue = dict(run.needs), list[str]()
    while True:
        alone = queue.pop(0) if queue else ""
        command, environment = run.command, dict(run.environment)
        if alone:
            command = [*run.command, "-j1", alone]
            environment.pop("MAKEFLAGS", None)  # it needs no more than the one token that this build has
        with RunningCommands(run.work, needs, ended, log) as running:
            running.end_at(run.ends_at)
            done = guarded(command, log, env=environment, lock=run.lock, started=running.follow)
        killed = [item.made for item in failed_commands(done.output) if item.killed and item.made in needs]
        if running.stopped:
            return None
        for made in killed:
            had, need = running.peak(made) or 0, needs[made]
            if need.alone:
                raise _too_big(need.what or made, had)
            log(f"{need.what or made} was killed for want of memory{_at(had)}: it is compiled again, alone")
            needs[made] = msgspec.structs.replace(need, memory=max(had, need.memory), measured=True, alone=True)
            queue.append(made)
        if not killed and (done.code != 0 or not alone):
            return done


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


def _at(peak: int) -> str:
    return f" at {peak / 2**30:.1f} GiB" if peak else ""


def _too_big(made: str, peak: int) -> BuildFailedError:
    hint = "build on a machine with more memory, or compile less at once: fewer archs (--arch), a source that is split"
    message = f"compiling {made} was killed for want of memory{_at(peak)}, alone as well"
    return BuildFailedError(f"{message}; this machine has {memory() / 2**30:.1f} GiB for a build", hint=hint)
