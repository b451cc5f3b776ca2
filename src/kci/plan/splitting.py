"""The legs that build variants whole, and those of a variant in parts: each compiles a share, and one leg links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kci.matrix.names import objects_name, upload_name
from kci.matrix.variants import KernelMatrix, Variant
from kci.plan.estimates import estimates
from kci.plan.plan import Leg


class Placed(NamedTuple):
    """A variant with a place: the leg that it is by itself, without what setting up takes."""

    variant: Variant
    leg: Leg
    setup: int
    """Minutes before anything is built."""
    most: int
    """Minutes that a job may take there."""
    parts: int = 1
    """How many legs compile its objects."""


def whole_leg(kernel: KernelMatrix, placed: Sequence[Placed], name: str) -> Leg:
    """The leg that builds some variants, one after the other."""
    legs = [item.leg for item in placed]
    measured = all(leg.measured for leg in legs)
    return msgspec.structs.replace(
        legs[0],
        path=kernel.path,
        variant=" ".join(leg.variant for leg in legs),
        variants=tuple(leg.variant for leg in legs),
        name=name,
        timeout=min(sum(leg.timeout for leg in legs), placed[0].most),
        minutes=placed[0].setup + sum(leg.minutes for leg in legs),
        at_least=None if measured else placed[0].setup + sum(leg.ends[0] for leg in legs),
        at_most=None if measured else placed[0].setup + sum(leg.ends[1] for leg in legs),
        measured=measured,
        artifact=upload_name(kernel.name, name),
        loads=tuple(dict.fromkeys(torch for leg in legs for torch in leg.loads)),
    )


def split_legs(kernel: KernelMatrix, placed: Placed) -> list[Leg]:
    """The part legs of a variant, and the leg that links it."""
    whole = whole_leg(kernel, [placed], placed.variant.name)
    names = [f"{whole.name}.part{number}of{placed.parts}" for number in range(1, placed.parts + 1)]
    shares = [math.ceil(minutes / placed.parts) for minutes in (placed.leg.minutes, *placed.leg.ends)]
    share = _taking(whole, placed, *shares)
    parts = [
        msgspec.structs.replace(
            share, name=name, variants=(), artifact=objects_name(whole.kernel, name), part=number, parts=placed.parts
        )
        for number, name in enumerate(names, start=1)
    ]
    link = _taking(whole, placed, *[estimates().link] * 3)
    return [*parts, msgspec.structs.replace(link, parts=placed.parts, takes=tuple(names))]


def _taking(whole: Leg, placed: Placed, about: int, least: int, most: int) -> Leg:
    known = whole.measured
    return msgspec.structs.replace(
        whole, minutes=placed.setup + about, at_least=None if known else placed.setup + least,
        at_most=None if known else placed.setup + most,
    )  # fmt: skip
