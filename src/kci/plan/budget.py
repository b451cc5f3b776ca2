"""The minutes, cost and wall-clock time of a run, and its limits: jobs, money, and the time of each
job.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from kci.config.facts import BACKENDS
from kci.diagnostics import Diagnostic, finding
from kci.errors import rule_error
from kci.matrix.catalog.runners import OWN_MINUTES, Pool, Runners, default_prices, quotas
from kci.matrix.variants import Kind
from kci.plan.plan import Key, Leg, Role
from kci.utils.frozen import Frozen
from kci.utils.suggest import count


class Part(Frozen):
    """The share of one kernel, backend and system in an estimate."""

    kernel: str
    backend: str
    system: str
    legs: int
    minutes: int
    costs: dict[str, float]


class Estimate(Frozen):
    """The estimate of a plan."""

    legs: int
    minutes: int
    at_least: int
    at_most: int
    """The range of `minutes`; see `Leg`."""
    measured: int
    costs: dict[str, float]
    """By currency, of legs with a price."""
    costs_at_most: dict[str, float]
    """For `at_most`; `--max-cost` limits it."""
    prices_as_of: str
    unpriced: int
    waves: int
    """The number of times that the fullest pool is filled; pools of unknown size start all legs at
    once."""
    wall_minutes: int
    """From the first start to the last end, with free pools."""
    wall_at_least: int
    wall_at_most: int
    parts: tuple[Part, ...]


def estimate(legs: Sequence[Leg]) -> Estimate:
    """Estimate a run, in whole minutes, as GitHub bills each job."""
    grouped: dict[tuple[str, str, str], list[Leg]] = {}
    for leg in legs:
        grouped.setdefault((leg.kernel, leg.backend, leg.system), []).append(leg)
    parts = []
    for key, same in sorted(grouped.items()):
        took = [leg.minutes for leg in same]
        parts.append(Part(*key, legs=len(same), minutes=sum(took), costs=_costs(same, took)))
    parts.sort(key=lambda part: (-sum(part.costs.values()), -part.minutes))
    minutes, least = [leg.minutes for leg in legs], [leg.ends[0] for leg in legs]
    most, pools = [leg.ends[1] for leg in legs], Counter(leg.pool for leg in legs)
    return Estimate(
        legs=len(legs),
        minutes=sum(minutes),
        at_least=sum(least),
        at_most=sum(most),
        measured=sum(leg.measured for leg in legs),
        costs=_costs(legs, minutes),
        costs_at_most=_costs(legs, most),
        prices_as_of=str(default_prices().as_of),
        unpriced=sum(leg.rate is None for leg in legs),
        waves=max((-(-many // _at_once(pool, many)) for pool, many in pools.items()), default=0),
        wall_minutes=max(end_minutes(legs, minutes).values(), default=0),
        wall_at_least=max(end_minutes(legs, least).values(), default=0),
        wall_at_most=max(end_minutes(legs, most).values(), default=0),
        parts=tuple(parts),
    )


def _costs(legs: Sequence[Leg], minutes: Sequence[int]) -> dict[str, float]:
    by_currency: dict[str, list[float]] = {}
    for leg, took in zip(legs, minutes, strict=True):
        if leg.rate is not None:
            by_currency.setdefault(leg.currency, []).append(took * leg.rate)
    return {currency: round(math.fsum(its), 3) for currency, its in sorted(by_currency.items())}


def _at_once(pool: Pool, legs: int) -> int:
    return min(pool.size or legs, legs)


def end_minutes(legs: Sequence[Leg], minutes: Sequence[int]) -> dict[Key, int]:
    """The minute in which each leg ends, if legs take these minutes, and each pool takes its
    longest legs first and links after their parts.
    """
    ends: dict[Key, int] = {}
    pools = Counter(leg.pool for leg in legs)
    machines = {pool: [0] * _at_once(pool, many) for pool, many in pools.items()}
    for links in (False, True):
        waiting = [
            (max((ends.get((leg.kernel, name), 0) for name in leg.takes), default=0), -took, leg)
            for leg, took in zip(legs, minutes, strict=True)
            if (leg.role is Role.LINK) is links
        ]
        waiting.sort(key=lambda item: (*item[:2], item[2].kernel, item[2].name))
        for ready, took, leg in waiting:
            end = max(machines[leg.pool][0], ready) - took
            heapq.heapreplace(machines[leg.pool], end)
            ends[leg.kernel, leg.name] = end
    return ends


def money(costs: dict[str, float]) -> str:
    """Costs as text: `12.40 USD`."""
    return " + ".join(f"{cost:.2f} {currency}" for currency, cost in costs.items()) or "nothing"


def cost_sentence(forecast: Estimate) -> str:
    """The cost of a run: `about 1.20 USD, up to 1.66 USD at the prices of 2026-01-01`."""
    few = "up to " if forecast.at_least != forecast.at_most else ""
    few = (
        f"about {money(forecast.costs)}, {few}"
        if money(forecast.costs) != money(forecast.costs_at_most)
        else few
    )
    free = f", {count(forecast.unpriced, 'leg')} without a known price" if forecast.unpriced else ""
    return f"{few}{money(forecast.costs_at_most)} at the prices of {forecast.prices_as_of}{free}"


def check_budget(
    forecast: Estimate, max_jobs: int | None = None, max_cost: float | None = None
) -> list[Diagnostic]:
    """Check an estimate against a budget, else FindingsError (KCI309); KCI310 for legs without a
    price.
    """
    over = []
    if max_jobs is not None and forecast.legs > max_jobs:
        over.append(f"{count(forecast.legs, 'job')}, and {max_jobs} are allowed")
    if max_cost is not None and any(
        not cost <= max_cost for cost in forecast.costs_at_most.values()
    ):  # also for NaN
        over.append(f"up to {money(forecast.costs_at_most)}, and {max_cost:.2f} are allowed")
    if over:
        largest = ", ".join(
            f"{part.kernel} {part.backend} on {part.system} "
            f"({count(part.legs, 'job')}, {part.minutes} min, {money(part.costs)})"
            for part in forecast.parts[:3]
        )
        hint = (
            "narrow with `--tier pr`, --backend, --system or --only, or set `group` under "
            "`[plan]` in kci.toml"
        )
        raise rule_error(
            "KCI309", f"the plan takes {'; '.join(over)}. The most go to {largest}", hint=hint
        )
    if max_cost is not None and forecast.unpriced:
        message = (
            f"{forecast.unpriced} of {forecast.legs} legs run on runners without a known price "
            "and are counted as free"
        )
        return [finding("KCI310", message, hint="give their runners a price in kci.toml")]
    return []


def check_time(legs: Iterable[Leg], runners: Runners) -> list[Diagnostic]:
    """KCI335 for kernels with legs that exceed their timeout (estimates: half of it), with a
    fitting `parts`.
    """
    late: dict[str, list[Leg]] = {}
    for leg in legs:
        chosen = leg.measured or runners.limit(leg.kernel, leg.backend).parts is not None
        if leg.minutes > (leg.timeout if chosen else leg.timeout // 2):
            late.setdefault(leg.kernel, []).append(leg)
    return [_late(kernel, same) for kernel, same in sorted(late.items())]


def _late(kernel: str, legs: Sequence[Leg]) -> Diagnostic:
    worst = max(legs, key=lambda leg: (leg.minutes - leg.timeout, leg.name))
    more = (
        f"; so it is with {count(len(legs) - 1, 'other leg')} of the kernel"
        if len(legs) > 1
        else ""
    )
    took = (
        f"took {worst.minutes} minutes"
        if worst.measured
        else f"is estimated to take {worst.takes_text}"
    )
    message = (
        f"{kernel} {worst.name} {took} on {worst.runner_text}, and its job ends after "
        f"{worst.timeout}{more}"
    )
    ways = []
    if worst.kind is not Kind.NOARCH and len(worst.variants) < 2:
        room = max(1, worst.timeout // 2 - _BESIDE)
        needed = math.ceil(worst.minutes * (worst.parts or 1) / room)
        ways.append(
            f"compile it in parts: `parts = {needed}` in a [[limits]] of kci.toml with `kernel = "
            f'"{kernel}"`'
        )
    ways += ["build less in a leg (`group`)"] if len(worst.variants) > 1 else []
    ways += ["name a machine with more cores under [runners] in kci.toml"]
    ways += ["build for fewer architectures"] if BACKENDS[worst.backend].archs else []
    if worst.minutes <= (quotas().max_minutes if worst.pool.queued else OWN_MINUTES):
        ways += ["raise `timeout-minutes` in [[limits]]"]
    ways += [] if worst.measured else ["or give `kci plan` measured times, with --durations FILE"]
    return finding("KCI335", message, hint="; ".join(ways))


_BESIDE = 10
"""Minutes of setup in a part leg, at most, with rounding."""
