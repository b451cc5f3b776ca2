"""`kci compat`: expected against published variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kci.cli import CommandGroup, Options
from kci.cli._kernels import selected_matrix, selection_options
from kci.cli._output import table, to_json
from kci.errors import UsageError


@click.group("compat", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The scheduled side: what should be published against what is."""


@command.command("coverage")
@click.argument("kernel", default=".")
@click.option("--tree", type=click.Path(path_type=Path), help="The published tree (default: KERNEL/build).")
@selection_options
@click.option("--format", "output", type=click.Choice(["table", "json"]), default="table")
@click.pass_obj
def show_coverage(state: Options, /, kernel: str, tree: Path | None, output: str, **selection: Any) -> int:
    """Which variants of KERNEL its tree has and lacks. Exit 1 if one is missing."""
    from kci.compat.coverage import coverage

    matrix, read = selected_matrix(state, [kernel], **selection)
    if len(read) > 1:
        raise UsageError(f"{kernel} holds {len(read)} kernels", hint="name one of them, with its tree")
    found = coverage(matrix.kernels[0], tree or Path(read[0].directory) / "build")
    if output == "json":
        click.echo(to_json({"schema": 1, "coverage": found}))
    else:
        rows = [(name, state_of) for state_of in ("missing", "present", "other") for name in getattr(found, state_of)]
        click.echo(table(("variant", "state"), rows))
        click.echo(f"{len(found.present)} of {len(found.present) + len(found.missing)} expected variants are there")
    return 1 if found.missing else 0
