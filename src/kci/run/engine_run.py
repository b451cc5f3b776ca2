"""Drives a run on engines: submits, watches, fetches, checks, merges; and goes on after any end of the client.

Nothing is kept in memory that the journal does not have. What an engine hands back is held against the same rules as
the artifacts of a stranger, one by one, so that one bad artifact costs one leg.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kci.engines.job import EngineJob, JobState
from kci.engines.job_folder import Fetched, fetch_into, log_tail
from kci.engines.protocol import Batch, Engine, EngineAwayError, EngineHome, open_engine
from kci.errors import BuildFailedError, FindingsError, KciError, UnsafeError
from kci.files.lock import locked
from kci.plurals import count
from kci.run.engine_plan import EngineLeg, EngineRun, at_once
from kci.run.local import TreeResult
from kci.run.run_journal import FINAL, Journal, LegPhase, LegProgress, RunEvent
from kci.tree.artifacts import find_sources
from kci.tree.binding import CiRun, require_bound
from kci.tree.merge import merge
from kci.tree.unpack import unpack_whole
from kci.verify import verify

_LONGEST_PAUSE = 60.0
_BATCH = 500
"""How many jobs are submitted together; Slurm's default for an array is 1001 at most."""

Changed = Callable[[EngineLeg, LegProgress, str], None]
"""Told of a leg that changed, with a note for people."""


