"""How many machines there are, and what they cost."""

from __future__ import annotations

import msgspec

from kci.catalog.prices import default_prices
from kci.catalog.runners import Runner, quotas

OWN_MINUTES = 5 * 24 * 60
"""What a job on a self-hosted runner may take: GitHub gives it five days (GitHub docs, "Actions limits")."""


class Pool(msgspec.Struct, frozen=True):
    """Machines that take jobs from one queue."""

    name: str
    """Empty for runners whose number is unknown."""
    size: int | None
    queued: bool = False
    """Whether GitHub holds jobs back itself, so that a workflow needs no limit."""


UNKNOWN = Pool("", None)


def pool_of(runner: Runner) -> Pool:
    """The pool that a runner is taken from."""
    if runner.pool_size is not None:
        return Pool(" ".join((*([f"group:{runner.group}"] if runner.group else []), *runner.labels)), runner.pool_size)
    if not runner.hosted:
        return UNKNOWN
    if runner.labels[0].lower().startswith("macos"):
        return Pool("github-macos", quotas().concurrent_macos, queued=True)
    return Pool("github-hosted", quotas().concurrent, queued=True)


def most_minutes(runner: Runner) -> int:
    """What one job may take on a runner at most."""
    return quotas().max_minutes if runner.hosted else OWN_MINUTES


def price_of(runner: Runner) -> tuple[float, str] | None:
    """The price of a minute and its currency; None if unknown. A price of kci.toml goes before the table's."""
    if runner.price is not None:
        return runner.price / 60, runner.currency or default_prices().currency
    rate = None if runner.group else default_prices().of(runner.labels)
    return None if rate is None else (rate, default_prices().currency)
