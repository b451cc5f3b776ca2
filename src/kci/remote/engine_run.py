"""Drives a run on engines: submits, watches, fetches, checks, merges, tests; and goes on after any end of the client.

Nothing is kept in memory that the journal does not have. What an engine hands back is held against the same rules as
the artifacts of a stranger, one by one, so that one bad artifact costs one leg.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kci.config.engine_settings import EngineKind
from kci.errors import BuildFailedError, ClientError, FindingsError, KciError, UnfinishedBuildError, UnsafeError
from kci.files.full_disk import says_full, writing
from kci.files.lock import locked
from kci.plurals import count
from kci.remote.engine_choice import at_once
from kci.remote.engine_plan import EngineLeg, EngineRun, Given
from kci.remote.job import HardwareNeed, JobState, JobStatus, fetch_into
from kci.remote.leg_results import require_built, require_passed
from kci.remote.leg_sources import pack_variants
from kci.remote.protocol import Batch, Engine, EngineAwayError, EngineHome, Handles, open_engine
from kci.remote.run_state import (
    OPEN,
    Away,
    Journal,
    LegPhase,
    LegProgress,
    Placement,
    RunEvent,
    RunState,
    why_move,
)
from kci.run.local import TreeResult

_LONGEST_PAUSE = 60.0
_BATCH = 500
"""How many jobs are submitted together; Slurm's default for an array is 1001 at most."""

Changed = Callable[[EngineLeg, LegProgress, str], None]
"""Told of a leg that changed, with a note for people."""


