"""`kci catalog`: the toolchain data."""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from kci.cli import CommandGroup, FileName, format_option
from kci.cli._output import Layout, answer, paragraph, print_json, table
from kci.config.discovery import find_settings
from kci.config.values import Version
from kci.matrix.catalog.loading import OUTDATED_DAYS, editions, freshness, load_catalog
from kci.utils.suggest import count


@click.group("catalog", cls=CommandGroup)
def command() -> None:
    """Show the toolchain data: which torch versions, compute versions and systems exist.

    Examples:
        # list the toolchains
        kci catalog show
    """


@command.command("show")
@click.argument("catalog", type=FileName(), required=False)
@format_option("table", "json", "toml")
def show(catalog: str | None, output: str) -> None:
    """Print an edition of the catalog, or an overlay: a file, or an edition's name (default: the
    default edition).

    Examples:
        # print the default edition
        kci catalog show
        # print an older edition
        kci catalog show 2026-08-20
    """
    loaded = load_catalog(catalog)
    if output == "toml":
        document = loaded.overlays[-1].document if loaded.overlays else loaded.document
        answer(document.text, nl=False)
        return
    rows: list[dict[str, Any]] = [
        {
            "torch": row.torch.text,
            "backend": row.backend,
            "compute": row.compute.text if row.compute else None,
            "system": row.system,
            "bundled": row.bundled,
            "tvm_ffi": row.tvm_ffi.text if row.tvm_ffi else None,
            "tvm_ffi_unknown_since": row.tvm_ffi_unknown_since,
            "place": "{}:{}".format(*row.line()),
        }
        for row in loaded.rows
    ]
    if output == "json":
        print_json(name=loaded.name, as_of=loaded.as_of, source=loaded.source, rows=rows)
        return
    answer(paragraph(f"{loaded.name} (as of {loaded.as_of}; editions: {', '.join(editions())})"))
    if not rows:
        answer("no rows")
        return
    for row in rows:
        if since := row.pop("tvm_ffi_unknown_since"):
            row["tvm_ffi"] += f", unknown since {since}"
    cells = [["" if value is None else value for value in row.values()] for row in rows]
    layout = Layout(drop=("place", "tvm_ffi", "bundled"), cut=("place",))
    answer(table([*rows[0]], cells, layout))


@command.command("outdated")
@click.argument("kernel", type=FileName(exists=True), default=".")
def outdated(kernel: str) -> int:
    """Print the age of KERNEL's catalog, a newer edition of kci, and a newer torch that kci knows.

    Exit 1 if it is outdated: it is old, or has no row of that torch.

    Examples:
        # exit 1 if it is old
        kci catalog outdated
    """
    from kci.builders.toolchains.data import toolchains

    loaded = load_catalog(find_settings(kernel).catalog)
    age = freshness(loaded, date.today())
    newer = f"; newer: {', '.join(age.newer)}" if age.newer else ""
    answer(
        f"{age.name}: {count(age.days, 'day')} old; a catalog is outdated after "
        f"{OUTDATED_DAYS}{newer}"
    )
    newest = max((row.torch for row in loaded.rows if row.bundled), default=Version())
    released = map(Version.parse, toolchains().torch)
    newer_torch = sorted(torch for torch in released if torch > newest)
    for torch in newer_torch:
        answer(f"torch {torch} is on PyPI, and {age.name} bundles none newer than {newest}")
    return 1 if age.outdated or set(newer_torch) - {row.torch for row in loaded.rows} else 0
