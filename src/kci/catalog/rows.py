"""Editions of the catalog: which torch, compute version and system combinations exist, with date and source.

An edition is a TOML file in `data/editions/`, or one that a user names with `--catalog`. `kci.catalog.overlay` changes
an edition for a repository or a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kci.catalog.arch_tables import ArchTables, arch_tables
from kci.config.document import Document, KeyPath, read_document, refuse
from kci.config.model import decode_value
from kci.config.overlay_tables import RowTable
from kci.config.values import SYSTEMS, Backend, Version
from kci.diagnostics import finding
from kci.errors import UsageError
from kci.files.typed_data import to_type

if TYPE_CHECKING:
    from kci.catalog.overlay import Overlay

DEFAULT_EDITION = "2026-09-17"
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
        span = self.document.value_span(self.place)
        return self.document.path, span.line if span else 0


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


def editions() -> list[str]:
    """The names of the editions that kci ships, oldest first."""
    return sorted(file.stem for file in _EDITIONS.glob("*.toml"))


def load_catalog(name: str | None = None) -> Catalog:
    """Load an edition by its name, or a file (an edition or an overlay) by its path; the default edition for None.

    Raises:
        UsageError: there is no such edition.
        FindingsError: the file is not a catalog.
    """
    if name is None or name in editions():
        return _shipped(name or DEFAULT_EDITION)
    if not Path(name).is_file():
        known = ", ".join(editions())
        raise UsageError(f"{name!r} is neither a catalog file nor an edition", hint=f"the editions are {known}")
    document = read_document(Path(name), name)
    from kci.catalog.overlay import apply, is_overlay, read_overlay  # noqa: PLC0415  - most runs have none

    if is_overlay(document):
        overlay = read_overlay(document)
        return apply(load_catalog(overlay.edition), overlay)
    return interpret_edition(document)


@cache
def _shipped(edition: str) -> Catalog:
    """An edition that comes with kci; read once, however many kernels ask for it."""
    return interpret_edition(read_document(_EDITIONS / f"{edition}.toml", f"catalog/{edition}.toml"))


class _CatalogFile(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    name: str
    as_of: str
    source: str
    row: tuple[RowTable, ...]
    neighbors: tuple[str, ...] = ()


def interpret_edition(document: Document) -> Catalog:
    """Turn a parsed TOML file into a catalog.

    Raises:
        FindingsError: it is none (KCI120); it carries everything that is wrong.
    """
    data = document.data
    if isinstance(data.get("as-of"), date):
        data = {**data, "as-of": data["as-of"].isoformat()}
    table = convert_table(document, data, _CatalogFile)
    try:
        date.fromisoformat(table.as_of)
    except ValueError:
        span = document.value_span(("as-of",))
        message = f"`as-of` must be a date, not {table.as_of!r}"
        raise refuse(finding("KCI120", message, hint="such as 2026-08-20", path=document.path, span=span)) from None
    rows = expand(document, table.row, (), table.name)
    return Catalog(table.name, table.as_of, table.source, rows, table.neighbors, document)


_Table = TypeVar("_Table", bound=msgspec.Struct)
_SHAPE = "`kci catalog show --format toml` prints one to compare with"


def convert_table(document: Document, data: dict[str, Any], schema: type[_Table], place: KeyPath = ()) -> _Table:
    """Read a table of a catalog or overlay file as what it should be.

    Args:
        document: the file, for places.
        data: the table.
        schema: the struct that it should be.
        place: where in the file it is.

    Raises:
        FindingsError: it is not (KCI120); it carries everything that is wrong.
    """
    try:
        return to_type(data, schema, dec_hook=decode_value)
    except (msgspec.ValidationError, RecursionError) as error:
        from kci.config.mismatch import explain  # noqa: PLC0415  - only for files that failed

        found = explain(document, data, schema, place)
        problems = [msgspec.structs.replace(problem, rule="KCI120") for problem in found]
        fallback = finding("KCI120", f"not a catalog: {error}", path=document.path, hint=_SHAPE)
        raise refuse(*problems or [fallback]) from None


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
            raise refuse(finding("KCI120", message, path=document.path, span=document.key_span(at)))
        for position, system in enumerate(entry.systems):
            if system not in SYSTEMS:
                span = document.value_span((*at, "systems", position))
                hint = f"one of: {', '.join(SYSTEMS)}"
                raise refuse(finding("KCI120", f"{system!r} is not a system", hint=hint, path=document.path, span=span))
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


def outside_range(catalog: Catalog) -> tuple[list[Row], list[Removed]]:
    """The rows outside a catalog's supported range, which the compat tier builds; and those that its overlays remove.

    They are the catalog's rows that are not bundled, and rows of its neighbor editions: those of the next older and the
    next newer torch, and those of a supported torch with a compute version that the catalog does not have for it. The
    overlays narrow these rows too.
    """
    rows = list(_outside_range(catalog))
    if not catalog.overlays:
        return rows, []
    from kci.catalog.overlay import narrowed  # noqa: PLC0415  - most runs have none

    own = {removed.row.key for removed in catalog.removed}
    rows = [row for row in rows if row.key not in own]
    table = [*catalog.rows, *(removed.row for removed in catalog.removed)]
    gone: list[Removed] = []
    for overlay in catalog.overlays:
        rows, removed = narrowed(overlay, rows, among=table)
        gone += removed
    return rows, gone


def _outside_range(catalog: Catalog) -> Iterator[Row]:
    seen = {row.key for row in catalog.rows if row.bundled}
    supported = sorted({row.torch for row in catalog.rows if row.bundled})
    for row in catalog.rows:
        if row.key not in seen:
            seen.add(row.key)
            yield row
    for name in catalog.neighbors:
        neighbor = load_catalog(name)
        torches = sorted({row.torch for row in neighbor.rows})
        below = [torch for torch in torches if supported and torch < supported[0]][-1:]
        above = [torch for torch in torches if supported and torch > supported[-1]][:1]
        for row in neighbor.rows:
            if row.key not in seen and row.torch in (*below, *above, *supported):
                seen.add(row.key)
                yield row
