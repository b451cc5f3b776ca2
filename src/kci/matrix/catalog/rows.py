"""The catalog as data: its rows, each with its place in a file, and the archs that each toolkit targets.

`kci.matrix.catalog.loading` reads editions, and changes one for a repository or a kernel.
"""

from __future__ import annotations

import datetime
import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from kci.config.document import Document, KeyPath, refuse
from kci.config.facts import BACKENDS
from kci.config.settings import RowTable
from kci.config.values import SYSTEMS, Backend, Version, quoted
from kci.utils.shipped import Dated, shipped

if TYPE_CHECKING:
    from kci.matrix.catalog.expressions import Where

OLDEST = datetime.date.min.isoformat()
"""A day before every change that kci knows of."""


class ArchTables(msgspec.Struct, frozen=True):
    """What a build targets by default; also what a component's own list is intersected with."""

    cuda: tuple[tuple[Version, tuple[str, ...]], ...]
    """Capabilities by the lowest toolkit version that they hold for, newest first."""
    names: dict[str, tuple[str, ...]]
    """By key of build.toml, for backends whose archs are names."""
    since: str | None = None
    """The day on which a list of CUDA, or the way it is used, changed last, as far as kci knows."""
    exact: bool = False
    """True if a component's list is intersected with the default one exactly; else loosely."""

    def cuda_default(self, toolkit: Version) -> tuple[str, ...]:
        """The default capabilities at a toolkit version."""
        for minimum, archs in self.cuda:  # asked for each component of each variant
            if minimum <= toolkit:
                return archs
        raise LookupError(f"no list holds for CUDA {toolkit}")


class _CudaArchs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    min: Version
    archs: tuple[str, ...]
    since: datetime.date = datetime.date.min


class _ArchFile(Dated, frozen=True):
    exact_since: datetime.date
    cuda: tuple[_CudaArchs, ...]
    names: dict[str, tuple[str, ...]]


@cache
def arch_tables(as_of: str | None = None) -> ArchTables:
    """The tables that kci ships.

    Args:
        as_of: a day, as an edition of the catalog has it; the tables are those of that day. By default today's.
    """
    table = shipped("matrix/catalog/data/archs.toml", _ArchFile)()
    day = datetime.date.fromisoformat(as_of) if as_of else datetime.date.max
    known = sorted((entry for entry in table.cuda if entry.since <= day), key=lambda entry: (entry.min, entry.since))
    newest = {entry.min: entry.archs for entry in known}
    changes = [*(entry.since for entry in known), *([table.exact_since] if table.exact_since <= day else [])]
    since = max(changes)
    return ArchTables(
        tuple(sorted(newest.items(), reverse=True)),
        table.names,
        None if since == datetime.date.min else since.isoformat(),
        exact=table.exact_since <= day,
    )


_CAPABILITY = re.compile(r"([0-9]{1,2}\.[0-9])([af]?)(?:\+PTX)?", re.ASCII)


class _Toolkit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Version
    capabilities: frozenset[str]
    suffixed: frozenset[str]
    family: frozenset[str]


class _Renamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    since: Version
    old: str
    new: str


class Toolkits(Dated, frozen=True):
    """The toolkits that kci knows, oldest first, and the capabilities that changed their number."""

    toolkit: tuple[_Toolkit, ...]
    renamed: tuple[_Renamed, ...]

    def builds(self, capability: str, version: Version) -> bool:
        """True if a toolkit can generate code for a capability such as `9.0a` or `12.0+PTX`.

        A toolkit that is not in the data counts as the newest one that is not newer.
        """
        known = [entry for entry in self.toolkit if entry.version <= version]
        return _builds(known[-1] if known else self.toolkit[0], capability)

    def ever_built(self, capability: str) -> bool:
        """True if any toolkit can."""
        return any(_builds(entry, capability) for entry in self.toolkit)

    def newest_building(self, capability: str) -> Version:
        """The newest toolkit in the data that can. Raises IndexError: none can."""
        return [entry.version for entry in self.toolkit if _builds(entry, capability)][-1]

    def new_name(self, capability: str, version: Version) -> str:
        """What a capability is called at a toolkit that renamed it, else nothing; a suffix is kept."""
        for entry in self.renamed:
            if capability.startswith(entry.old) and entry.since <= version:
                return entry.new + capability[len(entry.old) :]
        return ""


