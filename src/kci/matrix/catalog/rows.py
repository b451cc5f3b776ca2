"""The catalog as data: which torch, compute version and system combinations exist, each with its place in a file.

`kci.matrix.catalog.loading` reads editions, and `kci.matrix.catalog.loading` changes one for a repository or a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kci.config.document import Document, KeyPath, refuse
from kci.config.settings import RowTable
from kci.config.values import SYSTEMS, Backend, Version, quoted
from kci.matrix.catalog.arch_tables import ArchTables, arch_tables

if TYPE_CHECKING:
    from kci.matrix.catalog.expressions import Where


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
        if (entry.backend in _VERSIONED) != bool(entry.compute):
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


_VERSIONED = (Backend.CUDA, Backend.ROCM, Backend.XPU, Backend.CANN)
