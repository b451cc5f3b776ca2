"""How long a variant takes: a range by backend and number of objects."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import HEADER_ENDINGS
from kci.matrix.catalog.runners import BuildDefaults, Runner
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import active
from kci.utils.shipped import Dated, shipped

_CUTLASS = "cutlass"


class _Estimates(Dated, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    fixed: int
    link: int
    unknown: tuple[float, float]
    object: dict[str, tuple[float, float]]


estimates = shipped("plan/data/estimates.toml", _Estimates)
"""The table of ranges."""


class Size(NamedTuple):
    """What is compiled for one variant."""

    objects: int
    cutlass: int = 0
    """How many of them are of CUDA components that depend on CUTLASS."""


class Minutes(NamedTuple):
    """What a leg takes: about so many minutes, at least and at most."""

    about: int
    least: int
    most: int


def size_of(build: Build, variant: Variant) -> Size:
    """How many objects a variant has. A source that several components list is compiled once."""
    framework = build.torch or build.tvm_ffi
    if variant.kind is Kind.NOARCH:
        return Size(0)
    found = dict.fromkeys(_compiled(framework.src) if framework is not None else (), False)
    for part in active(build, variant).values():
        heavy = variant.backend == "cuda" and any(name.startswith(_CUTLASS) for name in part.depends)
        for source in _compiled(part.src):
            found.setdefault(source, heavy)
    return Size(len(found), sum(found.values()))


def _compiled(sources: Iterable[str]) -> Iterable[str]:
    return (source for source in sources if not source.lower().endswith(HEADER_ENDINGS))


def sizes(kernels: Iterable[Kernel], matrix: Matrix) -> dict[tuple[str, str], Size]:
    """How many objects every variant of a matrix has, by kernel and variant name."""
    by_path = {kernel.directory: kernel for kernel in kernels}
    found: dict[tuple[str, str], Size] = {}
    for selected in matrix.kernels:
        known: dict[tuple[object, ...], Size] = {}
        for variant in selected.each_once():
            alike = (variant.kind, variant.backend, variant.compute)
            if alike not in known:
                known[alike] = size_of(by_path[selected.path].build, variant)
            found[selected.name, variant.name] = known[alike]
    return found


def estimated(size: Size | None, backend: str, build: BuildDefaults, runner: Runner, max_jobs: int | None) -> Minutes:
    """What a variant takes on a machine: no more of its compilers run at once than there is memory for.

    The middle of the range is the one that is as many times the least as the most is of it.
    """
    data = estimates()
    each = data.object.get(backend)
    if size is None or each is None:
        least, most = (build.minutes * times for times in data.unknown)
        return Minutes(build.minutes, max(1, round(least)), math.ceil(most))
    kinds = (
        (size.objects - size.cutlass, each, build.memory),
        (size.cutlass, data.object[_CUTLASS], build.memory_cutlass or build.memory),
    )
    cores = min(runner.cpus, max_jobs or runner.cpus)
    ends = [
        data.fixed
        + math.fsum(
            count * seconds[end] / 60 / max(1, min(cores, count, runner.memory_gb // memory if memory else cores))
            for count, seconds, memory in kinds
        )
        for end in (0, 1)
    ]
    return Minutes(math.ceil(math.sqrt(ends[0] * ends[1])), max(1, round(ends[0])), math.ceil(ends[1]))
