"""Editions of the catalog; overlays change them: `replace`, `keep` and `drop`, then added rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from kci.config.discovery import RepositorySettings
from kci.config.document import Document, KeyPath, read_document, refuse
from kci.config.facts import VERSIONED
from kci.config.reader import read_as
from kci.config.settings import EditionRow, OverlayFile, OverlayTable
from kci.config.values import SYSTEMS, Backend
from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import UsageError
from kci.matrix.catalog.expressions import Subject, WhereError, parse_where
from kci.matrix.catalog.rows import Catalog, Decision, Overlay, Row, expand
from kci.matrix.variants import Variant
from kci.utils.frozen import Frozen

FIELDS: dict[str, Sequence[str]] = {
    "backend": [str(backend) for backend in Backend],
    "system": SYSTEMS,
    **dict.fromkeys(["compute", "torch", "tvm-ffi", *VERSIONED], ()),
}


def read_overlay(document: Document) -> Overlay:
    """Read an overlay file; FindingsError (KCI120, KCI128) has all problems."""
    table = read_as(document, OverlayFile, rule="KCI120")
    return interpret_overlay(document, table, (), table.edition)


def interpret_overlay(
    document: Document, table: OverlayTable, place: KeyPath, edition: str | None = None
) -> Overlay:
    """Parse an overlay table at `place`, empty for a file; FindingsError for an expression (KCI128)
    or row (KCI120).
    """
    problems, filters = [], []
    for key, texts in (("keep", table.keep), ("drop", table.drop)):
        for index, text in enumerate(texts):
            at: KeyPath = (*place, key, index)
            try:
                filters.append((parse_where(text, FIELDS), key == "keep", at))
            except WhereError as error:
                problems.append(where_problem(document, at, text, error))
    if problems:
        raise refuse(*problems)
    rows = expand(document, table.row, place)
    return Overlay(document, place, edition, table.replace, tuple(filters), rows)


def overlays_of(settings: RepositorySettings) -> list[tuple[str | None, Overlay]]:
    """The overlays of a kci.toml, each with its kernel's name or None for all; raises as
    `interpret_overlay`.
    """
    if settings.document is None:
        return []
    document = settings.document
    tables = enumerate(settings.settings.overlay)
    return [
        (table.kernel, interpret_overlay(document, table, ("overlay", index)))
        for index, table in tables
    ]


def for_kernel(
    catalog: Catalog, overlays: Sequence[tuple[str | None, Overlay]], kernel: str
) -> Catalog:
    """The catalog with the overlays for one kernel applied in order."""
    for name, overlay in overlays:
        if name in (None, kernel):
            catalog = apply_overlay(catalog, overlay)
    return catalog


def where_problem(document: Document, place: KeyPath, text: str, error: WhereError) -> Diagnostic:
    """KCI128 for an invalid expression in a file, at the column of the error."""
    span = document.value_span(place)
    if (
        span is not None
        and span.line == span.end_line
        and span.end_column - span.column == len(text) + 2
    ):
        column = (
            span.column + 1 + min(error.column, len(text))
        )  # a plain string: one quote, then its characters
        span = Span(span.line, column, span.line, column + 1)
    return finding("KCI128", error.message, document.path, hint=error.hint, span=span)


def subject(item: Row | Variant) -> Subject:
    """A row or variant as a subject of expressions."""
    names = ("name", "kind", "backend", "system", "torch", "compute", "stable-abi", "tvm-ffi")
    fields = {name: getattr(item, name.replace("-", "_"), None) for name in names}
    fields[str(item.backend)] = item.compute
    return {name: str(value) for name, value in fields.items() if value is not None}


def apply_overlay(catalog: Catalog, overlay: Overlay) -> Catalog:
    """The catalog with an overlay applied; each row keeps the place that made it."""
    if overlay.replace:
        place = overlay.document.place((*overlay.place, "replace"))
        replaced = Decision("KCI213", "the overlay replaces the table", place=place)
        removed = [(row, replaced) for row in catalog.rows]
        rows: list[Row] = []
    else:
        rows, removed = filter_rows(overlay, catalog.rows, among=catalog.rows)
    added = {row.key: row for row in overlay.rows}
    rows = [added.pop(row.key, row) for row in rows] + list(added.values())
    present = {row.key for row in rows}
    gone = tuple(item for item in (*catalog.removed, *removed) if item[0].key not in present)
    added_name = f"+{overlay.document.path}"
    return replace(
        catalog,
        name=catalog.name.removesuffix(added_name) + added_name,
        rows=tuple(rows),
        overlays=(*catalog.overlays, overlay),
        removed=gone,
    )


def filter_rows(
    overlay: Overlay, rows: Sequence[Row], *, among: Sequence[Row]
) -> tuple[list[Row], list[tuple[Row, Decision]]]:
    """The rows that `keep` and `drop` of an overlay leave, and the others; `newest` and `oldest`
    refer to `among`.
    """
    subjects = [subject(row) for row in among]
    removed = []
    for where, keeps, place in overlay.filters:
        test, what = where.over(subjects), "keeps only" if keeps else "drops"
        decision = Decision(
            "KCI213", f"the overlay {what} {where.text}", place=overlay.document.place(place)
        )
        removed += [(row, decision) for row in rows if test(subject(row)) is not keeps]
        rows = [row for row in rows if test(subject(row)) is keeps]
    return list(rows), removed


DEFAULT_EDITION = "2026-11-23"
_EDITIONS = Path(__file__).parent / "data" / "editions"


def editions() -> list[str]:
    """The names of kci's editions, oldest first."""
    return sorted(file.stem for file in _EDITIONS.glob("*.toml"))


