"""Which GPU architectures a component is built for at a toolkit version (docs/format.md#cuda-capabilities)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from kci.config.document import KeyPath
from kci.config.facts import BACKENDS, BackendFacts
from kci.config.model import Build, Component
from kci.config.reader import Kernel
from kci.config.values import Version
from kci.matrix.catalog.rows import ArchTables, arch_tables
from kci.matrix.variants import Kind

PTX = "+PTX"


def too_old(component: Component, compute: Version | None) -> bool:
    """True if a toolkit is older than the component accepts, so that the component is left out."""
    return component.minver is not None and compute is not None and compute < component.minver


def arch_lists(kernel: Kernel) -> Iterator[tuple[BackendFacts, KeyPath, tuple[str, ...]]]:
    """Every list of archs that a build.toml has, with its place. Empty ones count as none."""
    for label, part in kernel.build.kernel.items():
        if part.archs:
            yield BACKENDS[part.backend], ("kernel", label, BACKENDS[part.backend].archs), part.archs
    for backend, facts in BACKENDS.items():
        noarch = kernel.build.torch_noarch
        if noarch is not None and (entries := noarch.archs(backend)):
            written = kernel.document.data["torch-noarch"]
            key = facts.archs if facts.archs in written else facts.archs.replace("-", "_")
            yield facts, ("torch-noarch", key), entries


def component_archs(component: Component, compute: Version, tables: ArchTables | None = None) -> tuple[str, ...]:
    """The archs that one component is compiled for, in natural order; empty for a backend without any.

    An empty list counts as none, as in the reference. The result is empty for a component that its `cuda-minver` leaves
    out at this toolkit, and for one whose list has nothing that the toolkit can build (which the build then refuses).
    """
    tables = tables or arch_tables()
    if too_old(component, compute):
        return ()
    if not BACKENDS[component.backend].capabilities:
        names = tables.names.get(BACKENDS[component.backend].archs, ())
        return tuple(sorted(set(component.archs) & set(names))) if component.archs else names
    default = tables.cuda_default(compute)
    return intersect_capabilities(component.archs, default, exact=tables.exact) if component.archs else default


def variant_archs(
    build: Build, kind: Kind, backend: str, compute: Version | None, tables: ArchTables | None = None
) -> tuple[str, ...] | None:
    """The archs that a variant's metadata lists, in the order in which it lists them; None where it lists none.

    For compiled variants: the union over the components, sorted as text. For noarch: the kernel's own list, verbatim.
    """
    if kind is Kind.NOARCH:
        return build.torch_noarch.archs(backend) if build.torch_noarch is not None else None
    if compute is None or not BACKENDS[backend].archs:
        return None
    parts = build.components(backend).values()
    return tuple(sorted({arch for part in parts for arch in component_archs(part, compute, tables)}))


@lru_cache(maxsize=4096)  # a repository has many components and few different lists
def intersect_capabilities(wanted: tuple[str, ...], default: tuple[str, ...], *, exact: bool) -> tuple[str, ...]:
    """The reference's intersection of a component's capabilities with a toolkit's default list, in natural order.

    An entry with an `a` or `f` suffix is kept if its base is in the list, and takes that base away from the plain
    entries. Of these, exactly: the ones that are among the bases which are left. Loosely, as before 26 August 2026:
    each base that is left picks the largest plain entry not above it, of the same major version unless that entry
    asked for PTX. The `+PTX` marks of the default list do not count.
    """
    ptx = {entry.removesuffix(PTX) for entry in wanted if entry.endswith(PTX)}
    entries = {entry.removesuffix(PTX) for entry in wanted}
    targets = {entry.removesuffix(PTX) for entry in default}
    suffixed = {entry for entry in entries if entry.endswith(("a", "f"))}
    result = {entry for entry in suffixed if entry[:-1] in targets}
    targets -= {entry[:-1] for entry in result}
    if exact:
        result |= entries & targets
    else:
        plain = sorted(entries - suffixed, key=natural)
        for target in targets:
            below = [entry for entry in plain if natural(entry) <= natural(target)]
            result.update([entry for entry in below if _major(entry) == _major(target) or entry in ptx][-1:])
    return tuple(sorted((entry + PTX if entry in ptx else entry for entry in result), key=natural))


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which numbers inside a text compare as numbers: 9.0 before 10.0."""
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts if part)


def _major(capability: str) -> str:
    return capability.partition(".")[0]
