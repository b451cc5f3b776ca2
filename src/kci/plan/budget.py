"""The costs of a run, and its limits: jobs, money, and the time of each job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kci.config.facts import BACKENDS
from kci.diagnostics import Diagnostic, finding
from kci.errors import rule_error
from kci.matrix.catalog.runners import OWN_MINUTES, Runners, quotas
from kci.matrix.variants import Kind
from kci.plan.estimates import Estimate
from kci.plan.plan import Leg
from kci.utils.suggest import count


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
