"""The GPU architectures of a component at a toolkit version (docs/format.md#cuda-capabilities)."""

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
    """The non-empty arch lists of a build.toml, with their places."""
    for label, part in kernel.build.kernel.items():
        if part.archs:
            facts = BACKENDS[part.backend]
            yield facts, ("kernel", label, facts.archs), part.archs
    for backend, facts in BACKENDS.items():
        noarch = kernel.build.torch_noarch
        if noarch is not None and (entries := noarch.archs(backend)):
            written = kernel.document.data["torch-noarch"]
            key = facts.archs if facts.archs in written else facts.archs.replace("-", "_")
            yield facts, ("torch-noarch", key), entries


def component_archs(
    component: Component, compute: Version, tables: ArchTables | None = None
) -> tuple[str, ...]:
    """The archs of a component, in natural order; an empty list in build.toml means the default."""
    tables = tables or arch_tables()
    if too_old(component, compute):
        return ()
    facts = BACKENDS[component.backend]
    if not facts.capabilities:
        names = tables.names.get(facts.archs, ())
        return tuple(sorted(set(component.archs) & set(names))) if component.archs else names
    default = tables.cuda_default(compute)
    return (
        intersect_capabilities(component.archs, default, exact=tables.exact)
        if component.archs
        else default
    )


def variant_archs(
    build: Build,
    kind: Kind,
    backend: str,
    compute: Version | None,
    tables: ArchTables | None = None,
) -> tuple[str, ...] | None:
    """The archs in a variant's metadata: the sorted union of its components, a noarch list
    verbatim, or None.
    """
    if kind is Kind.NOARCH:
        return build.torch_noarch.archs(backend) if build.torch_noarch is not None else None
    if compute is None or not BACKENDS[backend].archs:
        return None
    parts = build.components(backend).values()
    return tuple(
        sorted({arch for part in parts for arch in component_archs(part, compute, tables)})
    )


@lru_cache(maxsize=4096)  # a repository has many components and few different lists
def intersect_capabilities(
    capabilities: tuple[str, ...], default: tuple[str, ...], *, exact: bool
) -> tuple[str, ...]:
    """The reference's intersection of a component's capabilities with a toolkit's default list, in
    natural order.

    An entry with suffix `a` or `f` stays if its base is in the default list, and removes that base
    for plain entries. Of plain entries, `exact` keeps the remaining bases. Otherwise, as before 26
    August 2026, each remaining base picks the largest plain entry not above it, of the same major
    version or with PTX. `+PTX` in the default list does not count.
    """
    ptx = {entry.removesuffix(PTX) for entry in capabilities if entry.endswith(PTX)}
    entries = {entry.removesuffix(PTX) for entry in capabilities}
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
            result.update(
                [entry for entry in below if _major(entry) == _major(target) or entry in ptx][-1:]
            )
    return tuple(sorted((entry + PTX if entry in ptx else entry for entry in result), key=natural))


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key with numbers compared as numbers: 9.0 before 10.0."""
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts if part)


def _major(capability: str) -> str:
    return capability.partition(".")[0]
