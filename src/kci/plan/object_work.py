"""What the objects of a variant take, roughly, and how they are shared out among parts.

The plan counts by it how many parts there are, and `kci build --part` which objects are in one: every machine comes to
the same shares, from build.toml and the sources alone.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.catalog.runners import Runners, default_runners
from kci.config.model import Build, Component, CudaComponent, RocmComponent
from kci.config.reader import Kernel
from kci.config.values import HEADER_ENDINGS, HIP_ENDINGS, Version
from kci.files.dated_data import Dated, shipped
from kci.inputs.header_names import HeaderNames
from kci.inputs.kernel_inputs import active
from kci.matrix.archs import component_archs
from kci.matrix.names import Kind
from kci.matrix.variants import Matrix, Variant
from kci.plan.measured_objects import measured_like

_TORCH = ("torch/", "ATen/", "c10/", "caffe2/", "pybind11/")
"""The headers that come with torch begin so."""


class ObjectCost(msgspec.Struct, frozen=True):
    """What compiling one source took in an earlier run."""

    seconds: Annotated[float, Meta(ge=0)]
    memory: Annotated[int, Meta(ge=0)] = 0
    """Bytes; 0 if it was not seen."""


Costs = Mapping[str, ObjectCost]
"""By the source as build.toml names it, without `./` and the like."""


class ObjectWork(msgspec.Struct, frozen=True):
    """What compiling one source takes."""

    source: str
    """As build.toml names it."""
    seconds: float
    """Of one core."""
    memory: int = 0
    """The GiB that it usually takes, where that is more than the backend's compilers do; else 0."""
    torch: bool = True
    """Whether it may read headers of torch."""
    recorded: bool = False
    """Whether it took that in an earlier run."""
    measured: bool = False
    """Whether a source like it was measured; see `kci.plan.measured_objects`."""

    @property
    def ends(self) -> tuple[float, float]:
        """What it takes at least and at most, as multiples of `seconds`."""
        known = work_data().range
        return known.recorded if self.recorded else known.measured if self.measured else known.counted

    def as_recorded(self, costs: Costs, usual: int) -> ObjectWork:
        """The same with what it took in an earlier run, if that is known."""
        cost = costs.get(posixpath.normpath(self.source))
        if cost is None:
            return self
        memory = math.ceil(cost.memory / 2**30) if cost.memory > usual else 0 if cost.memory else self.memory
        return ObjectWork(self.source, cost.seconds, memory, self.torch, recorded=True)


