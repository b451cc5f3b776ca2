"""A run on engines as far as it has come: where its legs are, what they cost, and when one moves to its fallback.

Simulations decide by this too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kci.remote.engine_plan import EngineLeg, EngineRun
from kci.remote.engine_tests import with_tree
from kci.remote.job import EngineJob
from kci.remote.run_journal import OPEN, Journal, LegPhase, LegProgress, Placement


class RunState:
    """What was planned, and what the journal knows of it; an attempt that is not named is the latest of its leg."""

    def __init__(self, folder: Path, run: EngineRun, journal: Journal) -> None:
        self.folder, self.run, self.journal = folder, run, journal
        self.legs = {leg.name: leg for leg in run.legs}

    def place(self, leg: str, at: Placement | None = None) -> EngineLeg:
        """A leg, as it is where an attempt is."""
        return self.legs[leg].on((at or self.journal.legs[leg].now).engine)

    def job_name(self, leg: str, at: Placement | None = None) -> str:
        return self.legs[leg].job_name((at or self.journal.legs[leg].now).attempt)

    def job(self, leg: str, at: Placement | None = None) -> EngineJob:
        progress = self.journal.legs[leg]
        job = self.place(leg, at).attempt((at or progress.now).attempt)
        return job if progress.tree is None else with_tree(job, progress.tree, progress.variants)

    def mine(self, engine: str, *phases: LegPhase) -> list[str]:
        return [leg for leg in self.journal.of(*phases) if self.place(leg).engine == engine]

    def behind(self) -> list[tuple[str, Placement]]:
        """The attempts on engines that their legs have moved away from."""
        return [(leg, at) for leg, progress in self.journal.legs.items() for at in progress.behind]

    def behind_on(self, engine: str) -> list[tuple[str, Placement]]:
        """Those of them that one engine has."""
        return [(leg, at) for leg, at in self.behind() if self.place(leg, at).engine == engine]

    def here(self, engine: str) -> dict[str, tuple[str, Placement]]:
        """The attempts that an engine has, by the name of their job: those that count, and those that were left."""
        now = [(leg, self.journal.legs[leg].now) for leg in self.mine(engine, LegPhase.SUBMITTED)]
        return {self.job_name(leg, at): (leg, at) for leg, at in [*now, *self.behind_on(engine)]}

    def too_dear(self, legs: Sequence[str], moved: str = "") -> bool:
        """Whether submitting these, and one more that moves, would bring the run above its limit; restarts cost too."""
        limit = self.run.max_cost
        return limit is not None and self._cost(legs, moved) > limit * (1 + 1e-9)

    def _cost(self, more: Sequence[str], moved: str) -> float:
        """What the submissions cost by the plan's minutes, each at the price of its engine."""
        spent = 0.0
        for name, leg in self.legs.items():
            progress = self.journal.legs[name]
            counts = dict(progress.submitted)
            where = progress.now.engine
            counts[where] = counts.get(where, 0) + (name in more)
            if name == moved and leg.fallback is not None:
                counts[leg.fallback.engine] = 1
            spent += sum(
                (leg.on(engine).rate or 0.0) * leg.on(engine).minutes * times for engine, times in counts.items()
            )
        return spent


class Waiting(msgspec.Struct, frozen=True):
    """What one client has seen of a leg and of the engine that it is for; in seconds."""

    pending: float
    """For how long it has been seen to wait: to be submitted, or in the engine's queue."""
    running: bool
    """Whether it was running when the engine was last asked."""
    away: float
    """For how long the engine has not been reached; 0 if it answers."""


def why_move(leg: EngineLeg, progress: LegProgress, waiting: Waiting, limit: float) -> str:
    """Why a leg should go to the fallback as soon as that has room for it; empty if it should stay.

    A leg that runs stays, also where its engine cannot be reached, until it must have come to its end there: what it
    has done so far would be lost. A leg moves once.

    Args:
        leg: what was planned.
        progress: how far it has come.
        waiting: what is known of its waiting.
        limit: how many seconds are too many.
    """
    if leg.fallback is None or progress.moved or progress.phase not in OPEN:
        return ""
    longest = limit + (leg.job.timeout * 60 if waiting.running else 0)
    if waiting.away and waiting.away >= longest:
        return f"{leg.engine} cannot be reached for {_minutes(waiting.away)}"
    if not waiting.running and waiting.pending >= limit:
        return f"it has waited for {leg.engine} for {_minutes(waiting.pending)}"
    return ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
