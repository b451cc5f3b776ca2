"""What objects of well-known kernels took where they were measured: estimates of sources that are called like them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.files.dated_data import Dated, shipped

_USUAL_GIB = 4
"""What a CUDA compiler takes anyway (runners.toml): less is no reason to compile fewer at once."""


class Measured(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """One object that was compiled."""

    kernel: str
    source: str
    """Its path in the kernel."""
    like: tuple[str, ...]
    """Patterns for the paths of sources that are made of the same templates."""
    seconds: Annotated[float, Meta(gt=0)]
    """Of one core."""
    memory: Annotated[float, Meta(ge=0)] = 0
    """GiB; 0 where nobody looked."""
    archs: tuple[str, ...] = ()
    """What device code was made for; none for C++."""
    stable: bool = False
    """Whether it was against torch's stable ABI."""


class _Table(Dated, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    machine: str
    object: tuple[Measured, ...]


measured_table = shipped("plan/data/objects.toml", _Table)
"""The objects that were measured."""


class Like(msgspec.Struct, frozen=True):
    """What sources of a name took, by those that were measured."""

    rows: tuple[Measured, ...]
    memory: int
    """The GiB, where that is more than compilers usually take; else 0."""

    def seconds(self, archs: int, stable: bool, counted: Callable[[int, bool], float]) -> float:
        """What an object for so many architectures takes, against these headers: it grows as what is `counted` does."""
        here = counted(archs, stable)
        return median(row.seconds * here / counted(len(row.archs), row.stable) for row in self.rows)


@cache
def measured_like(source: str, *, stable: bool, device: bool) -> Like | None:
    """What a source takes, by the measured ones that are made of the same templates; None if there are none.

    Those of the same ABI go before others.
    """
    found = [
        row
        for row in measured_table().object
        if bool(row.archs) is device and any(fnmatchcase(source, pattern) for pattern in row.like)
    ]
    found = [row for row in found if row.stable is stable] or found
    if not found:
        return None
    memory = math.ceil(max(row.memory for row in found))
    return Like(tuple(found), memory if memory > _USUAL_GIB else 0)
