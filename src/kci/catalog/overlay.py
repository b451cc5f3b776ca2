"""Overlays: what a repository or a kernel changes about an edition of the catalog.

The reference lets a kernel pass a function from the support table to another one. An overlay has the same power, as
data: it replaces the table, adds rows, changes rows, and narrows by expressions. The order is fixed: `replace`, then
`change`, then `keep` and `drop`, then the rows that are added, which nothing narrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kci.catalog.rows import Catalog, Overlay, Removed, Row, RowChange, expand
from kci.catalog.where import Subject, Where, WhereError, parse_where
from kci.config.document import Document, KeyPath, refuse
from kci.config.overlay_tables import OverlayFile, OverlayTable
from kci.config.reader import read_as
from kci.config.values import SYSTEMS, Backend
from kci.diagnostics import Diagnostic, Span, finding

if TYPE_CHECKING:
    from kci.config.find_settings import FoundSettings

FIELDS: dict[str, Sequence[str]] = {
    "backend": [str(backend) for backend in Backend],
    "compute": (),
    "cuda": (),
    "rocm": (),
    "system": SYSTEMS,
    "torch": (),
    "tvm-ffi": (),
    "xpu": (),
}
"""What an expression about rows can name."""


def is_overlay(document: Document) -> bool:
    """Whether a catalog file is an overlay rather than an edition."""
    return bool({"edition", "replace", "keep", "drop", "change"} & document.data.keys())


def read_overlay(document: Document) -> Overlay:
    """Read an overlay that is a separate file.

    Raises:
        FindingsError: the file is not an overlay (KCI120, KCI128); the error carries every problem.
    """
    table = read_as(document, OverlayFile, rule="KCI120")
    return interpret_overlay(document, table, (), table.edition)


def interpret_overlay(document: Document, table: OverlayTable, place: KeyPath, edition: str | None = None) -> Overlay:
    """Turn a table into an overlay.

    Args:
        document: the file of the table.
        table: as read.
        place: where it stands, for example `("overlay", 0)`; empty for a separate file.
        edition: the edition that it is about, where it names one.

    Raises:
        FindingsError: an expression cannot be read (KCI128), or a row is no row (KCI120).
    """
    problems: list[Diagnostic] = []

    def parse(text: str, at: KeyPath) -> Where:
        try:
            return parse_where(text, FIELDS)
        except WhereError as error:
            problems.append(where_problem(document, at, text, error))
            return parse_where("torch != 0", FIELDS)

    keep, drop = (
        tuple((parse(text, (*place, key, index)), (*place, key, index)) for index, text in enumerate(texts))
        for key, texts in (("keep", table.keep), ("drop", table.drop))
    )
    change = tuple(
        RowChange(parse(item.where, (*place, "change", index, "where")), item.bundled, item.tvm_ffi,
               (*place, "change", index))
        for index, item in enumerate(table.change)
    )  # fmt: skip
    if problems:
        raise refuse(*problems)
    rows = expand(document, table.row, place, document.path)
    return Overlay(document, place, edition, table.replace, keep, drop, change, rows)


def overlays_of(found: FoundSettings) -> list[tuple[str | None, Overlay]]:
    """The overlays of a kci.toml, each with the name of the kernel that it is for, or None for every kernel.

    Raises:
        FindingsError: see `interpret_overlay`.
    """
    if found.document is None:
        return []
    document = found.document
    tables = enumerate(found.settings.overlay)
    return [(table.kernel, interpret_overlay(document, table, ("overlay", index))) for index, table in tables]


def for_kernel(catalog: Catalog, overlays: Sequence[tuple[str | None, Overlay]], kernel: str) -> Catalog:
    """The catalog of one kernel: with the overlays that are for it or for every kernel, in order."""
    for name, overlay in overlays:
        if name in (None, kernel):
            catalog = apply(catalog, overlay)
    return catalog


def where_problem(document: Document, place: KeyPath, text: str, error: WhereError) -> Diagnostic:
    """The finding for an expression in a file that cannot be read, at the character that is at fault."""
    span = document.value_span(place)
    if span is not None and span.line == span.end_line and span.end_column - span.column == len(text) + 2:
        column = span.column + 1 + min(error.column, len(text))  # a plain string: one quote, then its characters
        span = Span(span.line, column, span.line, column + 1)
    return finding("KCI128", error.message, hint=error.hint, path=document.path, span=span)


def subject(row: Row) -> Subject:
    """What expressions see of a row."""
    found = {"torch": row.torch.text, "backend": str(row.backend), "system": row.system}
    if row.compute is not None:
        found["compute"] = found[str(row.backend)] = row.compute.text
    if row.tvm_ffi is not None:
        found["tvm-ffi"] = row.tvm_ffi.text
    return found


def apply(catalog: Catalog, overlay: Overlay) -> Catalog:
    """The catalog with an overlay's changes. Rows keep the place that made them, so that they can be explained."""
    if overlay.replace:
        by_replace: KeyPath = (*overlay.place, "replace")
        removed = [Removed(row, "the overlay replaces the table", overlay.document, by_replace) for row in catalog.rows]
        rows: list[Row] = []
    else:
        rows, removed = narrowed(overlay, changed(overlay, catalog.rows), among=catalog.rows)
    added = {row.key: row for row in overlay.rows}
    rows = [added.pop(row.key, row) for row in rows] + list(added.values())
    present = {row.key for row in rows}
    gone = tuple(item for item in (*catalog.removed, *removed) if item.row.key not in present)
    name = f"{catalog.name}+{overlay.document.path}"
    return msgspec.structs.replace(
        catalog,
        name=catalog.name if catalog.name.endswith(f"+{overlay.document.path}") else name,
        rows=tuple(rows),
        overlays=(*catalog.overlays, overlay),
        removed=gone,
    )


def changed(overlay: Overlay, rows: Sequence[Row]) -> list[Row]:
    """The rows with each `[[change]]` applied, in order. A changed row gets the place of its change."""
    found = list(rows)
    for change in overlay.change:
        test = change.where.over([subject(row) for row in rows])
        for index, row in enumerate(found):
            if test(subject(row)):
                found[index] = msgspec.structs.replace(
                    row,
                    bundled=row.bundled if change.bundled is None else change.bundled,
                    tvm_ffi=change.tvm_ffi or row.tvm_ffi,
                    place=change.place,
                    document=overlay.document,
                )
    return found


def narrowed(overlay: Overlay, rows: Sequence[Row], *, among: Sequence[Row]) -> tuple[list[Row], list[Removed]]:
    """What `keep` and `drop` leave of some rows, and what they take out.

    Args:
        overlay: whose `keep` and `drop`.
        rows: to choose from.
        among: the rows among which `newest` and `oldest` are meant.
    """
    subjects = [subject(row) for row in among]
    tests = [(where.over(subjects), True, where, place) for where, place in overlay.keep]
    tests += [(where.over(subjects), False, where, place) for where, place in overlay.drop]
    kept: list[Row] = []
    removed: list[Removed] = []
    for row in rows:
        seen = subject(row)
        by = next(((wanted, where, place) for test, wanted, where, place in tests if test(seen) is not wanted), None)
        if by is None:
            kept.append(row)
            continue
        wanted, where, place = by
        reason = f"the overlay keeps only {where.text}" if wanted else f"the overlay drops {where.text}"
        removed.append(Removed(row, reason, overlay.document, place))
    return kept, removed
