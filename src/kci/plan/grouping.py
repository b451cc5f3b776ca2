"""Which variants share a leg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from kci.config.values import Grouping
from kci.matrix.names import COMPUTE_PREFIX, Kind, upload_name
from kci.matrix.variants import KernelMatrix, Variant
from kci.plan.plan import Leg, RunnerGroup
from kci.plan.pools import Pool

FULL_SHARE = 2
"""A group is closed when its estimate passes one FULL_SHARE-th of what a job may take: estimates can be that wrong."""


class Assignment(msgspec.Struct, frozen=True):
    """Where and how one variant is built."""

    runner: tuple[str, ...] | RunnerGroup
    image: str
    timeout: int
    minutes: int
    setup: int
    measured: bool
    pool: Pool
    rate: float | None
    currency: str
    max_minutes: int
    max_jobs: int | None = None
    cores: int | None = None
    disk: int | None = None


class Placed(NamedTuple):
    """A variant with a place."""

    variant: Variant
    place: Assignment


def group(kernel: KernelMatrix, placed: Sequence[Placed], grouping: Grouping) -> list[Leg]:
    """The legs of one kernel.

    Variants share a leg only if they share the runner. A group whose estimate would pass half of what a job may take
    goes on in another leg, and a leg's timeout is the sum of its variants', but never more than a job may take.

    Args:
        kernel: whose legs they are.
        placed: its variants, sorted by name.
        grouping: what one leg builds.
    """
    if grouping is Grouping.VARIANT:
        return [_leg(kernel, [item], item.variant.name) for item in placed]
    groups: dict[tuple[object, ...], list[list[Placed]]] = {}
    for item in placed:
        open_groups = groups.setdefault(_key(item, grouping), [[]])
        last = open_groups[-1]
        minutes = sum(other.place.minutes for other in last) + item.place.minutes
        if last and minutes > item.place.max_minutes // FULL_SHARE:
            open_groups.append([item])
        else:
            last.append(item)
    legs = []
    for parts in groups.values():
        label = _label([item for part in parts for item in part], grouping)
        for number, part in enumerate(parts, start=1):
            own = part[0].variant.name if len(part) == 1 else label if number == 1 else f"{label}-{number}"
            legs.append(_leg(kernel, part, own))
    return legs


def _key(item: Placed, grouping: Grouping) -> tuple[object, ...]:
    variant, place = item
    # Limits are a leg's, not a variant's, so variants of different limits do not share one.
    limits = (place.runner, place.max_jobs, place.cores)
    if variant.kind is Kind.NOARCH:  # copied, not compiled: one leg does for all of them
        return ("noarch", *limits)
    if grouping is Grouping.BACKEND:
        # An empty image means none; one leg cannot run partly in an image.
        return (variant.backend, variant.system, *limits, bool(place.image))
    return (variant.system, place.image or variant.backend, *limits)


def _label(part: Sequence[Placed], grouping: Grouping) -> str:
    """What the group is called: `noarch`, `cuda-x86_64-linux`, or `cu130-x86_64-linux`."""
    first = part[0].variant
    if first.kind is Kind.NOARCH:
        return "noarch"
    computes = {item.variant.compute for item in part}
    if grouping is Grouping.IMAGE and len(computes) == 1 and first.compute and first.backend in COMPUTE_PREFIX:
        major, minor = (*first.compute.split("."), "0")[:2]
        return f"{COMPUTE_PREFIX[first.backend]}{major}{minor}-{first.system}"
    backends = {item.variant.backend for item in part}
    return f"{'-'.join(sorted(backends))}-{first.system}"


def _leg(kernel: KernelMatrix, part: Sequence[Placed], name: str) -> Leg:
    first, place = part[0]
    return Leg(
        kernel=kernel.name,
        path=kernel.path,
        variant=" ".join(item.variant.name for item in part),
        variants=tuple(item.variant.name for item in part),
        name=name,
        kind=first.kind,
        backend=first.backend,
        system=first.system,
        runner=place.runner,
        image=place.image,
        timeout=min(sum(item.place.timeout for item in part), place.max_minutes),
        minutes=place.setup + sum(item.place.minutes for item in part),
        measured=all(item.place.measured for item in part),
        pool=place.pool,
        rate=place.rate,
        currency=place.currency,
        max_jobs=place.max_jobs,
        cores=place.cores,
        disk=place.disk,
        artifact=upload_name(kernel.name, name),
        loads=tuple(dict.fromkeys(torch for item in part for torch in item.variant.loads)),
    )


def twins(names: Iterable[str]) -> list[str]:
    """The names that occur more than once when case is ignored, sorted."""
    seen: dict[str, list[str]] = {}
    for name in names:
        seen.setdefault(name.casefold(), []).append(name)
    return sorted({name for same in seen.values() if len(same) > 1 for name in same})
