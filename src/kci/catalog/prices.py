"""What machines cost: a dated table of prices by runner label."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kci.files.dated_data import Dated, load_dated


class Prices(Dated, frozen=True):
    """A price table; `rate` is by label and minute."""

    currency: str
    rate: dict[str, float]

    def of(self, labels: Iterable[str]) -> float | None:
        """The price of a minute on a runner with these labels, or None if no label is in the table."""
        return next((self.rate[label] for label in labels if label in self.rate), None)


@cache
def default_prices() -> Prices:
    """The price table that kci ships."""
    return load_dated(Path(__file__).parent / "data" / "prices.toml", Prices)
