"""What a run on engines has done so far, where its legs are, what they cost, and when one moves to its fallback.

The journal is JSON lines in a file that only grows, each on the disk before the next step. Before a batch is submitted
it says that it will be, and afterwards what the engine calls its jobs. A client that is killed in between leaves the
first line only; whoever resumes the run then asks the engine.
"""

from __future__ import annotations

import enum
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import ClientError, FindingsError
from kci.files.bounded_json import MAX_BYTES, decode_json, read_bounded
from kci.files.full_disk import write_all, writing
from kci.remote.engine_plan import EngineLeg, EngineRun, Given
from kci.remote.job import EngineJob, JobFile, add_input

JOURNAL_FILE = "journal.jsonl"


class RunEvent(enum.StrEnum):
    """What happened."""

    SUBMITTING = "submitting"
    """A batch is about to be submitted."""
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not-submitted"
    """The engine was asked and does not have them."""
    RESTART = "restart"
    """The engine lost an attempt; the leg waits for the next one."""
    CONTINUED = "continued"
    """An attempt ended itself before it was done and had done more than those before; the next one goes on."""
    CALLED_BACK = "called-back"
    """What the leg waited for on its engine is started again, so it waits for that."""
    MOVED = "moved"
    """The leg has waited too long; another engine has it now. What was submitted before may still come to an end."""
    LEFT_BEHIND = "left-behind"
    """What a leg that moved had on its first engine is over, and does not count."""
    READY = "ready"
    BUILT = "built"
    PASSED = "passed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MERGED = "merged"


class JournalLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    event: RunEvent
    at: float
    legs: tuple[str, ...] = ()
    batch: str = ""
    handles: tuple[str, ...] = ()
    """What the engine calls the job of each leg."""
    reason: str = ""
    seconds: float = 0.0
    exit_code: int = 0
    engine: str = ""
    attempt: int = 0
    """Which one it is about, where that is not the leg's latest."""
    given: Given = Given()
    done: dict[str, int] = {}
    """How many objects of a variant are done."""


class LegPhase(enum.StrEnum):
    """Where a leg is."""

    HELD = "needs a tree"
    WAITING = "waiting"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    BUILT = "built"
    PASSED = "passed"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (LegPhase.WAITING, LegPhase.SUBMITTING, LegPhase.SUBMITTED)
"""The phases in which there is something to do."""
_PHASES = {
    RunEvent.SUBMITTING: LegPhase.SUBMITTING,
    RunEvent.SUBMITTED: LegPhase.SUBMITTED,
    RunEvent.NOT_SUBMITTED: LegPhase.WAITING,
    RunEvent.RESTART: LegPhase.WAITING,
    RunEvent.CONTINUED: LegPhase.WAITING,
    RunEvent.CALLED_BACK: LegPhase.WAITING,
    RunEvent.MOVED: LegPhase.WAITING,
    RunEvent.READY: LegPhase.WAITING,
    RunEvent.BUILT: LegPhase.BUILT,
    RunEvent.PASSED: LegPhase.PASSED,
    RunEvent.FAILED: LegPhase.FAILED,
    RunEvent.CANCELLED: LegPhase.CANCELLED,
}


class Placement(msgspec.Struct):
    """One attempt at a leg, and where it is."""

    attempt: int = 1
    engine: str = ""
    """Empty for the one that was planned."""
    batch: str = ""
    handle: str = ""


class LegProgress(msgspec.Struct):
    """One leg, as far as it has come."""

    phase: LegPhase = LegPhase.WAITING
    now: Placement = msgspec.field(default_factory=Placement)
    """The attempt that counts: the latest, and at the end the one whose result was taken."""
    behind: list[Placement] = []
    """Attempts on an engine that the leg has moved away from; whichever result comes first is taken."""
    attempts: int = 1
    restarts: int = 0
    last: JournalLine = JournalLine(RunEvent.NOT_SUBMITTED, 0.0)
    """What brought it into this phase."""
    submitted: dict[str, int] = {}
    """How often, by engine."""
    given: Given = Given()
    done: dict[str, int] = {}

    @property
    def moved(self) -> bool:
        return bool(self.now.engine or self.behind)

    def count(self, change: int) -> None:
        self.submitted[self.now.engine] = self.submitted.get(self.now.engine, 0) + change

    def again(self, engine: str) -> None:
        self.attempts += 1
        self.now = Placement(self.attempts, engine)


