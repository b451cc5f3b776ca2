"""Editions of the catalog: which torch, compute version and system combinations exist, and since when we know.

An edition is a TOML file in `data/editions/`, or one that a user names with `--catalog`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kci.config.document import Document, KeyPath, read_document, refuse
from kci.config.values import Backend, Version
from kci.diagnostics import finding
from kci.errors import UsageError

DEFAULT_EDITION = "2026-08-20"
_EDITIONS = Path(__file__).parent / "data" / "editions"


class Row(msgspec.Struct, frozen=True):
    """One toolchain for one system."""

    torch: Version
    backend: Backend
    compute: Version | None
    system: str
    bundled: bool
    tvm_ffi: Version | None
    edition: str
    """The name of the edition that it stands in."""
    place: KeyPath
    """Where it stands there."""

    @property
    def key(self) -> tuple[Version, str, Version | None, str]:
        """What makes it this toolchain, whatever edition it stands in."""
        return (self.torch, self.backend, self.compute, self.system)


class Catalog(msgspec.Struct, frozen=True):
    """One edition: its rows in table order, one per system."""

    name: str
    as_of: str
    source: str
    rows: tuple[Row, ...]
    beside: tuple[str, ...]
    document: Document

    def line(self, row: Row) -> tuple[str, int]:
        """File and line of a row."""
        span = self.document.key_span(row.place)
        return self.document.path, span.line if span else 0


def editions() -> list[str]:
    """The names of the editions that kci ships, oldest first."""
    return sorted(file.stem for file in _EDITIONS.glob("*.toml"))


def load_catalog(name: str | None = None) -> Catalog:
    """Load an edition by its name, or a file by its path; the default edition for None.

    Raises:
        UsageError: there is no such edition.
        FindingsError: the file is no catalog.
    """
    if name is None or name in editions():
        file = f"{name or DEFAULT_EDITION}.toml"
        return read_catalog(_EDITIONS / file, f"catalog/{file}")
    if not Path(name).is_file():
        known = ", ".join(editions())
        raise UsageError(f"{name!r} is neither a catalog file nor an edition", hint=f"the editions are {known}")
    return read_catalog(Path(name), name)


class _RowTable(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    torch: Version
    backend: Backend
    systems: tuple[str, ...]
    compute: tuple[Version, ...] = ()
    bundled: bool = True
    tvm_ffi: Version | None = None


class _CatalogFile(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    name: str
    as_of: Any
    source: str
    row: tuple[_RowTable, ...]
    beside: tuple[str, ...] = ()


def read_catalog(path: Path, shown_as: str) -> Catalog:
    """Read a catalog file; see `load_catalog`."""
    document = read_document(path, shown_as)
    try:
        table = msgspec.convert(document.data, _CatalogFile, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise refuse(finding("KCI120", f"not a catalog: {error}", path=shown_as, hint=_SHAPE)) from None
    rows: list[Row] = []
    for index, entry in enumerate(table.row):
        place: KeyPath = ("row", index)
        if (entry.backend in _VERSIONED) != bool(entry.compute):
            needed = "needs" if not entry.compute else "has no"
            message = f"a {entry.backend} row {needed} `compute` versions"
            raise refuse(finding("KCI120", message, path=shown_as, span=document.key_span(place)))
        for compute in entry.compute or (None,):
            for system in entry.systems:
                rows.append(
                    Row(entry.torch, entry.backend, compute, system, entry.bundled, entry.tvm_ffi, table.name, place)
                )
    return Catalog(table.name, str(table.as_of), table.source, tuple(rows), table.beside, document)


_VERSIONED = (Backend.CUDA, Backend.ROCM, Backend.XPU, Backend.CANN)
_SHAPE = "see the editions that `kci catalog show` prints for the shape of one"


def _decode(_wanted: type, value: Any) -> Version:
    if not isinstance(value, str):
        raise ValueError("expected a version string")
    return Version.parse(value)


def beside(catalog: Catalog) -> Iterator[tuple[Catalog, Row]]:
    """The rows beside an edition's supported window, which the compat tier builds.

    They are the edition's own rows that are not bundled, and from each neighbouring edition the rows of the torch
    release nearest to the window that the window does not have, and of any torch in the window with a compute version
    that it does not have.
    """
    known = {row.key for row in catalog.rows if row.bundled}
    window = sorted({row.torch for row in catalog.rows if row.bundled})
    seen = set(known)
    for row in catalog.rows:
        if row.key not in seen:
            seen.add(row.key)
            yield catalog, row
    for name in catalog.beside:
        neighbour = load_catalog(name)
        torches = sorted({row.torch for row in neighbour.rows})
        below = [torch for torch in torches if window and torch < window[0]][-1:]
        above = [torch for torch in torches if window and torch > window[-1]][:1]
        for row in neighbour.rows:
            if row.key not in seen and row.torch in (*below, *above, *window):
                seen.add(row.key)
                yield neighbour, row
