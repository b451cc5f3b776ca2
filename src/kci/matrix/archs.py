"""Which GPU architectures a component is built for at a toolkit version (docs/format.md#cuda-capabilities)."""

from __future__ import annotations

import re
from functools import lru_cache

from kci.catalog.arch_tables import ArchTables, arch_tables
from kci.config.model import Build, Component, CudaComponent, RocmComponent
from kci.config.values import Backend, Version
from kci.matrix.names import Kind

PTX = "+PTX"


def compiled_components(build: Build, backend: str, compute: Version | None) -> dict[str, Component]:
    """The components compiled for a backend at a toolkit version, in file order (docs/format.md#components)."""
    parts = build.components(backend)
    return {label: part for label, part in parts.items() if not too_old(part, compute)}


def too_old(component: Component, compute: Version | None) -> bool:
    """Whether a toolkit is older than a component's `cuda-minver`, so that the component is left out."""
    minver = component.cuda_minver if isinstance(component, CudaComponent) else None
    return minver is not None and compute is not None and compute < minver


def component_archs(component: Component, compute: Version, tables: ArchTables | None = None) -> tuple[str, ...]:
    """The archs that one CUDA or ROCm component is compiled for, in natural order.

    Empty for a component that its `cuda-minver` leaves out at this toolkit, and for one whose list has nothing that
    the toolkit can build (which the build then refuses).
    """
    tables = tables or arch_tables()
    match component:
        case CudaComponent():
            if too_old(component, compute):
                return ()
            default = tables.cuda_default(compute)
            if component.cuda_capabilities is None:
                return default
            intersect = exact_intersection if tables.exact else intersect_capabilities
            return intersect(component.cuda_capabilities, default)
        case RocmComponent():
            if component.rocm_archs is None:
                return tables.rocm
            return tuple(sorted(set(component.rocm_archs) & set(tables.rocm)))
        case _:
            return ()


def variant_archs(
    build: Build, kind: Kind, backend: str, compute: Version | None, tables: ArchTables | None = None
) -> tuple[str, ...] | None:
    """The archs that a variant's metadata lists, in the order in which it lists them; None where it lists none.

    For compiled variants: the union over the components, sorted as text. For noarch: the kernel's own list, verbatim.
    """
    if backend not in (Backend.CUDA, Backend.ROCM):
        return None
    if kind is Kind.NOARCH:
        if build.torch_noarch is None:
            return None
        cuda = backend == Backend.CUDA
        return build.torch_noarch.cuda_capabilities if cuda else build.torch_noarch.rocm_archs
    if compute is None:
        return None
    parts = build.components(backend).values()
    return tuple(sorted({arch for part in parts for arch in component_archs(part, compute, tables)}))


@lru_cache(maxsize=4096)  # a repository has many components and few different lists
def exact_intersection(wanted: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """The entries of a component's list whose plain form is in a toolkit's default list, in natural order.

    Args:
        wanted: capabilities such as `8.0`, `9.0a`, `12.0+PTX`.
        default: the toolkit's list; its `+PTX` marks do not count.
    """
    targets = {entry.removesuffix(PTX) for entry in default}
    kept = {entry for entry in wanted if entry.removesuffix(PTX).rstrip("af") in targets}
    plain = {entry for entry in kept if entry + PTX in kept}  # `8.0` beside `8.0+PTX` asks for nothing more
    return tuple(sorted(kept - plain, key=natural))


@lru_cache(maxsize=4096)
def intersect_capabilities(wanted: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """The reference's loose intersection of a component's capabilities with a toolkit's default list, of earlier days.

    An entry with an `a` or `f` suffix is kept if its base is in the list, and takes that base away from the others.
    Each base that is left picks the largest plain entry not above it, of the same major version unless that entry
    asked for PTX. Entries therefore need not be in the list literally, and a plain entry next to its suffixed form
    disappears.

    Args:
        wanted: capabilities such as `8.0`, `9.0a`, `12.0+PTX`.
        default: the toolkit's list; its `+PTX` marks do not count.

    Returns:
        The result in natural order, each once; empty if nothing fits.
    """
    ptx = {entry.removesuffix(PTX) for entry in wanted if entry.endswith(PTX)}
    plain = dict.fromkeys(entry.removesuffix(PTX) for entry in wanted)
    targets = dict.fromkeys(entry.removesuffix(PTX) for entry in default)
    result: set[str] = set()
    for entry in [entry for entry in plain if entry.endswith(("a", "f"))]:
        del plain[entry]
        if entry[:-1] in targets:
            result.add(entry)
            del targets[entry[:-1]]
    candidates = sorted(plain, key=natural)
    for target in targets:
        best = None
        for entry in candidates:
            if natural(entry) > natural(target):
                break
            if _major(entry) == _major(target) or entry in ptx:
                best = entry
        if best is not None:
            result.add(best)
    return tuple(sorted((entry + PTX if entry in ptx else entry for entry in result), key=natural))


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which numbers inside a text compare as numbers: 9.0 before 10.0."""
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts if part)


def _major(capability: str) -> str:
    return capability.partition(".")[0]
