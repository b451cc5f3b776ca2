"""How much there is to compile in a variant: translation units, architectures, and what they take."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from kci.config.model import Build, CudaComponent, RocmComponent
from kci.config.reader import Kernel
from kci.config.source_kinds import HEADER_ENDINGS, HIP_ENDINGS
from kci.config.values import Version
from kci.files.dated_data import Dated, load_dated
from kci.inputs.kernel_inputs import active
from kci.matrix.archs import component_archs
from kci.matrix.names import Kind
from kci.matrix.variants import Matrix, Variant
from kci.plan.legs import each_once


class Work(msgspec.Struct, frozen=True):
    """What is compiled for one variant."""

    kind: Kind
    cxx: int = 0
    """C++ sources."""
    device: int = 0
    """Sources of device code."""
    codes: int = 0
    """Sources of device code times the architectures that each is compiled for."""

    def seconds(self, cores: int) -> float:
        """What it takes on a machine, roughly: units are shared by cores, but no unit is split."""
        if self.kind is Kind.NOARCH:
            return float(_constants().fixed)
        each = _constants().stable_abi if self.kind is Kind.STABLE_ABI else _constants().full
        total = self.cxx * each.cxx + self.device * each.device + self.codes * each.per_arch
        side_by_side = max(1, min(cores, self.cxx + self.device))
        return _constants().fixed + total / side_by_side


class _Unit(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    cxx: int
    device: int
    per_arch: int


class _Constants(Dated, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    fixed: int
    full: _Unit
    stable_abi: _Unit


@cache
def _constants() -> _Constants:
    return load_dated(Path(__file__).parent / "data" / "work.toml", _Constants)


def work_of(build: Build, variant: Variant) -> Work:
    """What is compiled for a variant."""
    if variant.kind is Kind.NOARCH:
        return Work(variant.kind)
    framework = build.torch or build.tvm_ffi
    cxx = sum(_units(framework.src)) if framework is not None else 0
    device = codes = 0
    for part in active(build, variant).values():
        host, own = _units(part.src)
        if isinstance(part, CudaComponent | RocmComponent) and variant.compute is not None:
            device += own
            codes += own * len(component_archs(part, Version.parse(variant.compute)))
            cxx += host
        else:
            cxx += host + own
    return Work(variant.kind, cxx, device, codes)


def works(kernels: Iterable[Kernel], matrix: Matrix) -> dict[tuple[str, str], Work]:
    """What is compiled for every variant of a matrix, by kernel and variant name."""
    by_path = {kernel.directory: kernel for kernel in kernels}
    return {
        (selected.name, name): work_of(by_path[selected.path].build, variant)
        for selected in matrix.kernels
        for name, variant in each_once(selected)
    }


@lru_cache(maxsize=4096)  # a component has one list and many variants
def _units(sources: tuple[str, ...]) -> tuple[int, int]:
    """How many of some sources are compiled: those without device code, and those with; a list may hold headers too."""
    units = [name for source in dict.fromkeys(sources) if not (name := source.lower()).endswith(HEADER_ENDINGS)]
    device = sum(unit.endswith(HIP_ENDINGS) for unit in units)
    return len(units) - device, device