class Work(msgspec.Struct, frozen=True):
    """What is compiled for one variant."""

    kind: Kind
    objects: tuple[ObjectWork, ...] = ()

    def seconds(self, cores: int, memory: float = math.inf) -> float:
        """What it takes on a machine of so many GiB, roughly: sources are shared by cores, but none is split."""
        if self.kind is Kind.NOARCH:
            return float(work_data().fixed)
        at_once = max(1, min(cores, len(self.objects)))
        waiting: dict[int, float] = {}
        for each in self.objects:
            waiting[each.memory] = waiting.get(each.memory, 0.0) + each.seconds
        return work_data().fixed + math.fsum(
            seconds / (max(1, min(at_once, memory // gib)) if gib else at_once) for gib, seconds in waiting.items()
        )

    @property
    def ends(self) -> tuple[float, float]:
        """What it takes at least and at most, as multiples of `seconds`."""
        whole = work_data().fixed + math.fsum(each.seconds for each in self.objects)
        least, most = (
            (work_data().fixed * often + math.fsum(each.seconds * each.ends[end] for each in self.objects)) / whole
            for end, often in enumerate(work_data().range.measured)
        )
        return least, most

    @property
    def memory(self) -> int:
        """The GiB of its largest object; 0 for what the backend's compilers usually take."""
        return max((each.memory for each in self.objects), default=0)

    @property
    def recorded(self) -> int:
        """How many of its objects were compiled in an earlier run, and took what is said of them."""
        return sum(each.recorded for each in self.objects)

    def as_recorded(self, costs: Costs, usual: int) -> Work:
        """The same with what sources took in an earlier run; `usual` are the bytes that a compiler takes anyway."""
        return Work(self.kind, tuple(each.as_recorded(costs, usual) for each in self.objects))

    def only(self, *, torch: bool) -> Work:
        """That part of it that reads headers of torch, or that does not."""
        return Work(self.kind, tuple(each for each in self.objects if each.torch is torch))

    def shares(self, parts: int) -> tuple[Work, ...]:
        """The work of each part."""
        named = {each.source: each for each in self.objects}
        told = {each.source: each.seconds for each in self.objects}
        return tuple(Work(self.kind, tuple(named[source] for source in share)) for share in shares(told, parts))


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


class _EachTakes(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    cxx: int
    device: int
    per_arch: int


class _Heavy(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    headers: tuple[str, ...]
    depends: str
    per_arch: int
    memory: int


class _Range(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    recorded: tuple[float, float]
    measured: tuple[float, float]
    kernel: tuple[float, float]
    counted: tuple[float, float]
    unknown: tuple[float, float]


class _Splitting(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    fits: float
    aim: float
    link: int
    worth: int
    long: float


class _WorkData(Dated, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    fixed: int
    full: _EachTakes
    stable_abi: _EachTakes
    cutlass: _Heavy
    range: _Range
    parts: _Splitting


work_data = shipped("plan/data/work.toml", _WorkData)
"""What compiling takes, and when a variant is split."""


def work_of(build: Build, variant: Variant, headers: HeaderNames | None = None) -> Work:
    """What is compiled for a variant.

    With `headers`, what a source reads is known by its includes; without, by what its component depends on.
    FindingsError if a file cannot be read.
    """
    if variant.kind is Kind.NOARCH:
        return Work(variant.kind)
    framework = build.torch or build.tvm_ffi
    found = {} if framework is None else dict(_objects(variant.kind, framework.src, 0, "", headers))
    for part in active(build, variant).values():
        archs, heavy = 0, ""
        if isinstance(part, CudaComponent | RocmComponent) and variant.compute is not None:
            archs = len(component_archs(part, Version.parse(variant.compute)))
            heavy = _heavy(part)
        for source, each in _objects(variant.kind, part.src, archs, heavy, headers):
            found.setdefault(source, each)
    return Work(variant.kind, tuple(found.values()))


def _heavy(part: Component) -> str:
    """How the heavy headers that a component depends on are called; empty for none."""
    wanted = work_data().cutlass.depends
    return wanted if isinstance(part, CudaComponent) and any(name.startswith(wanted) for name in part.depends) else ""


def _objects(
    kind: Kind, sources: Iterable[str], archs: int, heavy: str, headers: HeaderNames | None
) -> Iterable[tuple[str, ObjectWork]]:
    data = work_data()
    stable = kind is not Kind.FULL  # headers of tvm-ffi are as small
    for source in sources:
        if source.lower().endswith(HEADER_ENDINGS):
            continue
        names = headers.of(source) if headers is not None else None
        torch = names is None or any(name.startswith(_TORCH) for name in names)
        device = bool(archs and source.lower().endswith(HIP_ENDINGS))
        large = device and (
            bool(heavy) if names is None else any(name.startswith(data.cutlass.headers) for name in names)
        )
        counted = partial(_counted, device, large)
        if known := measured_like(source, stable=stable, device=device):
            yield source, ObjectWork(source, known.seconds(archs, stable, counted), known.memory, torch, measured=True)
        else:
            yield source, ObjectWork(source, counted(archs, stable), data.cutlass.memory if large else 0, torch)


def _counted(device: bool, large: bool, archs: int, stable: bool) -> float:
    data = work_data()
    each = data.stable_abi if stable else data.full
    return each.device + archs * (data.cutlass.per_arch if large else each.per_arch) if device else each.cxx


def works(
    kernels: Iterable[Kernel],
    matrix: Matrix,
    headers: Callable[[Kernel], HeaderNames] | None = None,
    costs: Mapping[tuple[str, str], Costs] = {},
    runners: Runners | None = None,
) -> dict[tuple[str, str], Work]:
    """What is compiled for every variant of a matrix, by kernel and variant name; raises as `work_of`.

    `costs` are by kernel and backend.
    """
    runners = runners or default_runners()
    by_path = {kernel.directory: kernel for kernel in kernels}
    found: dict[tuple[str, str], Work] = {}
    for selected in matrix.kernels:
        kernel = by_path[selected.path]
        read = headers(kernel) if headers is not None else None
        known: dict[tuple[object, ...], Work] = {}
        for variant in selected.each_once():
            alike = (variant.kind, variant.backend, variant.compute)
            if alike not in known:
                took = costs.get((selected.name, variant.backend), {})
                work = work_of(kernel.build, variant, read)
                known[alike] = work.as_recorded(took, runners.compiler_memory(variant.backend)) if took else work
            found[selected.name, variant.name] = known[alike]
    return found
