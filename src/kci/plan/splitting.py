"""Legs of a variant that does not fit into one job: those that compile parts of its objects, and one that links."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kci.files.dated_data import Dated, shipped
from kci.matrix.names import objects_name
from kci.plan.plan import Leg


class _Box(Dated, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    fits: float
    aim: float
    link: int


_box = shipped("plan/data/parts.toml", _Box)


def parts_of(minutes: int, most: int, setup: int, asked: int | str | None) -> int:
    """How many parts compile a variant of so many minutes, where a job has `most`; 1 if one leg does it all."""
    if isinstance(asked, int):
        return asked
    if minutes + setup <= most * _box().fits:
        return 1
    return -(-minutes // max(1, int(most * _box().aim) - setup))


def split_leg(whole: Leg, minutes: Sequence[int], setup: int) -> list[Leg]:
    """The legs of one variant in parts that take so many minutes each, and the leg that links them."""
    parts = [
        msgspec.structs.replace(
            whole,
            name=(name := f"{whole.name}.part{number}of{len(minutes)}"),
            variants=(),
            minutes=setup + each,
            artifact=objects_name(whole.kernel, name),
            part=number,
            parts=len(minutes),
        )
        for number, each in enumerate(minutes, start=1)
    ]
    link = msgspec.structs.replace(
        whole, minutes=setup + _box().link, parts=len(minutes), takes=tuple(part.name for part in parts)
    )
    return [*parts, link]
