"""A run of 52 kernels with 30 variants each over four engines, simulated: how far from the shortest possible it ends.

    python benchmarks/engines_simulated.py

What is real: placement, submission, polling, restarts, backing off, moves to a fallback, and the journal with its
flushes; it is kci's own driver. What is not: the engines and the clock. Their queue times, failures and preemptions
are drawn from a seed, and a leg takes what the plan estimates, give or take. Nothing is fetched or
merged. Each figure is the mean of some runs.

The lower bound is what no schedule can beat: all the work on all the places from the first second, without queues,
failures or preemptions; and the longest leg.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from msgspec.structs import replace

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.matrix.names import Kind
from kci.plan.machines import UNKNOWN
from kci.plan.plan import Leg
from kci.remote import engine_run
from kci.remote.engine_choice import SentLeg, share_out
from kci.remote.engine_plan import EngineLeg, EngineRun
from kci.remote.engine_run import Driver
from kci.remote.job import EngineJob, JobState, JobStatus
from kci.remote.protocol import Batch, EngineAwayError, Handles
from kci.remote.run_state import Journal, LegPhase, Placement, RunEvent
from kci.tree.planned import Planned

KERNELS, VARIANTS = 52, 30
ENGINES = {
    "workstation": EngineSettings(EngineKind.LOCAL, at_once=4, poll_seconds=30),
    "cluster": EngineSettings(EngineKind.SLURM, at_once=64, poll_seconds=30, restarts=5),
    "gpu-box": EngineSettings(EngineKind.SSH, at_once=8, poll_seconds=30),
    "jobs": EngineSettings(EngineKind.HF_JOBS, at_once=32, poll_seconds=30, price=0.03),
}
QUEUE_MINUTES = {"workstation": 0.0, "cluster": 8.0, "gpu-box": 0.0, "jobs": 1.5}
"""The mean of how long a job waits on its engine."""
LOST = {"workstation": 0.0, "cluster": 0.04, "gpu-box": 0.005, "jobs": 0.01}
"""The share of attempts that are preempted, or whose machine fails, at some moment."""
FALLBACKS = {"workstation": "jobs", "cluster": "jobs", "gpu-box": "cluster", "jobs": "cluster"}
"""Who takes over the legs of an engine where they move at all."""
SEEDS = 3
"""How many runs each figure is the mean of."""
FAILS = 0.01
"""The share of legs whose build fails; those are not started again."""


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now += seconds


class Simulated:
    """An engine of which only the answers exist."""

    pause = 5.0
    chains = False

    def __init__(
        self, name: str, clock: Clock, minutes: Mapping[str, float], away: tuple[float, float], seed: int
    ) -> None:
        self.name, self.clock, self.minutes, self.away, self.seed = name, clock, minutes, away, seed
        self.jobs: dict[str, tuple[float, float, JobStatus]] = {}

    def _reach(self) -> None:
        if self.away[0] <= self.clock.now < self.away[1]:
            raise EngineAwayError("away")

    def submit(self, batch: Batch) -> Handles:
        """See `Engine`."""
        self._reach()
        for job in batch.jobs:
            chance = random.Random(
                f"{self.seed} {self.name} {job.name}"
            )  # the same in every case, whatever else happens
            begins = self.clock.now + chance.expovariate(1) * QUEUE_MINUTES[self.name] * 60
            seconds = self.minutes[f"{job.kernel}/{job.leg}"] * 60
            ending = JobStatus(JobState.ENDED)
            if chance.random() < LOST[self.name]:
                seconds, ending = seconds * chance.random(), JobStatus(JobState.LOST, "preempted")
            self.jobs[job.name] = (begins, begins + seconds, ending)
        return {job.name: job.name for job in batch.jobs}

    def find(self, batch: Batch) -> Handles:
        """See `Engine`."""
        self._reach()
        return {job.name: job.name for job in batch.jobs if job.name in self.jobs}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        """See `Engine`."""
        self._reach()
        return {name: self._status(name) for name in handles}

    def _status(self, name: str) -> JobStatus:
        begins, ends, ending = self.jobs[name]
        if self.clock.now >= ends:
            return ending
        return JobStatus(JobState.RUNNING if self.clock.now >= begins else JobState.QUEUED)

    def cancel(self, handles: Handles) -> None:
        """See `Engine`."""
        self._reach()
        for name in handles:
            begins, ends, _ = self.jobs[name]
            if self.clock.now < ends:
                self.jobs[name] = (begins, max(begins, self.clock.now), JobStatus(JobState.STOPPED, "cancelled"))

    def used(self) -> float:
        """The seconds that its machines have worked."""
        return sum(max(0.0, ends - begins) for begins, ends, _ in self.jobs.values())

    def close(self) -> None:
        """See `Engine`."""


class SimulatedDriver(Driver):
    """The driver, with nothing to fetch."""

    def _fetch(self, name: str, leg: str, at: Placement) -> None:  # noqa: ARG002
        failed = random.Random(leg).random() < FAILS
        behind = at is not self.journal.legs[leg].now
        if failed and behind:
            self._leave(leg, at, "it failed")
            return
        event, number = (RunEvent.FAILED, 0) if failed else (RunEvent.BUILT, at.attempt if behind else 0)
        self.note(event, [leg], exit_code=4 if failed else 0, attempt=number)


def legs() -> list[Leg]:
    """CPU, CUDA and ROCm legs with estimates like those of a plan, the longest first."""
    chance = random.Random(52)
    made = []
    for kernel in range(KERNELS):
        weight = chance.lognormvariate(0, 0.6)
        for number in range(VARIANTS):
            backend, base = ("cpu", 5) if number < 8 else ("rocm", 25) if number < 14 else ("cuda", 20)
            minutes = max(2, round(base * weight))
            made.append(
                Leg(
                    f"kernel-{kernel}", ".", f"v{number}", (f"v{number}",), f"v{number}", Kind.FULL, backend,
                    "x86_64-linux", ("x",), "", 350, minutes, False, UNKNOWN, None, "USD", "",
                )
            )  # fmt: skip
    return sorted(made, key=lambda leg: -leg.minutes)


def simulate(
    away: tuple[str, float, float] | None = None,
    *,
    waits_known: bool = True,
    fallback_minutes: float | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """One run; minutes and counts.

    Args:
        away: an engine, and from when to when it is, in seconds.
        waits_known: whether kci.toml has the `queue-minutes` of each engine.
        fallback_minutes: after what wait legs move; None if they never do.
        seed: of what engines draw.
    """
    waits = QUEUE_MINUTES if waits_known else dict.fromkeys(ENGINES, 0.0)
    settings = {
        name: replace(
            engine,
            queue_minutes=waits[name],
            fallback=None if fallback_minutes is None else FALLBACKS[name],
            fallback_minutes=fallback_minutes or 0.0,
        )
        for name, engine in ENGINES.items()
    }
    clock, real = Clock(), time.perf_counter()
    chance = random.Random(30)
    planned = legs()
    minutes = {f"{leg.kernel}/{leg.name}": leg.minutes * chance.lognormvariate(0, 0.2) for leg in planned}
    placed = [(item.leg, item.engine) for item in share_out(map(SentLeg, planned), settings)]
    run = EngineRun(
        id="simulated",
        legs=tuple(placed_leg(leg, number, name, settings) for number, (leg, name) in enumerate(placed)),
        engines=settings, planned=Planned({}), trees={},
    )  # fmt: skip
    engines = {
        name: Simulated(name, clock, minutes, away[1:] if away and away[0] == name else (0.0, 0.0), seed)
        for name in ENGINES
    }
    engine_run.time = SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep)  # type: ignore[assignment]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        journal = Journal(Path(folder), [leg.name for leg in run.legs])
        driver = SimulatedDriver(Path(folder), run, journal, lambda *_: None, lambda _line: None)
        driver.engines = dict(engines)  # type: ignore[arg-type]
        driver.drive()
        attempts = sum(sum(leg.submitted.values()) for leg in journal.legs.values())
        moved = sum(any(name for name in leg.submitted) for leg in journal.legs.values())
        states = [leg.phase for leg in journal.legs.values()]
        driver.close()
    places = sum(engine.at_once for engine in ENGINES.values())
    waited = sum(QUEUE_MINUTES[name] for _, name in placed)
    bound = max(sum(minutes.values()) / places, *minutes.values())
    return {
        "legs": len(states),
        "makespan": clock.now / 60,
        "bound": bound,
        "with_waits": (sum(minutes.values()) + waited) / places,
        "ratio": clock.now / 60 / bound,
        "attempts": attempts,
        "moved": moved,
        "failed": states.count(LegPhase.FAILED),
        "cost": engines["jobs"].used() / 3600 * 0.03,
        "client": time.perf_counter() - real,
    }


def placed_leg(leg: Leg, number: int, name: str, settings: Mapping[str, EngineSettings]) -> EngineLeg:
    made = EngineLeg(f"{leg.kernel}/{leg.name}", name, job(leg, number), leg.minutes, None)
    other = settings[name].fallback
    return replace(made, fallback=replace(made, engine=other)) if other else made


def job(leg: Leg, number: int) -> EngineJob:
    return EngineJob(
        name=f"kci-{number}-1", run="simulated", attempt=1, kernel=leg.kernel, leg=leg.name, variants=leg.variants,
        command=(), cores=1, memory_gb=1, timeout=1, most_bytes=1,
    )  # fmt: skip


def main() -> None:
    cluster, jobs = ("cluster", 1800.0, 5400.0), ("jobs", 0.0, 3600.0)
    cases: dict[str, tuple[tuple[str, float, float] | None, bool, float | None]] = {
        "all there": (None, True, None),
        "all there, waits not in kci.toml": (None, False, None),
        "cluster away, 1 h from minute 30": (cluster, True, None),
        "jobs away, 1 h from the start": (jobs, True, None),
        "all there, fallbacks": (None, True, 15.0),
        "waits not in kci.toml, fallbacks": (None, False, 15.0),
        "cluster away, fallbacks": (cluster, True, 15.0),
        "jobs away, fallbacks": (jobs, True, 15.0),
    }
    heads = ("legs", "makespan", "bound", "with waits", "ratio", "attempts", "moved", "failed", "cost", "client")
    print(f"{'case':34}" + "".join(f"{head:>11}" for head in heads))
    for name, (away, known, minutes) in cases.items():
        runs = [simulate(away, waits_known=known, fallback_minutes=minutes, seed=seed) for seed in range(SEEDS)]
        got = {head: statistics.mean(run[head] for run in runs) for head in runs[0]}
        cells = (
            f"{got['legs']:.0f}",
            f"{got['makespan']:.0f} min",
            f"{got['bound']:.0f} min",
            f"{got['with_waits']:.0f} min",
            f"{got['ratio']:.2f}",
            f"{got['attempts']:.0f}",
            f"{got['moved']:.0f}",
            f"{got['failed']:.0f}",
            f"{got['cost']:.2f} USD",
            f"{got['client']:.0f} s",
        )
        print(f"{name:34}" + "".join(f"{cell:>11}" for cell in cells))


if __name__ == "__main__":
    main()
