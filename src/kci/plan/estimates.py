"""Estimates of a run's minutes, cost and wall-clock time."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from kci.config.facts import BACKENDS, has_compiler
from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import HEADER_ENDINGS
from kci.matrix.catalog.runners import default_prices
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import active
from kci.plan.plan import Leg, Role
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped

_CUTLASS = "cutlass"


class _Estimates(Dated):
    object: dict[str, int]
    spread: float
    fixed: int
    link: int

    def around(self, minutes: int) -> tuple[int, int]:
        """The least and most minutes that an estimate stands for."""
        compiling = minutes - self.fixed
        return self.fixed + int(compiling / self.spread), self.fixed + math.ceil(
            compiling * self.spread
        )


estimates = shipped("plan/data/estimates.toml", _Estimates)


class Size(NamedTuple):
    """The number of compiled objects of a variant."""

    objects: int
    cutlass: int = 0
    """Those of CUDA components that use CUTLASS."""
    foreign: str = ""
    """A source that no compiler of kci takes."""


def size_of(build: Build, variant: Variant) -> Size:
    """The objects of a variant; a source in several components counts once."""
    if variant.kind is Kind.NOARCH:
        return Size(0)
    framework = build.torch or build.tvm_ffi
    listed = [(framework.src, False)] if framework is not None else []
    for part in active(build, variant).values():
        cutlass = any(name.startswith(_CUTLASS) for name in part.depends)
        listed.append((part.src, cutlass and BACKENDS[variant.backend].compiler == "nvcc"))
    objects: dict[str, bool] = {}
    for sources, cutlass in listed:
        for source in sources:
            if not source.lower().endswith(HEADER_ENDINGS):
                objects.setdefault(source, cutlass)
    foreign = next((source for source in objects if not has_compiler(source)), "")
    return Size(len(objects), sum(objects.values()), foreign)


def sizes(kernels: Iterable[Kernel], matrix: Matrix) -> dict[tuple[str, str], Size]:
    """The objects of each variant of a matrix, by kernel and variant name."""
    by_path = {kernel.directory: kernel for kernel in kernels}
    by_variant: dict[tuple[str, str], Size] = {}
    for selected in matrix.kernels:
        cache: dict[tuple[object, ...], Size] = {}
        for variant in selected.each_once():
            alike = (variant.kind, variant.backend, variant.compute)
            if alike not in cache:
                cache[alike] = size_of(by_path[selected.path].build, variant)
            by_variant[selected.name, variant.name] = cache[alike]
    return by_variant


def estimate_minutes(size: Size, backend: str, compilers: Callable[[bool], int]) -> int | None:
    """The minutes of a variant, None for a backend without a figure; `compilers` run at once, with
    CUTLASS or not.
    """
    data = estimates()
    if backend not in data.object:
        return None
    plain = size.objects - size.cutlass
    seconds = plain * data.object[backend] / max(1, min(plain, compilers(False)))
    seconds += size.cutlass * data.object[_CUTLASS] / max(1, min(size.cutlass, compilers(True)))
    return data.fixed + math.ceil(seconds / 60)


class Part(Frozen):
    """The share of one kernel, backend and system in an estimate."""

    kernel: str
    backend: str
    system: str
    legs: int
    minutes: int
    costs: dict[str, float]


class Estimate(Frozen):
    """The estimate of a plan."""

    legs: int
    minutes: int
    at_least: int
    at_most: int
    """The range of `minutes`; see `Leg`."""
    measured: int
    costs: dict[str, float]
    """By currency, of legs with a price."""
    costs_at_most: dict[str, float]
    """For `at_most`; `--max-cost` limits it."""
    prices_as_of: str
    unpriced: int
    waves: int
    """The number of times that the fullest pool is filled; pools of unknown size start all legs at
    once."""
    wall_minutes: int
    """From the first start to the last end, with free pools."""
    wall_at_least: int
    wall_at_most: int
    parts: tuple[Part, ...]


def estimate(legs: Sequence[Leg]) -> Estimate:
    """Estimate a run, in whole minutes, as GitHub bills each job."""
    grouped: dict[tuple[str, str, str], list[Leg]] = {}
    for leg in legs:
        grouped.setdefault((leg.kernel, leg.backend, leg.system), []).append(leg)
    parts = [
        Part(*key, legs=len(same), minutes=sum(leg.minutes for leg in same), costs=_costs(same))
        for key, same in grouped.items()
    ]
    parts.sort(
        key=lambda part: (
            -sum(part.costs.values()),
            -part.minutes,
            part.kernel,
            part.backend,
            part.system,
        )
    )
    waves, wall = simulate(legs)
    least, most = (
        simulate([msgspec.structs.replace(leg, minutes=leg.ends[end]) for leg in legs])[1]
        for end in (0, 1)
    )
    return Estimate(
        legs=len(legs),
        minutes=sum(leg.minutes for leg in legs),
        at_least=sum(leg.ends[0] for leg in legs),
        at_most=sum(leg.ends[1] for leg in legs),
        measured=sum(leg.measured for leg in legs),
        costs=_costs(legs),
        costs_at_most=_costs(legs, at_most=True),
        prices_as_of=str(default_prices().as_of),
        unpriced=sum(leg.rate is None for leg in legs),
        waves=waves,
        wall_minutes=wall,
        wall_at_least=least,
        wall_at_most=most,
        parts=tuple(parts),
    )


def _costs(legs: Iterable[Leg], *, at_most: bool = False) -> dict[str, float]:
    by_currency: dict[str, list[float]] = {}
    for leg in legs:
        if leg.rate is not None:
            by_currency.setdefault(leg.currency, []).append(
                (leg.ends[1] if at_most else leg.minutes) * leg.rate
            )
    return {
        currency: round(math.fsum(by_currency[currency]), 3) for currency in sorted(by_currency)
    }


def start_minutes(legs: Sequence[Leg]) -> list[int]:
    """The start minute of each leg if each pool takes its longest legs first and links after their
    parts.
    """
    start_times = [0] * len(legs)
    ends: dict[tuple[str, str], int] = {}
    machines = {
        pool: [0] * min(pool.size or many, many)
        for pool, many in Counter(leg.pool for leg in legs).items()
    }
    for links in (False, True):
        batch = [
            (
                max((ends.get((leg.kernel, name), 0) for name in leg.takes), default=0),
                -leg.minutes,
                leg.kernel,
                leg.name,
                index,
            )
            for index, leg in enumerate(legs)
            if (leg.role is Role.LINK) is links
        ]
        for ready, *_, index in sorted(batch):
            leg, busy = legs[index], machines[legs[index].pool]
            start_times[index] = max(busy[0], ready)
            ends[leg.kernel, leg.name] = start_times[index] + leg.minutes
            heapq.heapreplace(busy, ends[leg.kernel, leg.name])
    return start_times


def simulate(legs: Sequence[Leg]) -> tuple[int, int]:
    """The waves and wall-clock minutes of a run that starts legs as `start_minutes`."""
    pools = Counter(leg.pool for leg in legs)
    waves = max(
        (-(-many // min(pool.size or many, many)) for pool, many in pools.items()), default=0
    )
    return waves, max(
        (start + leg.minutes for start, leg in zip(start_minutes(legs), legs, strict=True)),
        default=0,
    )
