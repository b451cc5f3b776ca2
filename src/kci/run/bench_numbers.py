"""What times say: sums of them, and whether one build is slower than another in spite of the noise.

Two builds are compared by the calls that were made side by side, in pairs of blocks: what else a machine does slows
both alike, and comes and goes. Between rounds the processes are others, with other addresses and threads, so the
interval is from resampling whole rounds, and pairs within them.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

from kci.watch.bench_history import TimeChange, TimingResults, Verdict

NOTABLE = 0.05
"""A smaller change is none."""

LEAST_ROUNDS = 5
"""A process may be slow for as long as it lives, by where its pages and threads are; so many can tell."""

_RESAMPLES = 1000
_OUTSIDE = 0.005
"""The share of the resamples on each side of the interval: it has 99 % of them."""

_SEED = 20261123


def summed_up(times: Sequence[float]) -> TimingResults:
    """Times in milliseconds, as the reference sums them up: quartiles, and outliers by 1.5 times their distance."""
    q1, _, q3 = statistics.quantiles(times, method="inclusive") if len(times) > 1 else (times[0],) * 3
    reach = 1.5 * (q3 - q1)
    return TimingResults(
        mean_ms=statistics.fmean(times),
        std_ms=statistics.pstdev(times),
        min_ms=min(times),
        max_ms=max(times),
        q1_ms=q1,
        q3_ms=q3,
        iqr_ms=q3 - q1,
        outliers=sum(not q1 - reach <= time <= q3 + reach for time in times),
        iterations=len(times),
    )


def change_of(rounds: Sequence[Sequence[float]]) -> TimeChange:
    """What the ratios of pairs of blocks say, which stand by rounds; no round is empty."""
    logs = [[math.log(ratio) for ratio in ratios] for ratios in rounds]
    chance = random.Random(_SEED)  # noqa: S311  - the same numbers give the same answer
    centers = sorted(_resampled(logs, chance) for _ in range(_RESAMPLES))
    outside = int(_RESAMPLES * _OUTSIDE)
    low, high = math.exp(centers[outside]), math.exp(centers[-1 - outside])
    return TimeChange(math.exp(_center(logs)), low, high, _verdict(low, high, logs))


def _center(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median([value for values in rounds for value in values])


def _resampled(rounds: Sequence[Sequence[float]], chance: random.Random) -> float:
    chosen = chance.choices(rounds, k=len(rounds))
    return _center([chance.choices(values, k=len(values)) for values in chosen])


def _verdict(low: float, high: float, rounds: Sequence[Sequence[float]]) -> Verdict:
    """What an interval says. One direction is claimed only where no tenth of the rounds says the other."""
    centers = sorted(statistics.median(values) for values in rounds)
    few = len(rounds) // 10
    if len(rounds) < LEAST_ROUNDS:
        return Verdict.UNCLEAR
    if low > 1 + NOTABLE and centers[few] > 0:
        return Verdict.SLOWER
    if high < 1 / (1 + NOTABLE) and centers[-1 - few] < 0:
        return Verdict.FASTER
    return Verdict.SAME if low >= 1 / (1 + NOTABLE) and high <= 1 + NOTABLE else Verdict.UNCLEAR
