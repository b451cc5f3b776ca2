"""`kci check`: is the build.toml right."""

from __future__ import annotations

import click

from kci.cli import Command, Options
from kci.cli._findings import FORMATS, show_findings
from kci.workspace.check import check_kernels


@click.command("check", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option(
    "--format",
    "output",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="The form of the answer.",
)
@click.option("--catalog", metavar="FILE", help="A catalog file, or the name of an edition.")
@click.pass_obj
def command(options: Options, /, kernels: tuple[str, ...], output: str, catalog: str | None) -> int:
    """Check the build.toml of each KERNEL, the sources that it names, and kci.toml. Exit 1 if there is an error.

    A finding is suppressed by a comment `# kci: ignore[RULE] reason` on its line or the line above, or by an entry of
    `[lint] ignore` in kci.toml. Notes of severity info are counted, and shown with -v.
    """
    checked = check_kernels(kernels, catalog)
    what = f"{len(checked.files)} file{'' if len(checked.files) == 1 else 's'} checked"
    return show_findings(checked.diagnostics, output, quiet=options.quiet, verbose=options.verbose, what=what)
