"""Shares of a variant's objects, for machines that compile one each.

All of them come to the same shares on their own: these follow from the sources that build.toml lists.
"""

from __future__ import annotations

from kci.builders.request import PartOf
from kci.builders.units import Unit


def share_of(units: tuple[Unit, ...], part: PartOf) -> frozenset[str]:
    """The objects that one part compiles: of the sources by name, every so many one."""
    ordered = sorted(units, key=lambda unit: unit.shown)
    return frozenset(unit.object for unit in ordered[part.number - 1 :: part.of])
