"""`kci check`: is the build.toml right."""

from __future__ import annotations

import click

from kci import __version__
from kci.cli import Command, State
from kci.cli._output import print_diagnostics, to_json
from kci.config.discover import find_kernels
from kci.config.settings import locate
from kci.diagnostics import Severity, render_github
from kci.plan.check import check


@click.command("check", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    show_default=True,
    help="The form of the answer.",
)
@click.option("--catalog", metavar="FILE", help="A catalog file, or the name of an edition.")
@click.pass_obj
def command(state: State, /, kernels: tuple[str, ...], output: str, catalog: str | None) -> int:
    """Check the build.toml of each KERNEL, the sources that it names, and kci.toml. Exit 1 if there is an error.

    A finding is silenced by a comment `# kci: ignore[RULE] reason` on its line or the line above, or by an entry of
    `[lint] ignore` in kci.toml.
    """
    checked = check(find_kernels(kernels), catalog)
    found = checked.diagnostics
    match output:
        case "json":
            click.echo(to_json({"schema": 1, "diagnostics": found}))
        case "github":
            click.echo("".join(render_github(diagnostic) + "\n" for diagnostic in found), nl=False)
        case "sarif":
            from pathlib import Path

            from kci.cli._sarif import render_sarif

            click.echo(render_sarif(found, __version__, locate(Path())[0]))
        case _:
            print_diagnostics(found, quiet=state.quiet)
    counts = {severity: sum(item.severity is severity for item in found) for severity in Severity}
    errors = counts[Severity.ERROR]
    said = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for severity, count in counts.items())
    files = f"{len(checked.files)} file{'' if len(checked.files) == 1 else 's'}"
    if output != "text" and not state.quiet:
        click.echo(f"{files} checked: {said}", err=True)
    elif output == "text":
        click.echo(f"{files} checked: {said}")
    return 1 if errors else 0
