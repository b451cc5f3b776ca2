"""`kci render`: write the workflow files, or check those that are committed."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import Command, Options
from kci.cli._output import print_diagnostics
from kci.cli._workspace import opened
from kci.diagnostics import Severity
from kci.errors import UsageError
from kci.render.drift import Drift
from kci.render.repository import render_workflows
from kci.render.workflow import Mode


@click.command("render", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff if a file would change.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in Mode]),
    default=str(Mode.RUNTIME),
    show_default=True,
    help="Compute the legs when the workflow runs, or write them into the file.",
)
@click.option("--branch", default="main", show_default=True, help="Pushes to this branch build a release.")
@click.option("--output", metavar="DIR", default=".", help="The root of the repository (default: here).")
@click.pass_obj
def command(
    options: Options, kernels: tuple[str, ...], check: bool, diff: bool, mode: str, branch: str, output: str
) -> int:
    """Write .github/workflows/kci.yml and kci-compat.yml for each KERNEL (default: every kernel below here).

    KERNEL is a directory with a build.toml, or one with kernels below it. Action pins that are newer in the committed
    files are kept.
    """
    root = Path(output)
    if not root.is_dir():
        raise UsageError(f"{output}: there is no such directory", hint="name the root of the repository")
    named = kernels or (output,)
    rendered = render_workflows(opened(options, named, None), root, named, mode=Mode(mode), branch=branch)
    found = rendered.diagnostics
    newer = [item for item in found if item.rule == "KCI405"]
    if check or diff:
        click.echo("".join(item.diff for item in rendered.comparisons), nl=False)
        print_diagnostics(found if check else newer, quiet=options.quiet)
        return int(check and any(item.severity is Severity.ERROR for item in found))
    rendered.write()
    print_diagnostics(newer, quiet=options.quiet)
    for item in rendered.comparisons:
        click.echo(f"{item.path}: {'unchanged' if item.state is Drift.SAME else 'written'}")
    return 0
