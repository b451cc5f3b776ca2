"""How old an edition of the catalog is, and whether kci has a newer one."""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path

import msgspec

from kci.catalog.loading import editions, load_catalog
from kci.catalog.rows import Catalog
from kci.files.dated_data import Dated, load_dated


class _FreshnessFile(Dated, frozen=True):
    days: int


@cache
def days_until_old() -> int:
    """After how many days an edition counts as old."""
    return load_dated(Path(__file__).parent / "data" / "freshness.toml", _FreshnessFile).days


class Freshness(msgspec.Struct, frozen=True):
    """What is known about the age of a catalog."""

    name: str
    as_of: str
    days: int
    """Since its date; negative for one of the future."""
    most: int
    """The days after which it is old."""
    newer: tuple[str, ...]
    """Editions that come with kci and are newer, the newest last."""

    @property
    def outdated(self) -> bool:
        """Whether it is old, or a newer one is there."""
        return self.days > self.most or bool(self.newer)


def freshness(catalog: Catalog, today: datetime.date, most: int | None = None) -> Freshness:
    """How old a catalog is.

    Args:
        catalog: the catalog in force.
        today: the day to compare with.
        most: the days after which it is old; by default what kci's data say.
    """
    as_of = datetime.date.fromisoformat(catalog.as_of)
    newer = tuple(name for name in editions() if load_catalog(name).as_of > catalog.as_of)
    return Freshness(
        catalog.name, catalog.as_of, (today - as_of).days, days_until_old() if most is None else most, newer
    )