def load_catalog(name: str | None = None, *, within: tuple[str, ...] = ()) -> Catalog:
    """Load an edition by name, or a catalog or overlay file; None is the default edition.

    `within` are the overlays on the way. UsageError for an unknown name, FindingsError (KCI120) for
    an invalid file or cycle.
    """
    if name is None or name in editions():
        return _shipped(name or DEFAULT_EDITION)
    if not Path(name).is_file():
        names = ", ".join(editions())
        raise UsageError(
            f"{name!r} is neither a catalog file nor an edition", hint=f"the editions are {names}"
        )
    return catalog_of(read_document(Path(name), name), within)


def catalog_of(document: Document, within: tuple[str, ...] = ()) -> Catalog:
    """The catalog of an edition's or overlay's file; raises as `load_catalog`."""
    if not {"edition", "replace", "keep", "drop"} & document.data.keys():
        return interpret_edition(document)
    overlay = read_overlay(document)
    within = (*within, document.path)
    if overlay.edition in within:
        message, hint = (
            f"`edition` leads back to {overlay.edition}",
            f"name one of {', '.join(editions())}",
        )
        raise refuse(document.at_value(("edition",), "KCI120", message, hint))
    return apply_overlay(load_catalog(overlay.edition, within=within), overlay)


@cache
def _shipped(edition: str) -> Catalog:
    return interpret_edition(
        read_document(_EDITIONS / f"{edition}.toml", f"catalog/{edition}.toml")
    )


class _CatalogFile(Frozen, rename="kebab", forbid_unknown_fields=True):
    name: str
    as_of: str
    source: str
    row: tuple[EditionRow, ...]
    neighbors: tuple[str, ...] = ()


def interpret_edition(document: Document) -> Catalog:
    """Parse an edition; FindingsError (KCI120) has all problems."""
    data = document.data
    if isinstance(data.get("as-of"), date):
        data = {**data, "as-of": data["as-of"].isoformat()}
    table = read_as(document, _CatalogFile, data, rule="KCI120")
    try:
        as_of = date.fromisoformat(table.as_of).isoformat()
    except ValueError:
        message = f"`as-of` must be a date, not {table.as_of!r}"
        raise refuse(
            document.at_value(("as-of",), "KCI120", message, "such as 2026-08-20")
        ) from None
    rows = expand(document, table.row, ())
    return Catalog(table.name, as_of, table.source, rows, table.neighbors, document)


def outside_range(catalog: Catalog) -> tuple[list[Row], list[tuple[Row, Decision]]]:
    """The rows of the compat tier outside of the supported torch range, and those that overlays
    remove.

    They are rows that are not bundled, and of neighbor editions the next older and newer torch, and
    supported torch versions with other compute versions.
    """
    rows = _outside_range(catalog)
    own = {row.key for row, _ in catalog.removed}
    rows = [row for row in rows if row.key not in own]
    table = [*catalog.rows, *(row for row, _ in catalog.removed)]
    gone: list[tuple[Row, Decision]] = []
    for overlay in catalog.overlays:
        rows, removed = filter_rows(overlay, rows, among=table)
        gone += removed
    return rows, gone


def _outside_range(catalog: Catalog) -> list[Row]:
    bundled = {row.key for row in catalog.rows if row.bundled}
    supported = sorted({row.torch for row in catalog.rows if row.bundled})
    candidates = list(catalog.rows)
    for neighbor in map(load_catalog, catalog.neighbors):
        torches = sorted({row.torch for row in neighbor.rows})
        below = [torch for torch in torches if supported and torch < supported[0]][-1:]
        above = [torch for torch in torches if supported and torch > supported[-1]][:1]
        candidates += [row for row in neighbor.rows if row.torch in (*below, *above, *supported)]
    first: dict[object, Row] = {}
    for row in candidates:
        if row.key not in bundled:
            first.setdefault(row.key, row)
    return list(first.values())


OUTDATED_DAYS = 56
"""Days: torch has a release about every eight weeks."""


class Freshness(Frozen):
    """The age of a catalog."""

    name: str
    as_of: str
    days: int
    """Days since its date; negative for a future one."""
    newer: tuple[str, ...]

    @property
    def outdated(self) -> bool:
        return self.days > OUTDATED_DAYS or bool(self.newer)


def freshness(catalog: Catalog, today: date) -> Freshness:
    """The age of a catalog on a day."""
    as_of = date.fromisoformat(catalog.as_of)
    newer = tuple(
        name for name in editions() if catalog.as_of < load_catalog(name).as_of <= today.isoformat()
    )
    return Freshness(catalog.name, catalog.as_of, (today - as_of).days, newer)
