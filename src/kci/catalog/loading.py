"""Reading the catalog, an edition that kci ships or a file that a user names with `--catalog`; and how old it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

import msgspec

from kci.catalog.rows import Catalog, Removed, Row, expand
from kci.config.document import Document, read_document, refuse
from kci.config.overlay_tables import RowTable
from kci.config.reader import read_as
from kci.errors import UsageError

DEFAULT_EDITION = "2026-11-23"
_EDITIONS = Path(__file__).parent / "data" / "editions"


def editions() -> list[str]:
    """The names of the editions that kci ships, oldest first."""
    return sorted(file.stem for file in _EDITIONS.glob("*.toml"))


def load_catalog(name: str | None = None, *, within: tuple[str, ...] = ()) -> Catalog:
    """Load an edition by its name, or a file (an edition or an overlay) by its path; the default edition for None.

    Args:
        name: what to load.
        within: the overlays that lead to it.

    Raises:
        UsageError: there is no such edition.
        FindingsError: the file is not a catalog, or an overlay that changes itself (KCI120).
    """
    if name is None or name in editions():
        return _shipped(name or DEFAULT_EDITION)
    if not Path(name).is_file():
        known = ", ".join(editions())
        raise UsageError(f"{name!r} is neither a catalog file nor an edition", hint=f"the editions are {known}")
    document = read_document(Path(name), name)
    from kci.catalog.overlay import apply, is_overlay, read_overlay

    if is_overlay(document):
        overlay = read_overlay(document)
        within = (*within, name)
        if overlay.edition in within:
            message, hint = f"`edition` leads back to {overlay.edition}", f"name one of {', '.join(editions())}"
            raise refuse(document.at_value(("edition",), "KCI120", message, hint))
        return apply(load_catalog(overlay.edition, within=within), overlay)
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
        FindingsError: the file is not an edition (KCI120); the error carries every problem.
    """
    data = document.data
    if isinstance(data.get("as-of"), date):
        data = {**data, "as-of": data["as-of"].isoformat()}
    table = read_as(document, _CatalogFile, data, rule="KCI120")
    try:
        as_of = date.fromisoformat(table.as_of).isoformat()
    except ValueError:
        message = f"`as-of` must be a date, not {table.as_of!r}"
        raise refuse(document.at_value(("as-of",), "KCI120", message, "such as 2026-08-20")) from None
    rows = expand(document, table.row, (), table.name)
    return Catalog(table.name, as_of, table.source, rows, table.neighbors, document)


def outside_range(catalog: Catalog) -> tuple[list[Row], list[Removed]]:
    """The rows outside a catalog's supported range, which the compat tier builds; and those that its overlays remove.

    They are the catalog's rows that are not bundled, and rows of its neighbor editions: those of the next older and the
    next newer torch, and those of a supported torch with a compute version that the catalog does not have for it. The
    overlays narrow these rows too.
    """
    rows = list(_outside_range(catalog))
    if not catalog.overlays:
        return rows, []
    from kci.catalog.overlay import narrowed

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


OUTDATED_DAYS = 56
"""After how many days a catalog is old: torch has a new release about every eight weeks."""


class Freshness(msgspec.Struct, frozen=True):
    """What is known about the age of a catalog."""

    name: str
    as_of: str
    days: int
    """Since its date; negative for one of the future."""
    most: int
    """The days after which it is old."""
    newer: tuple[str, ...]
    """Editions that come with kci and are newer, and not of a day after today; the newest last."""

    @property
    def outdated(self) -> bool:
        """Whether it is old, or a newer one is there."""
        return self.days > self.most or bool(self.newer)


def freshness(catalog: Catalog, today: date, most: int = OUTDATED_DAYS) -> Freshness:
    """How old a catalog is.

    Args:
        catalog: the catalog in force.
        today: the day to compare with.
        most: the days after which it is old.
    """
    as_of = date.fromisoformat(catalog.as_of)
    newer = tuple(name for name in editions() if catalog.as_of < load_catalog(name).as_of <= today.isoformat())
    return Freshness(catalog.name, catalog.as_of, (today - as_of).days, most, newer)
