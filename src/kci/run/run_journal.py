"""What a run on engines has done so far: JSON lines in a file that only grows, each on the disk before the next step.

Before a batch is submitted the journal says that it will be, and afterwards what the engine calls its jobs. A client
that is killed in between leaves the first line only; whoever resumes the run then asks the engine.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kci.errors import FindingsError
from kci.files.bounded_json import MAX_BYTES, decode_json, read_bounded

JOURNAL_FILE = "journal.jsonl"


class RunEvent(enum.StrEnum):
    """What happened."""

    SUBMITTING = "submitting"
    """A batch is about to be submitted."""
    SUBMITTED = "submitted"
    """The engine has these jobs."""
    NOT_SUBMITTED = "not-submitted"
    """The engine was asked and does not have them."""
    RESTART = "restart"
    """The engine lost an attempt; the leg waits for the next one."""
    BUILT = "built"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MERGED = "merged"


class JournalLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    event: RunEvent
    at: float
    """Seconds since 1970."""
    legs: tuple[str, ...] = ()
    batch: str = ""
    handles: tuple[str, ...] = ()
    """What the engine calls the job of each leg."""
    reason: str = ""
    seconds: float = 0.0
    exit_code: int = 0


class LegPhase(enum.StrEnum):
    """Where a leg is, as the journal knows it."""

    WAITING = "waiting"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    BUILT = "built"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = (LegPhase.BUILT, LegPhase.FAILED, LegPhase.CANCELLED)
_PHASES = {
    RunEvent.SUBMITTING: LegPhase.SUBMITTING,
    RunEvent.SUBMITTED: LegPhase.SUBMITTED,
    RunEvent.NOT_SUBMITTED: LegPhase.WAITING,
    RunEvent.RESTART: LegPhase.WAITING,
    RunEvent.BUILT: LegPhase.BUILT,
    RunEvent.FAILED: LegPhase.FAILED,
    RunEvent.CANCELLED: LegPhase.CANCELLED,
}


class LegProgress(msgspec.Struct):
    """One leg, as far as it has come."""

    phase: LegPhase = LegPhase.WAITING
    attempt: int = 1
    batch: str = ""
    handle: str = ""
    reason: str = ""
    seconds: float = 0.0
    exit_code: int = 0
    since: float = 0.0
    """When it came into this phase."""
    submissions: int = 0


class Journal:
    """The journal of one run; its lock must be held."""

    def __init__(self, folder: Path, legs: Iterable[str]) -> None:
        """Read what there is, and go on behind it.

        Raises:
            FindingsError: a line other than the last cannot be read.
        """
        self.path = folder / JOURNAL_FILE
        self.legs = {name: LegProgress() for name in legs}
        self.batches = 0
        """How many were begun."""
        self.in_batch: dict[str, tuple[str, ...]] = {}
        """The legs of each, in the order in which they were submitted."""
        whole = 0
        if self.path.exists():
            data = read_bounded(self.path, MAX_BYTES)
            whole = data.rfind(b"\n") + 1  # a line without its end was being written when the client was killed
            for number, line in enumerate(data[:whole].splitlines(), 1):
                try:
                    self._take(decode_json(line, JournalLine))
                except (ValueError, KeyError) as error:
                    raise FindingsError(f"{self.path}:{number} is not a line of this journal: {error}") from error
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(self._handle, whole)
        os.lseek(self._handle, 0, os.SEEK_END)

    def note(
        self,
        event: RunEvent,
        legs: Sequence[str],
        *,
        batch: str = "",
        handles: Sequence[str] = (),
        reason: str = "",
        seconds: float = 0.0,
        exit_code: int = 0,
    ) -> None:
        """Write down what happened, or is about to."""
        now = round(time.time(), 3)
        line = JournalLine(event, now, tuple(legs), batch, tuple(handles), reason, seconds, exit_code)
        os.write(self._handle, msgspec.json.encode(line) + b"\n")
        os.fsync(self._handle)
        self._take(line)

    def of(self, *phases: LegPhase) -> list[str]:
        """The legs that are in these phases, in the order of the run."""
        return [name for name, leg in self.legs.items() if leg.phase in phases]

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _take(self, line: JournalLine) -> None:
        """Bring the legs up to date with a line."""
        if line.event is RunEvent.SUBMITTING:
            self.batches += 1
            self.in_batch[line.batch] = line.legs
        if line.event not in _PHASES:
            return
        for number, name in enumerate(line.legs):
            leg = self.legs[name]
            leg.phase, leg.reason, leg.since = _PHASES[line.event], line.reason, line.at
            if line.event is RunEvent.SUBMITTING:
                leg.batch = line.batch
                leg.submissions += 1
            elif line.event is RunEvent.SUBMITTED:
                leg.handle = line.handles[number]
            elif line.event is RunEvent.NOT_SUBMITTED:
                leg.submissions -= 1
            elif line.event is RunEvent.RESTART:
                leg.attempt += 1
                leg.handle = ""
            leg.seconds, leg.exit_code = line.seconds, line.exit_code