class Driver(RunState):
    """One client's hold on a run. Make it with `driving`."""

    def __init__(
        self, folder: Path, run: EngineRun, journal: Journal, changed: Changed, log: Callable[[str], None]
    ) -> None:
        super().__init__(folder, run, journal)
        self.changed, self.log = changed, log
        self.engines: dict[str, Engine] = {}
        self.away: dict[str, Away] = {}
        self.notes: dict[str, str] = {}
        self.doubts: set[str] = set()
        """Jobs that were lost when they were last asked about; a result may be on its way."""
        self.running: set[str] = set()
        """Jobs that ran when they were last asked about."""
        self.stuck: dict[str, KciError] = {}
        """Jobs that this client can do no more for now, and why; nothing follows about their legs."""
        self.earlier = {self.job_name(leg) for leg in journal.of(LegPhase.SUBMITTING, LegPhase.SUBMITTED)}
        """Jobs of an earlier client of this run."""
        self.pending: dict[str, float] = {}
        """Since when legs have been seen to wait."""

    def engine(self, name: str) -> Engine:
        """An engine, opened when it is first needed."""
        if name not in self.engines:
            self.engines[name] = open_engine(self.run.engines[name], EngineHome(self.run.id, self.folder))
        return self.engines[name]

    def pause(self, name: str) -> float:
        wanted = self.run.engines[name].poll_seconds
        return self.engine(name).pause if wanted is None else max(0.05, wanted)

    def drive(self) -> None:
        """Go on until every leg that can begin has come to its end.

        Raises:
            KeyboardInterrupt: the user stopped it; legs that run go on.
            ClientError: this machine could not take what a leg handed back; the other legs have ended.
            KciError: an engine cannot be used. The run can be resumed.
        """
        for name in sorted(self._concerned()):
            self.engine(name)  # what is missing is known before anything is submitted
        while self._going():
            now = time.monotonic()
            for leg in self._going():
                # What waits for others of this run does not wait for its engine.
                self.pending[leg] = now if self.open_parts(leg) else self.pending.get(leg, now)
            concerned = self._concerned()
            for name in concerned:
                self._ask(name)
            if self._going():
                time.sleep(min(map(self.pause, concerned)))
        for name in {self.place(leg, at).engine for leg, at in self.behind()}:
            try:
                self._turn(name)
            except KciError as error:
                self.log(f"{name} may still run jobs that this run no longer needs: {error.message}")
        if self.stuck:
            first = next(iter(self.stuck.values()))
            what = f"{count(len(self.stuck), 'leg')} neither built nor failed: this machine could not go on with them"
            raise ClientError(f"{what}\n{first.message}", hint=first.hint)

    def release_tests(self, trees: Sequence[TreeResult]) -> None:
        """Have the legs begin that test what was merged."""
        by_kernel = {tree.kernel: tree for tree in trees}
        for leg in self.journal.of(LegPhase.HELD):
            job = self.legs[leg].job
            tree = by_kernel.get(job.kernel)
            there = {entry.variant for entry in tree.manifest.present} if tree else set()
            names = tuple(name for name in job.variants if name in there)
            if tree is None or not names:
                self.fail(leg, FindingsError(f"nothing to test: none of {', '.join(job.variants)} is in the tree"))
            else:
                packed = pack_variants(tree.tree, names, self.folder / "inputs")
                self.note(RunEvent.READY, [leg], given=Given(packed, names))

    def cancel(self) -> None:
        for name in self.run.engines:
            handles = {job: at.handle for job, (_, at) in self.here(name).items() if at.handle}
            try:
                if handles:
                    self.engine(name).cancel(handles)
            except EngineAwayError as error:
                self.log(f"{name} is away, and its legs may go on: {error.message}")
        for leg in self.journal.of(LegPhase.HELD, *OPEN):
            self.note(RunEvent.CANCELLED, [leg], reason="the user cancelled the run")

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        self.journal.close()

    def _going(self) -> list[str]:
        """The legs that have not ended, and for which this client can still do something."""
        stuck = {leg for leg in self.legs if self.job_name(leg) in self.stuck}
        return [leg for leg in self.journal.of(*OPEN) if stuck.isdisjoint([leg, *self.open_parts(leg)])]

    def _concerned(self) -> list[str]:
        """The engines that have something to do, or could take something over."""
        names = [self.place(leg).engine for leg in self.journal.of(*OPEN)]
        names += [item.engine for leg in self.journal.of(*OPEN) if (item := self.legs[leg].fallback)]
        names += [self.place(leg, at).engine for leg, at in self.behind()]
        return list(dict.fromkeys(names))

    def _ask(self, name: str) -> None:
        """One round with one engine, unless it is away and was asked just now."""
        before = self.away.get(name)
        if before is not None and time.monotonic() < before.again:
            return
        try:
            self._turn(name)
            self.away.pop(name, None)
        except EngineAwayError as error:
            now = time.monotonic()
            pause = min(_LONGEST_PAUSE, 2 * (before.pause if before else self.pause(name)))
            self.away[name] = Away(before.since if before else now, now + pause, pause)
            self.log(f"{name} is away, asked again in {pause:.0f} s: {error.message}")

    def _turn(self, name: str) -> None:
        self._settle(name)
        self._submit(name)
        here = self.here(name)
        handles = {job: at.handle for job, (_, at) in here.items() if at.handle and job not in self.stuck}
        for job, status in self.engine(name).poll(handles).items() if handles else ():
            leg, at = here[job]
            if at is not self.journal.legs[leg].now and at not in self.journal.legs[leg].behind:
                continue  # it was called back in this round
            if at is not self.journal.legs[leg].now:
                self._see_behind(name, leg, at, status)
            elif status.state is JobState.ENDED:
                self._fetch(name, leg, at)
            elif status.state is JobState.LOST:
                self._lost(name, leg, job, handles[job], status.reason)
            elif status.state is JobState.STOPPED:
                self.fail(leg, BuildFailedError(status.reason))
            else:
                self.doubts.discard(job)
                if status.state is JobState.RUNNING:
                    self.running.add(job)
                    self.pending.pop(leg, None)
                else:
                    self.running.discard(job)
                self._say(leg, f"{status.state} {status.reason}".strip())

    def _settle(self, name: str) -> None:
        """Find out what became of batches whose submission was interrupted."""
        batches: dict[str, list[str]] = {}
        for leg in self.mine(name, LegPhase.SUBMITTING):
            batches.setdefault(self.journal.legs[leg].now.batch, []).append(leg)
        for batch, legs in batches.items():
            found = self._find(name, batch)
            there = [leg for leg in legs if self.job_name(leg) in found]
            if there:
                handles = tuple(found[self.job_name(leg)] for leg in there)
                self.note(RunEvent.SUBMITTED, there, handles=handles, reason="found after an interruption")
            missing = [leg for leg in legs if leg not in there]
            if missing:
                self.note(RunEvent.NOT_SUBMITTED, missing)
        for leg, at in self.behind(name):
            if not at.handle:
                at.handle = self._find(name, at.batch).get(self.job_name(leg, at), "")
            if not at.handle:
                self._leave(leg, at, "it was never submitted there")

    def _find(self, name: str, batch: str) -> Handles:
        jobs = tuple(self.job(leg, at) for leg, at in self.journal.in_batch[batch])
        return self.engine(name).find(Batch(batch, jobs))

    def _submit(self, name: str) -> None:
        """Submit what waits, as far as there are room and money; then what has waited for another engine too long."""
        room = min(at_once(self.run.engines[name]) - len(self.here(name)), _BATCH)
        legs: list[str] = []
        going, chains = set(self._going()), self.engine(name).chains
        waiting = [leg for leg in self.mine(name, LegPhase.WAITING) if leg in going]
        waiting = [leg for leg in waiting if self.may_begin(leg, name, chains)]
        for leg in waiting[: max(0, room)]:
            if self.too_dear([*legs, leg]):
                self.fail(leg, FindingsError("starting it again would cost more than --max-cost"))
            else:
                legs.append(leg)
        legs += self._take_over(name, legs, room - len(legs))
        alike: dict[tuple[str, HardwareNeed, tuple[str, ...]], list[str]] = {}
        for leg in legs:
            job, given = self.place(leg).job, self.what_it_gets(leg)
            if given != self.journal.legs[leg].given:
                self.note(RunEvent.READY, [leg], given=given)
            alike.setdefault((job.image, job.hardware, given.near), []).append(leg)
        for same in alike.values():
            self._submit_batch(name, same)

    def _take_over(self, name: str, legs: Sequence[str], room: int) -> list[str]:
        """Move legs here, as far as there is room, that have waited too long for their own engine."""
        taken: list[str] = []
        for leg in self.journal.of(*OPEN) if room > 0 else ():
            other = self.legs[leg].fallback
            if other is None or other.engine != name or self.journal.legs[leg].moved or len(taken) == room:
                continue
            if self.open_parts(leg):
                continue
            planned, now = self.legs[leg], time.monotonic()
            away = self.away.get(planned.engine)
            why = why_move(
                planned,
                self.journal.legs[leg],
                self.run.engines[planned.engine].fallback_minutes * 60,
                pending=now - self.pending.get(leg, now),
                running=self.job_name(leg) in self.running,
                away=now - away.since if away else 0.0,
            )
            if why and self.too_dear([*legs, *taken], moved=leg):
                self._say(leg, f"{why}; moving it to {name} would cost more than --max-cost")
            elif why:
                self.note(RunEvent.MOVED, [leg], engine=name, reason=why)
                self.pending[leg] = time.monotonic()
                taken.append(leg)
        return taken

    def _submit_batch(self, name: str, legs: Sequence[str]) -> None:
        batch = f"kci-{self.run.id}-b{len(self.journal.in_batch) + 1}"
        jobs = tuple(self.job(leg) for leg in legs)
        # All of a batch wait for the same.
        after = tuple(self.journal.legs[part].now.handle for part in self.open_parts(legs[0]))
        self.note(RunEvent.SUBMITTING, legs, batch=batch)
        try:
            handles = self.engine(name).submit(Batch(batch, jobs, after))
        except (EngineAwayError, UnsafeError, ClientError):
            raise
        except KciError as error:
            for leg in legs:
                self.fail(leg, error)
            return
        self.note(RunEvent.SUBMITTED, legs, handles=tuple(handles[job.name] for job in jobs))

    def _lost(self, name: str, leg: str, job: str, handle: str, reason: str) -> None:
        """Start a leg again that its engine has lost, once it is sure that it is, and while it may."""
        self.running.discard(job)
        if job not in self.doubts:
            self.doubts.add(job)
            return
        times = count(self.journal.legs[leg].restarts + 1, "time")
        self.engine(name).cancel({job: handle})
        self._restart(leg, BuildFailedError(f"lost {times}, the last time because {reason}"), reason)

    def _restart(self, leg: str, error: KciError, reason: str) -> None:
        """Start a leg again, or fail with this error where it may not be."""
        if self.journal.legs[leg].restarts >= self.run.engines[self.place(leg).engine].restarts or self.linked(leg):
            self.fail(leg, error)
        else:
            self._again(leg, RunEvent.RESTART, reason=reason)

    def _again(self, leg: str, event: RunEvent, **details: Any) -> None:
        """Have a leg wait for its next attempt, and with it those that wait for this one on their engine."""
        was = self.job_name(leg)
        self.note(event, [leg], **details)
        for other in self.links(leg):
            now = self.journal.legs[other]
            if now.phase is LegPhase.SUBMITTED and was in now.given.near:
                self.engine(self.place(other).engine).cancel({self.job_name(other): now.now.handle})
                self.note(RunEvent.CALLED_BACK, [other], reason=f"{leg} is started again")

    def _see_behind(self, name: str, leg: str, at: Placement, status: JobStatus) -> None:
        """Look at what a leg that moved had before: the first good result is the leg's, and the other attempt ends."""
        over = self.journal.legs[leg].phase not in OPEN
        if status.state is JobState.ENDED and not over:
            self._fetch(name, leg, at)
            return
        if status.state is JobState.RUNNING and not over:
            return
        if status.state not in (JobState.ENDED, JobState.STOPPED):
            self.engine(name).cancel({self.job_name(leg, at): at.handle})
        was = f"it was {status.state} there {status.reason}".strip()
        why = "the leg has come to its end elsewhere" if over else was
        self._leave(leg, at, why)

    def _leave(self, leg: str, at: Placement, why: str) -> None:
        name = self.place(leg, at).engine
        self.note(RunEvent.LEFT_BEHIND, [leg], attempt=at.attempt, reason=f"attempt {at.attempt} on {name}: {why}")

    def _fetch(self, name: str, leg: str, at: Placement) -> None:
        job, engine = self.job(leg, at), self.engine(name)
        place = self.folder / "fetched" / job.name
        behind = at is not self.journal.legs[leg].now
        try:
            with writing(place):
                fetched = fetch_into(place, job, lambda file: engine.read(job.name, at.handle, file))
                judge = require_passed if self.legs[leg].tests else require_built
                said = judge(job, fetched, self.run)
        except EngineAwayError:
            raise
        except ClientError as error:
            self._get_stuck(leg, job.name, error)
            return
        except KciError as error:
            if self.run.engines[name].type is EngineKind.LOCAL and says_full(error.message) and not behind:
                self.note(RunEvent.RESTART, [leg], reason="the disk of this machine was full")
                if job.name not in self.earlier:  # that one met the disk as it was before somebody resumed the run
                    self._get_stuck(leg, self.job_name(leg), error)
                return
            if behind:  # the other attempt will tell
                self._leave(leg, at, error.message)
            elif not isinstance(error, UnfinishedBuildError):
                self.fail(leg, error)
            elif error.done > self.journal.legs[leg].done.get(error.what, -1) and not self.linked(leg):
                self._again(leg, RunEvent.CONTINUED, done={error.what: error.done}, reason=error.message)
            else:
                self._restart(leg, error, error.message)
            return
        event = RunEvent.PASSED if self.legs[leg].tests else RunEvent.BUILT
        number = at.attempt if behind else 0
        self.note(event, [leg], seconds=fetched.result.seconds, attempt=number, reason=said)

    def _get_stuck(self, leg: str, job: str, error: KciError) -> None:
        """Leave a leg as it is until the run is resumed."""
        self.stuck[job] = error
        self._say(leg, error.message)

    def fail(self, leg: str, error: KciError) -> None:
        self.note(RunEvent.FAILED, [leg], reason=error.message, exit_code=error.exit_code)

    def note(self, event: RunEvent, legs: Sequence[str], **details: Any) -> None:
        """Write down what happened to legs, and tell of it."""
        self.journal.note(event, legs, **details)
        for leg in legs:
            self.notes.pop(leg, None)
            self.changed(self.place(leg), self.journal.legs[leg], details.get("reason", ""))

    def _say(self, leg: str, note: str) -> None:
        if self.notes.get(leg) != note:
            self.notes[leg] = note
            self.changed(self.place(leg), self.journal.legs[leg], note)


@contextmanager
def driving(folder: Path, run: EngineRun, changed: Changed, log: Callable[[str], None]) -> Iterator[Driver]:
    """Take hold of a run; another client of the same run waits.

    Raises:
        FindingsError: the journal cannot be read.
    """
    with locked(folder, log):
        held = [leg.name for leg in run.legs if leg.tests]
        driver = Driver(folder, run, Journal(folder, [leg.name for leg in run.legs], held), changed, log)
        if driver.journal.torn:
            log(f"the last line of {driver.journal.path} was cut off; this goes on from the line before it")
        try:
            yield driver
        finally:
            driver.close()
