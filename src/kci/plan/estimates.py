"""How long a variant takes: recorded minutes, else a range by backend and number of objects."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import HEADER_ENDINGS
from kci.errors import rule_error
from kci.matrix.catalog.runners import BuildDefaults, Runner
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import active
from kci.utils.bounded_json import read_json, require_schema
from kci.utils.shipped import Dated, shipped

SCHEMA = 1
Seconds = Annotated[float, Meta(ge=0, le=5 * 24 * 3600)]
"""No job runs longer than GitHub lets a self-hosted runner work."""


class Duration(msgspec.Struct, frozen=True, order=True):
    """What building one variant took."""

    kernel: str
    variant: str
    seconds: Seconds


class _File(msgspec.Struct, frozen=True):
    schema: int
    durations: tuple[Duration, ...]


def recorded_minutes(entries: Iterable[Duration]) -> dict[tuple[str, str], int]:
    """What each variant took, by kernel and name: the median in whole minutes, rounded up."""
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        found.setdefault((entry.kernel, entry.variant), []).append(entry.seconds)
    return {key: max(1, math.ceil(statistics.median(seconds) / 60)) for key, seconds in found.items()}


def read_durations(path: Path) -> tuple[Duration, ...]:
    """Read a file of recorded durations; FindingsError (KCI611) if it cannot be read, or holds something else."""
    try:
        read = read_json(path, _File)
        require_schema(read.schema, SCHEMA)
        return read.durations
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not a file of recorded durations: {error}"
    raise rule_error("KCI611", message, hint="remove the file; the plan then uses kci's estimates", path=str(path))


def encode(earlier: Iterable[Duration], latest: Iterable[Duration]) -> bytes:
    """The bytes of a file with the earlier durations and, in place of those of the same variant, the latest."""
    entries = {(entry.kernel, entry.variant): entry for entry in (*earlier, *latest)}
    text = msgspec.json.encode(_File(SCHEMA, tuple(sorted(entries.values()))))
    return msgspec.json.format(text, indent=2) + b"\n"


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