class Driver:
    """One client's hold on a run. Make it with `driving`."""

    def __init__(
        self, folder: Path, run: EngineRun, journal: Journal, changed: Changed, log: Callable[[str], None]
    ) -> None:
        self.folder, self.run, self.journal = folder, run, journal
        self.changed, self.log = changed, log
        self.legs = {leg.name: leg for leg in run.legs}
        self.homes = {name: EngineHome(run.id, folder) for name in run.engines}
        self.engines: dict[str, Engine] = {}
        self.away: dict[str, tuple[float, float]] = {}
        """When an engine that is away is asked again, and the pause after that."""
        self.notes: dict[str, str] = {}
        self.doubts: set[str] = set()
        """Jobs that were lost when they were last asked about; a result may be on its way."""

    def engine(self, name: str) -> Engine:
        """An engine, opened when it is first needed."""
        if name not in self.engines:
            self.engines[name] = open_engine(self.run.engines[name], self.homes[name])
        return self.engines[name]

    def pause(self, name: str) -> float:
        """Seconds between two questions to an engine."""
        wanted = self.run.engines[name].poll_seconds
        return self.engine(name).pause if wanted is None else max(0.05, wanted)

    def mine(self, engine: str, *phases: LegPhase) -> list[str]:
        """An engine's legs that are in these phases."""
        return [name for name in self.journal.of(*phases) if self.legs[name].engine == engine]

    def drive(self) -> None:
        """Go on until every leg has come to its end.

        Raises:
            KeyboardInterrupt: the user stopped it; legs that run go on.
            KciError: an engine cannot be used at all. The run can be resumed.
        """
        for name in sorted({self.legs[leg].engine for leg in self._open()}):
            self.engine(name)  # what is missing is known before anything is submitted
        while open_legs := self._open():
            pauses = []
            for name in dict.fromkeys(self.legs[leg].engine for leg in open_legs):
                again, pause = self.away.get(name, (0.0, self.pause(name)))
                if time.monotonic() >= again:
                    try:
                        self._turn(name)
                        self.away.pop(name, None)
                    except EngineAwayError as error:
                        pause = min(_LONGEST_PAUSE, pause * 2)
                        self.away[name] = (time.monotonic() + pause, pause)
                        self.log(f"{name} is away, asked again in {pause:.0f} s: {error.message}")
                pauses.append(self.pause(name))
            if self.journal.of(LegPhase.WAITING, LegPhase.SUBMITTING, LegPhase.SUBMITTED):
                time.sleep(min(pauses))

    def _open(self) -> list[str]:
        return [name for name, leg in self.journal.legs.items() if leg.phase not in FINAL]

    def cancel(self) -> None:
        """Have every leg end that has not ended yet."""
        for name in self.run.engines:
            handles = self._handles(name)
            if handles:
                self.engine(name).cancel(handles)
            for leg in self.mine(name, LegPhase.WAITING, LegPhase.SUBMITTING, LegPhase.SUBMITTED):
                self._note(RunEvent.CANCELLED, [leg], reason="the user cancelled the run")

    def close(self) -> None:
        """Let go of the engines; what runs goes on."""
        for engine in self.engines.values():
            engine.close()
        self.journal.close()

    def _turn(self, name: str) -> None:
        """One round with one engine."""
        self._settle(name)
        self._submit(name)
        handles = self._handles(name)
        legs = {self._job(leg).name: leg for leg in self.mine(name, LegPhase.SUBMITTED)}
        for job, status in self.engine(name).poll(handles).items() if handles else ():
            leg = legs[job]
            if status.state is JobState.ENDED:
                self._fetch(name, leg, handles[job])
            elif status.state is JobState.LOST:
                self._lost(name, leg, job, handles[job], status.reason)
            elif status.state is JobState.STOPPED:
                self._fail(leg, BuildFailedError(status.reason))
            else:
                self.doubts.discard(job)
                self._say(leg, f"{status.state} {status.reason}".strip())

    def _settle(self, name: str) -> None:
        """Find out what became of batches whose submission was interrupted."""
        batches: dict[str, list[str]] = {}
        for leg in self.mine(name, LegPhase.SUBMITTING):
            batches.setdefault(self.journal.legs[leg].batch, []).append(leg)
        for batch, legs in batches.items():
            jobs = {self._job(leg).name: leg for leg in self.journal.in_batch[batch] if leg in self.legs}
            found = self.engine(name).find(Batch(batch, tuple(self._job(leg) for leg in jobs.values())))
            there = [(leg, found[job]) for job, leg in jobs.items() if job in found and leg in legs]
            if there:
                there_legs, handles = zip(*there, strict=True)
                self._note(RunEvent.SUBMITTED, there_legs, handles=handles, reason="found after an interruption")
            missing = [leg for leg in legs if self.journal.legs[leg].phase is LegPhase.SUBMITTING]
            if missing:
                self._note(RunEvent.NOT_SUBMITTED, missing)

    def _submit(self, name: str) -> None:
        """Submit what waits, as far as the engine has room and there is money."""
        room = at_once(self.run.engines[name]) - len(self.mine(name, LegPhase.SUBMITTED))
        legs: list[str] = []
        for leg in self.mine(name, LegPhase.WAITING)[: max(0, min(room, _BATCH))]:
            if self._too_dear([*legs, leg]):
                self._fail(leg, FindingsError("starting it again would cost more than --max-cost"))
            else:
                legs.append(leg)
        by_image: dict[str, list[str]] = {}
        for leg in legs:
            by_image.setdefault(self.legs[leg].job.image, []).append(leg)
        for same in by_image.values():
            self._submit_batch(name, same)

    def _submit_batch(self, name: str, legs: Sequence[str]) -> None:
        batch = f"kci-{self.run.id}-b{self.journal.batches + 1}"
        jobs = tuple(self._job(leg) for leg in legs)
        self._note(RunEvent.SUBMITTING, legs, batch=batch)
        try:
            handles = self.engine(name).submit(Batch(batch, jobs))
        except (EngineAwayError, UnsafeError):
            raise
        except KciError as error:
            for leg in legs:
                self._fail(leg, error)
            return
        self._note(RunEvent.SUBMITTED, legs, handles=[handles[job.name] for job in jobs])

    def _too_dear(self, legs: Sequence[str]) -> bool:
        """Whether submitting these would bring the run above its limit; restarts cost too."""
        if self.run.max_cost is None:
            return False
        count = {name: leg.submissions for name, leg in self.journal.legs.items()}
        for leg in legs:
            count[leg] += 1
        spent = sum((self.legs[leg].rate or 0.0) * self.legs[leg].minutes * times for leg, times in count.items())
        return spent > self.run.max_cost * (1 + 1e-9)

    def _lost(self, name: str, leg: str, job: str, handle: str, reason: str) -> None:
        """Start a leg again that its engine has lost, once it is sure that it is, and while it may."""
        if job not in self.doubts:
            self.doubts.add(job)
            return
        progress = self.journal.legs[leg]
        self.engine(name).cancel({job: handle})
        if progress.attempt > self.run.engines[name].restarts:
            self._fail(leg, BuildFailedError(f"lost {count(progress.attempt, 'time')}, the last time because {reason}"))
        else:
            self._note(RunEvent.RESTART, [leg], reason=reason)

    def _fetch(self, name: str, leg: str, handle: str) -> None:
        """Bring what a leg handed back, and judge it."""
        job = self._job(leg)
        engine = self.engine(name)
        try:
            fetched = fetch_into(
                self.folder / "fetched" / job.name, job, lambda file: engine.read(job.name, handle, file)
            )
            self._require_good(job, fetched)
        except EngineAwayError:
            raise
        except KciError as error:
            self._fail(leg, error)
            return
        self._note(RunEvent.BUILT, [leg], seconds=fetched.result.seconds)

    def _require_good(self, job: EngineJob, fetched: Fetched) -> None:
        """Hold a leg's artifacts against the plan, the run and themselves, as merging will.

        Raises:
            KciError: the leg failed, or handed back something else than what was planned.
        """
        result = fetched.result
        if result.ended != "exit" or result.code != 0:
            ends = {"timeout": f"it took more than {job.timeout} min", "cancelled": "it was cancelled"}
            why = ends.get(result.ended, f"its command ended with code {result.code}")
            raise BuildFailedError(f"{why}; the end of {fetched.log}:\n{log_tail(fetched.log)}")
        lacking = sorted(set(job.artifacts) - {path.name for path in fetched.artifacts})
        if lacking:
            raise FindingsError(f"it ended well and did not hand back {', '.join(lacking)}")
        sources = find_sources(fetched.artifacts)
        require_bound(sources, self.run.planned, CiRun(self.run.id, job.attempt))
        for source in sources:
            with tempfile.TemporaryDirectory(prefix="kci-fetched-") as place:
                unpack_whole(source.path, Path(place))

    def _handles(self, engine: str) -> dict[str, str]:
        return {self._job(leg).name: self.journal.legs[leg].handle for leg in self.mine(engine, LegPhase.SUBMITTED)}

    def _job(self, leg: str) -> EngineJob:
        return self.legs[leg].attempt(self.journal.legs[leg].attempt)

    def _fail(self, leg: str, error: KciError) -> None:
        self._note(RunEvent.FAILED, [leg], reason=error.message, exit_code=error.exit_code)

    def _note(
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
        self.journal.note(
            event, legs, batch=batch, handles=handles, reason=reason, seconds=seconds, exit_code=exit_code
        )
        for leg in legs:
            self.notes.pop(leg, None)
            self.changed(self.legs[leg], self.journal.legs[leg], reason)

    def _say(self, leg: str, note: str) -> None:
        if self.notes.get(leg) != note:
            self.notes[leg] = note
            self.changed(self.legs[leg], self.journal.legs[leg], note)


@contextmanager
def driving(folder: Path, run: EngineRun, changed: Changed, log: Callable[[str], None]) -> Iterator[Driver]:
    """Take hold of a run; another client of the same run waits.

    Args:
        folder: the run's.
        run: what it is.
        changed: told of every change of a leg.
        log: takes lines for people.

    Raises:
        FindingsError: the journal cannot be read.
    """
    with locked(folder, log):
        driver = Driver(folder, run, Journal(folder, [leg.name for leg in run.legs]), changed, log)
        try:
            yield driver
        finally:
            driver.close()


def merge_run(driver: Driver) -> list[TreeResult]:
    """Merge what was built into one tree for each kernel, and verify it.

    Raises:
        KciError: see `merge`.
    """
    run, progress = driver.run, driver.journal.legs
    built: dict[str, list[Path]] = {}
    for leg in run.legs:
        if progress[leg.name].phase is LegPhase.BUILT:
            job = leg.attempt(progress[leg.name].attempt)
            built.setdefault(job.kernel, []).extend(
                driver.folder / "fetched" / job.name / name for name in job.artifacts
            )
    results = []
    for kernel, artifacts in sorted(built.items()):
        tree = Path(run.trees[kernel])
        planned = msgspec.structs.replace(run.planned, kernels={kernel: run.planned.kernels[kernel]})
        (manifest,) = merge(artifacts, tree, planned, allow_partial=True, run=CiRun(run.id))
        # What is missing is said leg by leg.
        findings = tuple(item for item in verify(tree) if item.rule != "KCI721")
        results.append(TreeResult(kernel, tree, manifest, findings))
    if results:
        driver.journal.note(RunEvent.MERGED, ())
    return results
