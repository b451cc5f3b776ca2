"""`kci catalog`: the toolchain data."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from kci.catalog.consistency import check_catalog, check_overlay
from kci.catalog.listings import usual_listings
from kci.catalog.loading import editions, freshness, interpret_edition, load_catalog
from kci.catalog.overlay import FIELDS, apply, is_overlay, overlays_of, read_overlay, subject
from kci.catalog.where import expression
from kci.cli import DAY, PATH, CommandGroup, FileName, answer_forms
from kci.cli._findings import FORMATS, show_findings
from kci.cli._output import Layout, paragraph, print_json, table
from kci.cli._workspace import CATALOG, KERNELS, TODAY, opened
from kci.config.document import read_document
from kci.config.find_settings import FoundSettings, find_settings
from kci.config.reader import read_as
from kci.config.settings import KCI_TOML, Settings
from kci.diagnostics import Diagnostic
from kci.files.replace import write_atomic
from kci.matrix.next_edition import edition_toml, read_published
from kci.moves.next_catalog import impact, impact_lines, next_catalog
from kci.plurals import count


@click.group("catalog", cls=CommandGroup)
def command() -> None:
    """Show and check the toolchain data: which torch versions, compute versions and systems exist.

    Examples:
        # list the newest toolchains
        kci catalog show --where 'torch == newest'
    """


@command.command("show")
@click.argument("catalog", type=FileName(), required=False)
@click.option("--where", metavar="EXPR", help="Print only rows that match, such as 'cuda>=13.0 and torch==newest'.")
@answer_forms("table", "json", "toml")
def show(catalog: str | None, where: str | None, output: str) -> None:
    """Print an edition of the catalog, or an overlay: a file, or an edition's name (default: the default edition).

    Examples:
        # print the default edition
        kci catalog show
        # print some rows of an older edition
        kci catalog show 2026-08-20 --where 'rocm == newest'
    """
    loaded = load_catalog(catalog)
    if output == "toml":
        document = loaded.overlays[-1].document if loaded.overlays else loaded.document
        click.echo(document.text, nl=False)
        return
    shown = list(loaded.rows)
    if where is not None:
        test = expression(where, FIELDS).over([subject(row) for row in shown])
        shown = [row for row in shown if test(subject(row))]
    rows: list[dict[str, Any]] = [
        {
            "torch": row.torch.text,
            "backend": str(row.backend),
            "compute": row.compute.text if row.compute else None,
            "system": row.system,
            "bundled": row.bundled,
            "tvm_ffi": row.tvm_ffi.text if row.tvm_ffi else None,
        }
        for row in shown
    ]
    if output == "json":
        print_json(name=loaded.name, as_of=loaded.as_of, source=loaded.source, rows=rows)
        return
    click.echo(paragraph(f"{loaded.name} (as of {loaded.as_of}; editions: {', '.join(editions())})"))
    if not rows:
        click.echo("no rows")
        return
    cells = [
        [*("" if value is None else str(value) for value in row.values()), "{}:{}".format(*origin.line())]
        for row, origin in zip(rows, shown, strict=True)
    ]
    layout = Layout(drop=("place", "tvm_ffi", "bundled"), cut=("place",))
    click.echo(table([*rows[0], "place"], cells, layout))


@command.command("check")
@click.argument("file", type=FileName(), required=False)
@answer_forms(*FORMATS)
def check(file: str | None, output: str) -> int:
    """Check that FILE is consistent: an edition, an overlay, or a kci.toml with overlays. Exit 1 if it is not.

    Without FILE it checks every edition that kci ships.

    Examples:
        # check an edition or an overlay
        kci catalog check next.toml
    """
    if file is None:
        found = [diagnostic for name in editions() for diagnostic in check_catalog(load_catalog(name))]
    else:
        found = _check_file(file)
    return show_findings(found, output, what=file or "all editions")


def _check_file(file: str) -> list[Diagnostic]:
    if file in editions() or not Path(file).is_file():
        return check_catalog(load_catalog(file))
    document = read_document(Path(file), file)
    if Path(file).name == KCI_TOML:
        settings = FoundSettings(read_as(document, Settings), Path(file).parent, document)
        base = load_catalog(settings.catalog)
        found: list[Diagnostic] = []
        for kernel, overlay in overlays_of(settings):
            found += check_overlay(base, overlay)
            base = apply(base, overlay) if kernel is None else base
        return found
    if is_overlay(document):
        overlay = read_overlay(document)
        return check_overlay(load_catalog(overlay.edition), overlay)
    return check_catalog(interpret_edition(document))


@command.command("import")
@click.argument("file", type=PATH)
@click.option(
    "--as-of", required=True, type=DAY, metavar="DATE", help="When the table was published, such as 2026-08-20."
)
@click.option("--name", help="The edition's name (default: the date).")
@click.option("--source", help="Where the table came from (default: the file's name).")
def import_(file: Path, as_of: datetime, name: str | None, source: str | None) -> None:
    """Convert FILE, a build-variants.json of the reference builder, to an edition, and print it.

    Examples:
        # convert the reference's table
        kci catalog import build-variants.json --as-of 2026-08-20 > reference.toml
    """
    day = as_of.date().isoformat()
    known = [row for edition in editions() for row in load_catalog(edition).rows]
    published = read_published(file, known)
    click.echo(edition_toml(published, name=name or day, as_of=day, source=source or file.name), nl=False)


@command.command("outdated")
@click.argument("kernel", type=FileName(exists=True), default=".")
@click.option(
    "--days",
    type=click.IntRange(min=0),
    help="The age in days at which a catalog is outdated (default: from kci's data).",
)
@TODAY
@CATALOG
@answer_forms("text", "json")
def outdated(kernel: str, days: int | None, today: datetime | None, catalog: str | None, output: str) -> int:
    """Print the age of KERNEL's catalog, and whether kci has a newer edition. Exit 1 if it is outdated.

    Examples:
        # exit 1 if it is older than 60 days
        kci catalog outdated --days 60
    """
    loaded = load_catalog(catalog or find_settings(kernel).catalog)
    found = freshness(loaded, (today or datetime.now()).date(), days)
    if output == "json":
        print_json(outdated=found.outdated, freshness=found)
    else:
        newer = f"; newer: {', '.join(found.newer)}" if found.newer else ""
        click.echo(f"{found.name}: {count(found.days, 'day')} old; a catalog is outdated after {found.most}{newer}")
    return 1 if found.outdated else 0


@command.command("next")
@KERNELS
@click.option(
    "--index",
    "indexes",
    multiple=True,
    metavar="FILE",
    help="A listing of a wheel index, a file or an address, such as download.pytorch.org/whl/cu132/torch/ (default: "
    "the pages that kci knows, and the reference's table).",
)
@click.option("--table", metavar="FILE", help="The reference's build-variants.json, with the toolkits that users get.")
@click.option("--as-of", required=True, type=DAY, metavar="DATE", help="The day of the listings.")
@click.option(
    "--catalog",
    type=FileName(),
    metavar="FILE",
    help="The catalog that it follows (default: from kci.toml, else the default edition).",
)
@click.option("--into", type=PATH, help="Write the proposed edition to this file (default: stdout).")
def next_(
    kernels: tuple[str, ...],
    indexes: tuple[str, ...],
    table: str | None,
    as_of: datetime,
    catalog: str | None,
    into: Path | None,
) -> int:
    """Propose the next edition, and list what it changes for KERNEL: variants, machine time, cost.

    It also lists each build.toml that must change; `kci update --catalog` changes them. This command changes no file:
    review the proposal, then name it in kci.toml. Exit 1 if a kernel that differs cannot be planned with it.

    Examples:
        # propose an edition, and list what it changes
        kci catalog next kernels --index cu132.html --as-of 2026-11-21 --into next.toml
    """
    day = as_of.date().isoformat()
    workspace = opened(kernels, catalog)
    usual = usual_listings()
    proposal = next_catalog(workspace, day, indexes or usual.indexes, table or (None if indexes else usual.table))
    if into is None:
        click.echo(proposal.text, nl=False)
    else:
        write_atomic(into, proposal.text.encode())
    found = impact(workspace, proposal.catalog)
    click.echo("\n".join(impact_lines(found, proposal.unknown)), err=into is None)
    return 1 if found.faulty else 0
