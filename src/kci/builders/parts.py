"""Shares of a variant's objects, for machines that compile one each.

All of them have to come to the same shares on their own. So these follow from the sources and the seconds that are told
to all alike, and from nothing that a machine happens to have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.builders.request import PartOf
from kci.builders.units import Language, Unit
from kci.errors import UsageError
from kci.files.bounded_json import read_record, require_schema

SCHEMA = 1

# For x86-64 at 3 GHz: a C++ source with torch's headers; each arch of one with CUTLASS' is ten times that.
_SECONDS = {Language.CXX: 15.0, Language.OBJCXX: 15.0, Language.C: 2.0, Language.METAL: 2.0}
_SECONDS_AN_ARCH = 20.0


class Seconds(msgspec.Struct, frozen=True):
    """What sources took to compile; every part of a variant has to be given the same."""

    seconds: dict[str, Annotated[float, Meta(ge=0)]]
    """By the source as build.toml names it. What is missing is estimated."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


def read_seconds(path: Path) -> dict[str, float]:
    """The seconds of a file of `Seconds`.

    Raises:
        UsageError: there is none, or it is not valid.
    """
    try:
        return read_record(path, Seconds).seconds
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} does not say what sources take: {error}") from error


def estimated_seconds(unit: Unit) -> float:
    """What compiling a source may take where nobody has measured it."""
    return _SECONDS.get(unit.language) or _SECONDS_AN_ARCH * max(1, len(unit.archs))


def shares(seconds: Mapping[str, float], parts: int) -> tuple[tuple[str, ...], ...]:
    """Names shared out so that all parts take about as long: the longest first, each into the lightest part.

    >>> shares({"a": 5, "b": 3, "c": 3, "d": 2}, 2)
    (('a', 'd'), ('b', 'c'))
    """
    made: list[list[str]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        lightest = loads.index(min(loads))
        made[lightest].append(name)
        loads[lightest] += seconds[name]
    return tuple(tuple(sorted(names)) for names in made)


def share_of(units: tuple[Unit, ...], part: PartOf, told: Mapping[str, float]) -> frozenset[str]:
    """The objects that one part compiles."""
    seconds = {unit.shown: told.get(unit.shown, estimated_seconds(unit)) for unit in units}
    mine = shares(seconds, part.of)[part.number - 1]
    return frozenset(unit.object for unit in units if unit.shown in mine)
