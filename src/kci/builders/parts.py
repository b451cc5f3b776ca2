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
from kci.builders.units import Unit
from kci.errors import UsageError
from kci.files.bounded_json import read_record, require_schema
from kci.plan.object_work import Work, shares

SCHEMA = 1


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


def share_of(
    units: tuple[Unit, ...], part: PartOf, work: Work, told: Mapping[str, float], *, torch_only: bool = False
) -> frozenset[str]:
    """The objects that one part compiles; with `torch_only` it is a part of those that read headers of torch.

    `work` is what the plan expects of them, and `told` what they took.
    """
    known = {each.source: each for each in work.objects}
    wanted = [unit for unit in units if not torch_only or known[unit.shown].torch]
    seconds = {unit.shown: told.get(unit.shown, known[unit.shown].seconds) for unit in wanted}
    mine = shares(seconds, part.of)[part.number - 1]
    return frozenset(unit.object for unit in wanted if unit.shown in mine)
