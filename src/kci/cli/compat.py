"""`kci compat`: expected against published variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kci.cli import CommandGroup, Options
from kci.cli._output import table, to_json
from kci.cli._workspace import opened, selection_options, take_choice
from kci.compat.coverage import coverage


@click.group("compat", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The scheduled side: what should be published against what is."""


@command.command("coverage")
@click.argument("kernel", default=".")
@click.option("--tree", type=click.Path(path_type=Path), help="The published tree (default: KERNEL/build).")
@selection_options
@click.option("--format", "output", type=click.Choice(["table", "json"]), default="table")
@click.pass_obj
def show_coverage(options: Options, /, kernel: str, tree: Path | None, output: str, **selection: Any) -> int:
    """Which variants of KERNEL its tree has and lacks. Exit 1 if one is missing."""
    workspace = opened(options, [kernel], selection["catalog"])
    place = tree or Path(workspace.only_kernel().directory) / "build"
    found = coverage(workspace.matrix(take_choice(selection)).kernels[0], place)
    if output == "json":
        click.echo(to_json({"schema": 1, "coverage": found}))
    else:
        rows = [(name, state_of) for state_of in ("missing", "present", "other") for name in getattr(found, state_of)]
        click.echo(table(("variant", "state"), rows))
        click.echo(f"{len(found.present)} of {len(found.present) + len(found.missing)} expected variants are there")
    return 1 if found.missing else 0
