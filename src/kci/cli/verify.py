"""`kci verify`: a tree, a variant directory or a kernel's sources against the requirements."""

from __future__ import annotations

import click

from kci.cli import Command, Options
from kci.cli._findings import FORMATS, show_findings
from kci.verify import verify_with_suppressions


@click.command("verify", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--select", multiple=True, metavar="RULE", help="Only this rule, or all that start so.")
@click.option("--ignore", multiple=True, metavar="RULE", help="Not this rule, nor any that start so.")
@click.option("--format", "output", type=click.Choice(FORMATS), default="text", show_default=True)
@click.pass_obj
def command(
    options: Options, /, *, paths: tuple[str, ...], select: tuple[str, ...], ignore: tuple[str, ...], output: str
) -> int:
    """Verify each PATH: a tree, a variant directory, or a kernel. Exit 1 if a requirement is not met."""
    verified = [verify_with_suppressions(path, select, ignore) for path in paths]
    return show_findings(
        [item for one in verified for item in one.diagnostics],
        output,
        quiet=options.quiet,
        verbose=options.verbose,
        what=f"{len(paths)} verified",
        suppressed=[item for one in verified for item in one.suppressed],
    )
