"""Estimates of the minutes that a variant takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kci.config.facts import BACKENDS, has_compiler
from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import HEADER_ENDINGS
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import active
from kci.plan.plan import Key
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


def sizes(kernels: Iterable[Kernel], matrix: Matrix) -> dict[Key, Size]:
    """The objects of each variant of a matrix, by kernel and variant name."""
    by_path = {kernel.directory: kernel.build for kernel in kernels}
    return {
        (selected.name, variant.name): size_of(by_path[selected.path], variant)
        for selected in matrix.kernels
        for variant in selected.each_once()
    }


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
