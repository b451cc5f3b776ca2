"""`kci catalog`: the toolchain data."""

from __future__ import annotations

from typing import Any

import click

from kci.catalog.rows import editions, load_catalog
from kci.cli import Command
from kci.cli._output import table, to_json


class _Group(click.Group):
    command_class = Command


@click.group("catalog", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The toolchain data: which torch, compute versions and systems exist."""


@command.command("show")
@click.argument("catalog", required=False)
@click.option("--format", "output", type=click.Choice(["table", "json", "toml"]), default="table")
def show(catalog: str | None, output: str) -> None:
    """Print an edition (its name, or a file); without one, the default edition."""
    loaded = load_catalog(catalog)
    if output == "toml":
        click.echo(loaded.document.text, nl=False)
        return
    rows: list[dict[str, Any]] = [
        {
            "torch": row.torch.text,
            "backend": str(row.backend),
            "compute": row.compute.text if row.compute else None,
            "system": row.system,
            "bundled": row.bundled,
            "tvm_ffi": row.tvm_ffi.text if row.tvm_ffi else None,
        }
        for row in loaded.rows
    ]
    if output == "json":
        answer = {"schema": 1, "name": loaded.name, "as_of": loaded.as_of, "source": loaded.source, "rows": rows}
        click.echo(to_json(answer))
        return
    click.echo(f"{loaded.name} (as of {loaded.as_of}; editions: {', '.join(editions())})")
    cells = [[str(value) if value is not None else "" for value in row.values()] for row in rows]
    click.echo(table(list(rows[0]) if rows else [], cells))
