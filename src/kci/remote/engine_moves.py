"""When a leg moves to the fallback of its engine, and what that costs. Simulations decide by this too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kci.remote.engine_plan import EngineLeg
from kci.remote.run_journal import OPEN, LegProgress


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


def cost(
    legs: Mapping[str, EngineLeg], progress: Mapping[str, LegProgress], more: Sequence[str], moved: str = ""
) -> float:
    """What a run's submissions cost by the plan's minutes, each at the price of its engine.

    Args:
        legs: what was planned.
        progress: with what was submitted so far.
        more: legs that would be submitted where they are now.
        moved: a leg that would be submitted to its fallback.
    """
    spent = 0.0
    for name, leg in legs.items():
        counts = dict(progress[name].submitted)
        where = progress[name].now.engine
        counts[where] = counts.get(where, 0) + (name in more)
        if name == moved and leg.fallback is not None:
            counts[leg.fallback.engine] = 1
        spent += sum((leg.on(engine).rate or 0.0) * leg.on(engine).minutes * times for engine, times in counts.items())
    return spent


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
