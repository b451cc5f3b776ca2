"""A run of 52 kernels with 30 variants each over four engines, simulated: how far from the shortest possible it ends.

    python benchmarks/engines_simulated.py

What is real: placement, submission, polling, restarts, backing off, and the journal with its flushes; it is kci's own
driver. What is not: the engines and the clock. Their queue times, failures and preemptions are drawn from a seed, and
a leg takes what the plan estimates, give or take. Nothing is fetched or merged.

The lower bound is what no schedule can beat: all the work on all the places from the first second, without queues,
failures or preemptions; and the longest leg.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from msgspec.structs import replace

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.engines.job import EngineJob, JobState, JobStatus
from kci.engines.protocol import Batch, EngineAwayError, Handles
from kci.matrix.names import Kind
from kci.plan.plan import Leg
from kci.plan.pools import UNKNOWN
from kci.run import engine_run
from kci.run.engine_plan import EngineLeg, EngineRun, share_out
from kci.run.engine_run import Driver
from kci.run.run_journal import Journal, LegPhase, RunEvent
from kci.tree.planned import Planned

KERNELS, VARIANTS = 52, 30
ENGINES = {
    "workstation": EngineSettings(EngineKind.LOCAL, at_once=4, poll_seconds=5),
    "cluster": EngineSettings(EngineKind.SLURM, at_once=64, poll_seconds=15, restarts=5),
    "gpu-box": EngineSettings(EngineKind.SSH, at_once=8, poll_seconds=5),
    "jobs": EngineSettings(EngineKind.HF_JOBS, at_once=32, poll_seconds=30, price=0.03),
}
QUEUE_MINUTES = {"workstation": 0.0, "cluster": 8.0, "gpu-box": 0.0, "jobs": 1.5}
"""The mean of how long a job waits on its engine."""
LOST = {"workstation": 0.0, "cluster": 0.04, "gpu-box": 0.005, "jobs": 0.01}
"""The share of attempts that are preempted, or whose machine fails, at some moment."""
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

    def __init__(self, name: str, clock: Clock, minutes: Mapping[str, float], away: tuple[float, float]) -> None:
        self.name, self.clock, self.minutes, self.away = name, clock, minutes, away
        self.random = random.Random(name)
        self.jobs: dict[str, tuple[float, float, JobStatus]] = {}
        self.used = 0.0

    def _reach(self) -> None:
        if self.away[0] <= self.clock.now < self.away[1]:
            raise EngineAwayError("away")

    def submit(self, batch: Batch) -> Handles:
        """See `Engine`."""
        self._reach()
        for job in batch.jobs:
            begins = self.clock.now + self.random.expovariate(1) * QUEUE_MINUTES[self.name] * 60
            seconds = self.minutes[f"{job.kernel}/{job.leg}"] * 60
            ending = JobStatus(JobState.ENDED)
            if self.random.random() < LOST[self.name]:
                seconds, ending = seconds * self.random.random(), JobStatus(JobState.LOST, "preempted")
            self.jobs[job.name] = (begins, begins + seconds, ending)
            self.used += seconds
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

    def cancel(self, handles: Handles) -> None:  # noqa: ARG002
        """See `Engine`."""
        self._reach()

    def close(self) -> None:
        """See `Engine`."""


class SimulatedDriver(Driver):
    """The driver, with nothing to fetch."""

    def _fetch(self, name: str, leg: str, handle: str) -> None:  # noqa: ARG002
        failed = random.Random(leg).random() < FAILS
        self._note(RunEvent.FAILED if failed else RunEvent.BUILT, [leg], exit_code=4 if failed else 0)


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


def simulate(away: tuple[str, float, float] | None = None, *, waits_known: bool = True) -> dict[str, float]:
    """One run; minutes and counts. `waits_known`: whether kci.toml has the `queue-minutes` of each engine."""
    waits = QUEUE_MINUTES if waits_known else dict.fromkeys(ENGINES, 0.0)
    settings = {name: replace(engine, queue_minutes=waits[name]) for name, engine in ENGINES.items()}
    clock, real = Clock(), time.perf_counter()
    chance = random.Random(30)
    planned = legs()
    minutes = {f"{leg.kernel}/{leg.name}": leg.minutes * chance.lognormvariate(0, 0.2) for leg in planned}
    placed = [(leg, name or "") for leg, name in share_out(planned, settings)]
    run = EngineRun(
        id="simulated",
        legs=tuple(EngineLeg(f"{leg.kernel}/{leg.name}", name, job(leg, number), leg.minutes, None)
                   for number, (leg, name) in enumerate(placed)),
        engines=settings, planned=Planned({}), trees={},
    )  # fmt: skip
    engines = {
        name: Simulated(name, clock, minutes, away[1:] if away and away[0] == name else (0.0, 0.0)) for name in ENGINES
    }
    engine_run.time = SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), [leg.name for leg in run.legs])
        driver = SimulatedDriver(Path(folder), run, journal, lambda *_: None, lambda _line: None)
        driver.engines = dict(engines)  # type: ignore[arg-type]
        driver.drive()
        attempts = sum(leg.submissions for leg in journal.legs.values())
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
        "failed": states.count(LegPhase.FAILED),
        "cost": engines["jobs"].used / 3600 * 0.03,
        "client": time.perf_counter() - real,
    }


def job(leg: Leg, number: int) -> EngineJob:
    return EngineJob(
        name=f"kci-{number}-1", run="simulated", attempt=1, kernel=leg.kernel, leg=leg.name, variants=leg.variants,
        command=(), cores=1, memory_gb=1, timeout=1, most_bytes=1,
    )  # fmt: skip


def main() -> None:
    cases: dict[str, tuple[tuple[str, float, float] | None, bool]] = {
        "all there": (None, True),
        "all there, waits not in kci.toml": (None, False),
        "cluster away, 1 h from minute 30": (("cluster", 1800.0, 5400.0), True),
        "jobs away, 1 h from the start": (("jobs", 0.0, 3600.0), True),
    }
    heads = ("legs", "makespan", "bound", "with waits", "ratio", "attempts", "failed", "cost", "client")
    print(f"{'case':34}" + "".join(f"{head:>11}" for head in heads))
    for name, (away, known) in cases.items():
        got = simulate(away, waits_known=known)
        cells = (
            f"{got['legs']:.0f}",
            f"{got['makespan']:.0f} min",
            f"{got['bound']:.0f} min",
            f"{got['with_waits']:.0f} min",
            f"{got['ratio']:.2f}",
            f"{got['attempts']:.0f}",
            f"{got['failed']:.0f}",
            f"{got['cost']:.2f} USD",
            f"{got['client']:.0f} s",
        )
        print(f"{name:34}" + "".join(f"{cell:>11}" for cell in cells))


if __name__ == "__main__":
    main()