class Journal:
    """The journal of one run; its lock must be held."""

    def __init__(self, folder: Path, legs: Iterable[str], held: Iterable[str] = ()) -> None:
        """Read the journal of the legs with these names, and go on behind it; those that are `held` begin later.

        Raises:
            FindingsError: a line is not of a journal. An unfinished last line is left out, and `torn` says so.
            ClientError: the file cannot be read or written.
        """
        self.path = folder / JOURNAL_FILE
        self.legs = {name: LegProgress() for name in legs}
        for name in held:
            self.legs[name].phase = LegPhase.HELD
        self.in_batch: dict[str, tuple[tuple[str, Placement], ...]] = {}
        """By batch the legs and their attempts then, in the order in which they were submitted."""
        data = self._read()
        self._end = data.rfind(b"\n") + 1
        self.torn = self._end < len(data)
        """Whether the last line has no end: it was being written when the client was killed, or its disk was full."""
        for number, line in enumerate(data[: self._end].splitlines(), 1):
            try:
                self._take(decode_json(line, JournalLine))
            except (ValueError, LookupError) as error:
                raise FindingsError(f"{self.path}:{number} is not a line of this journal: {error}") from error
        with writing(self.path):
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            self._cut()

    def note(self, event: RunEvent, legs: Sequence[str], **details: Any) -> None:
        """Write down what happened, or is about to: whole and on the disk, or not at all. See `JournalLine`.

        Raises:
            ClientError: it cannot be written.
        """
        line = JournalLine(event, round(time.time(), 3), tuple(legs), **details)
        data = msgspec.json.encode(line) + b"\n"
        with writing(self.path):
            try:
                write_all(self._handle, data)
                os.fsync(self._handle)
            except OSError:
                self._cut()
                raise
        self._end += len(data)
        self._take(line)

    def of(self, *phases: LegPhase) -> list[str]:
        """The legs that are in these phases, in the order of the run."""
        return [name for name, leg in self.legs.items() if leg.phase in phases]

    def close(self) -> None:
        os.close(self._handle)

    def _read(self) -> bytes:
        try:
            return read_bounded(self.path, MAX_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ClientError(f"cannot read {self.path}: {error.strerror}") from error
        except ValueError as error:
            raise FindingsError(f"{self.path} is not the journal of a run: {error}") from error

    def _cut(self) -> None:
        os.ftruncate(self._handle, self._end)
        os.lseek(self._handle, 0, os.SEEK_END)

    def _take(self, line: JournalLine) -> None:
        for number, name in enumerate(line.legs):
            leg = self.legs[name]
            self._change(leg, line, number)
            if line.event in _PHASES:
                leg.phase, leg.last = _PHASES[line.event], line
        if line.event is RunEvent.SUBMITTING:
            self.in_batch[line.batch] = tuple((name, self.legs[name].now) for name in line.legs)

    def _change(self, leg: LegProgress, line: JournalLine, number: int) -> None:
        match line.event:
            case RunEvent.SUBMITTING:
                leg.now.batch = line.batch
                leg.count(+1)
            case RunEvent.SUBMITTED:
                leg.now.handle = line.handles[number]
            case RunEvent.NOT_SUBMITTED:
                leg.now.batch = ""
                leg.count(-1)
            case RunEvent.RESTART:
                leg.restarts += 1
                leg.again(leg.now.engine)
            case RunEvent.CONTINUED | RunEvent.CALLED_BACK:
                leg.done = leg.done | line.done
                leg.again(leg.now.engine)
            case RunEvent.MOVED:
                leg.behind += [leg.now] if leg.now.batch else []
                leg.again(line.engine)
            case RunEvent.LEFT_BEHIND:
                leg.behind = [item for item in leg.behind if item.attempt != line.attempt]
            case RunEvent.READY:
                leg.given = line.given
            case RunEvent.BUILT | RunEvent.PASSED if line.attempt not in (0, leg.now.attempt):
                (taken,) = (item for item in leg.behind if item.attempt == line.attempt)
                leg.behind = [item for item in leg.behind if item is not taken]
                leg.behind += [leg.now] if leg.now.batch else []
                leg.now = taken
            case _:
                pass


class Away(msgspec.Struct, frozen=True):
    """An engine that cannot be reached."""

    since: float
    again: float
    """When it is asked again."""
    pause: float


class RunState:
    """What was planned, and what the journal knows of it; an attempt that is not named is the latest of its leg."""

    def __init__(self, folder: Path, run: EngineRun, journal: Journal) -> None:
        self.folder, self.run, self.journal = folder, run, journal
        self.legs = {leg.name: leg for leg in run.legs}

    def place(self, leg: str, at: Placement | None = None) -> EngineLeg:
        return self.legs[leg].on((at or self.journal.legs[leg].now).engine)

    def job_name(self, leg: str, at: Placement | None = None) -> str:
        return self.legs[leg].job_name((at or self.journal.legs[leg].now).attempt)

    def job(self, leg: str, at: Placement | None = None) -> EngineJob:
        progress = self.journal.legs[leg]
        return self.place(leg, at).attempt((at or progress.now).attempt, progress.given)

    def mine(self, engine: str, *phases: LegPhase) -> list[str]:
        return [leg for leg in self.journal.of(*phases) if self.place(leg).engine == engine]

    def behind(self, engine: str = "") -> list[tuple[str, Placement]]:
        """The attempts, on one engine or any, that their legs have moved away from."""
        found = [(leg, at) for leg, progress in self.journal.legs.items() for at in progress.behind]
        return [(leg, at) for leg, at in found if engine in ("", self.place(leg, at).engine)]

    def here(self, engine: str) -> dict[str, tuple[str, Placement]]:
        """The attempts that an engine has, by the name of their job: those that count, and those that were left."""
        now = [(leg, self.journal.legs[leg].now) for leg in self.mine(engine, LegPhase.SUBMITTED)]
        return {self.job_name(leg, at): (leg, at) for leg, at in [*now, *self.behind(engine)]}

    def open_parts(self, leg: str) -> list[str]:
        """The legs that have not ended and whose objects a leg takes."""
        return [name for name in self.legs[leg].takes if self.journal.legs[name].phase in OPEN]

    def may_begin(self, leg: str, engine: str, chains: bool) -> bool:
        """Whether what a leg takes has ended, or has been submitted to an engine where it can wait for it."""
        going = self.open_parts(leg)
        return not going or (chains and set(going) <= set(self.mine(engine, LegPhase.SUBMITTED)))

    def links(self, part: str) -> list[str]:
        """The legs that take a leg's objects."""
        return [leg.name for leg in self.run.legs if part in leg.takes]

    def linked(self, part: str) -> bool:
        """Whether nothing needs a leg's objects any more, because all that take them are built."""
        found = self.links(part)
        return bool(found) and all(self.journal.legs[leg].phase is LegPhase.BUILT for leg in found)

    def what_it_gets(self, leg: str) -> Given:
        """What a leg is given now: one that builds what its parts have handed back, and its own earlier attempts.

        Of parts that go on, it is to find the packs where it runs.
        """
        if self.legs[leg].tests:
            return self.journal.legs[leg].given
        going = self.open_parts(leg)
        packs = [*map(self._pack, dict.fromkeys([leg, *self.legs[leg].takes]))]
        return Given(objects=tuple(filter(None, packs)), near=tuple(map(self.job_name, going)))

    def _pack(self, leg: str) -> JobFile | None:
        """The latest pack of a leg that was fetched, where jobs find their inputs."""
        pack, inputs = self.place(leg).job.pack, self.folder / "inputs"
        for number in range(self.journal.legs[leg].now.attempt, 0, -1) if pack else ():
            path = self.folder / "fetched" / self.legs[leg].job_name(number) / pack
            if path.is_file():
                with path.open("rb") as file, writing(inputs):
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    add_input(inputs, path, digest)
                # An input that is called .tar would be unpacked.
                return JobFile(f"{pack}.pack", digest, path.stat().st_size)
        return None

    def too_dear(self, legs: Sequence[str], moved: str = "") -> bool:
        """Whether these submissions, and one more that moves, would bring the run above its limit.

        Each costs the plan's minutes at the price of its engine, a restart as well.
        """
        if self.run.max_cost is None:
            return False
        spent = 0.0
        for name, leg in self.legs.items():
            progress = self.journal.legs[name]
            counts = dict(progress.submitted)
            where = progress.now.engine
            counts[where] = counts.get(where, 0) + (name in legs)
            if name == moved and leg.fallback is not None:
                counts[leg.fallback.engine] = 1
            spent += sum(
                (leg.on(engine).rate or 0.0) * leg.on(engine).minutes * times for engine, times in counts.items()
            )
        return spent > self.run.max_cost * (1 + 1e-9)


def why_move(leg: EngineLeg, progress: LegProgress, limit: float, *, pending: float, running: bool, away: float) -> str:
    """Why a leg should go to the fallback as soon as that has room for it; empty if it should stay.

    A leg that runs stays, also where its engine cannot be reached, until it must have come to its end there: what it
    has done so far would be lost. A leg moves once.

    Args:
        leg: what was planned.
        progress: how far it has come.
        limit: how many seconds are too many.
        pending: the seconds that it has waited, to be submitted or in the engine's queue.
        running: what its engine said last.
        away: the seconds since its engine answered; 0 if it answers.
    """
    if leg.fallback is None or progress.moved or progress.phase not in OPEN:
        return ""
    longest = limit + (leg.job.timeout * 60 if running else 0)
    if away and away >= longest:
        return f"{leg.engine} cannot be reached for {away / 60:.0f} min"
    if not running and pending >= limit:
        return f"it has waited for {leg.engine} for {pending / 60:.0f} min"
    return ""