def _builds(toolkit: _Toolkit, capability: str) -> bool:
    found = _CAPABILITY.fullmatch(capability)
    if found is None:
        return False
    base, suffix = found[1], found[2]
    return base in {"": toolkit.capabilities, "a": toolkit.suffixed, "f": toolkit.family}[suffix]


toolkits = shipped("matrix/catalog/data/toolkits.toml", Toolkits)
"""The data that kci ships."""


class Row(msgspec.Struct, frozen=True):
    """One toolchain for one system."""

    torch: Version
    backend: Backend
    compute: Version | None
    system: str
    bundled: bool
    tvm_ffi: Version | None
    edition: str
    """The name of the edition or overlay that it is in."""
    place: KeyPath
    """Its place there."""
    document: Document
    """The file that it is in."""

    @property
    def key(self) -> tuple[Version, str, Version | None, str]:
        """What makes it this toolchain, whatever edition it is in."""
        return (self.torch, self.backend, self.compute, self.system)

    def line(self) -> tuple[str, int]:
        """File and line."""
        span = self.document.key_span(self.place)
        return self.document.path, span.line if span else 0


class Removed(msgspec.Struct, frozen=True):
    """A row that an overlay takes out of the table, and the place that does it."""

    row: Row
    reason: str
    document: Document
    place: KeyPath

    def line(self) -> tuple[str, int]:
        """File and line of what took it out."""
        return self.document.place(self.place)


class RowChange(msgspec.Struct, frozen=True):
    """What is different about the rows that match."""

    where: Where
    bundled: bool | None
    tvm_ffi: Version | None
    place: KeyPath


class Overlay(msgspec.Struct, frozen=True):
    """A parsed overlay, with the place of every part of it."""

    document: Document
    place: KeyPath
    """Its place in the file; empty for a separate file."""
    edition: str | None
    replace: bool
    keep: tuple[tuple[Where, KeyPath], ...]
    drop: tuple[tuple[Where, KeyPath], ...]
    change: tuple[RowChange, ...]
    rows: tuple[Row, ...]


class Catalog(msgspec.Struct, frozen=True):
    """One edition, perhaps changed by an overlay: its rows in table order, one per system."""

    name: str
    as_of: str
    source: str
    rows: tuple[Row, ...]
    neighbors: tuple[str, ...]
    """Editions from which the compat tier takes rows outside of the supported torch range."""
    document: Document
    """The edition's file."""
    overlays: tuple[Overlay, ...] = ()
    """What changed it, in this order."""
    removed: tuple[Removed, ...] = ()
    """What the overlays took out."""

    @property
    def archs(self) -> ArchTables:
        """The arch lists of the edition's day."""
        return arch_tables(self.as_of)


def expand(document: Document, tables: tuple[RowTable, ...], place: KeyPath, edition: str) -> tuple[Row, ...]:
    """One row for each compute version and system of each `[[row]]`.

    Args:
        document: the file of the tables.
        tables: as read.
        place: the place of the array `row`, without its name.
        edition: the name to give to the rows.

    Raises:
        FindingsError: a system that does not exist, or compute versions where the backend has none (KCI120).
    """
    rows: list[Row] = []
    for index, entry in enumerate(tables):
        at: KeyPath = (*place, "row", index)
        if bool(BACKENDS[entry.backend].compute_prefix) != bool(entry.compute):
            needed = "needs" if not entry.compute else "has no"
            message = f"a {entry.backend} row {needed} `compute` versions"
            raise refuse(document.at_key(at, "KCI120", message))
        for position, system in enumerate(entry.systems):
            if system not in SYSTEMS:
                hint = f"one of: {', '.join(SYSTEMS)}"
                raise refuse(
                    document.at_value((*at, "systems", position), "KCI120", f"{quoted(system)} is not a system", hint)
                )
        for compute in entry.compute or (None,):
            for system in entry.systems:
                rows.append(
                    Row(
                        entry.torch, entry.backend, compute, system, entry.bundled, entry.tvm_ffi,
                        edition, at, document,
                    )
                )  # fmt: skip
    return tuple(rows)
