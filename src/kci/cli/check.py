"""`kci check`: is the build.toml right."""

from __future__ import annotations

import click

from kci.cli import Command, State
from kci.cli._output import print_diagnostics, to_json
from kci.config.discover import find_kernels
from kci.config.reader import read_kernel
from kci.diagnostics import Diagnostic, Severity, render_github
from kci.errors import FindingsError


@click.command("check", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--format", "output", type=click.Choice(["text", "json", "github"]), default="text")
@click.pass_obj
def command(state: State, kernels: tuple[str, ...], output: str) -> int:
    """Check the build.toml of each KERNEL. Exit 1 if one has an error."""
    found: list[Diagnostic] = []
    directories = find_kernels(kernels)
    for directory in directories:
        try:
            found += read_kernel(directory).diagnostics
        except FindingsError as error:
            found += error.diagnostics
    errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in found)
    match output:
        case "json":
            click.echo(to_json({"schema": 1, "diagnostics": found}))
        case "github":
            click.echo("".join(render_github(diagnostic) + "\n" for diagnostic in found), nl=False)
        case _:
            print_diagnostics(found, quiet=state.quiet)
            click.echo(f"{len(directories)} checked: {errors} errors, {len(found) - errors} other findings")
    return 1 if errors else 0
