"""The next edition of the catalog for a workspace, from pages that are read now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from kci.catalog.listings import read_listing
from kci.catalog.loading import editions, interpret_edition, load_catalog
from kci.catalog.rows import Catalog, Row
from kci.catalog.wheel_index import read_indexes
from kci.config.document import parse_document
from kci.matrix.next_edition import propose
from kci.matrix.reference_table import published_table
from kci.workspace.workspace import Workspace


class NextCatalog(msgspec.Struct, frozen=True):
    """An edition that was proposed."""

    catalog: Catalog
    text: str
    """As a file."""
    unknown: tuple[str, ...]
    """What a person has to find out."""


def next_catalog(
    workspace: Workspace, day: str, indexes: Sequence[str], table: str | None = None, root: Path = Path()
) -> NextCatalog:
    """Propose the edition that follows the one in force.

    Args:
        workspace: the kernels and the catalog in force.
        day: the day of the pages; the edition is named after it.
        indexes: where the wheels of torch are listed: addresses or files.
        table: where the reference's table is; None for none.
        root: what names of files are relative to.

    Raises:
        FindingsError: a page cannot be read, or is not what it should be.
    """
    known = [row for edition in editions() for row in load_catalog(edition).rows]
    published = published_table(read_listing(table, root), table, known) if table is not None else []
    proposal = propose(workspace.catalog, read_indexes(indexes, root), published)
    places = [*indexes, *([table] if table else [])]
    shown = [place if "://" in place else PurePosixPath(Path(place).as_posix()).name for place in places]
    before = workspace.catalog
    neighbors = [before.name] if before.name in editions() else before.neighbors
    text = proposal.toml(name=day, as_of=day, source=", ".join(shown), neighbors=neighbors)
    made = interpret_edition(parse_document(text.encode(), "the proposal"))
    return NextCatalog(made, text, proposal.unknown)


def moved(before: Catalog, after: Catalog) -> bool:
    """Whether users get other toolchains; those that only the compat tier tests come and go more often."""
    return _offered(before.rows) != _offered(after.rows)


def _offered(rows: Sequence[Row]) -> set[tuple[object, ...]]:
    return {(*row.key, row.tvm_ffi) for row in rows if row.bundled}
