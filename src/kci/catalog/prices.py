"""What machines cost: a dated table of prices by runner label."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec


class Prices(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A price table; `rate` is by label and minute."""

    as_of: Any
    source: str
    currency: str
    rate: dict[str, float]

    def of(self, labels: Iterable[str]) -> float | None:
        """The price of a minute on a runner with these labels, or None if no label is in the table."""
        return next((self.rate[label] for label in labels if label in self.rate), None)


@cache
def default_prices() -> Prices:
    """The price table that kci ships."""
    import tomllib  # noqa: PLC0415  - only needed for an estimate

    data = tomllib.loads((Path(__file__).parent / "data" / "prices.toml").read_text(encoding="utf-8"))
    return msgspec.convert(data, Prices)
