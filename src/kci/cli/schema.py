"""`kci schema`: the JSON Schemas of build.toml and kci.toml."""

from __future__ import annotations

import importlib

import click

from kci.cli import kci_command
from kci.cli._output import answer
from kci.config.schema import schema_text

SCHEMAS = {
    "build.toml": "kci.config.schema:build_schema",
    "kci.toml": "kci.config.schema:settings_schema",
}


@kci_command
@click.argument(
    "what", type=click.Choice(list(SCHEMAS)), default="build.toml", metavar=f"[{'|'.join(SCHEMAS)}]"
)
def command(what: str) -> None:
    """Print the JSON Schema of build.toml or kci.toml, for editors.

    Examples:
        # write the schema for an editor
        kci schema > .build.schema.json
    """
    module, _, function = SCHEMAS[what].partition(":")
    answer(schema_text(getattr(importlib.import_module(module), function)()), nl=False)
