"""`kci update`: build.toml to edition 5, keeping comments, order and layout."""

from __future__ import annotations

from pathlib import Path

import click

from kci.catalog.loading import load_catalog
from kci.cli import Command, FileName, options
from kci.cli._output import print_diagnostics
from kci.cli._workspace import KERNELS, opened
from kci.config.discover import find_kernels
from kci.config.document import read_bytes
from kci.config.reader import BUILD_TOML, shown_file
from kci.config.update import plan_update, write_update
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.matrix.migrations import whole_change
from kci.workspace.migrating import migrations_of


@click.command("update", cls=Command)
@KERNELS
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@click.option(
    "--catalog",
    type=FileName(),
    metavar="FILE",
    help="Also migrate to this edition of the catalog: bounds, architectures, the stable ABI.",
)
def command(kernels: tuple[str, ...], check: bool, diff: bool, catalog: str | None) -> int:
    """Rewrite the build.toml of each KERNEL to edition 5. Comments, order and layout stay.

    With --catalog it also migrates to that edition of the catalog, such as one that `kci catalog next` proposed, and
    lists what you have to decide.

    Examples:
        # print what would change
        kci update --diff
        # also migrate to the next edition of the catalog
        kci update --catalog next.toml --diff
    """
    if catalog is not None:
        return _migrate(kernels, catalog, check=check, diff=diff)
    failed: list[Diagnostic] = []
    changed = False
    for directory in find_kernels(kernels):
        path, shown = Path(directory) / BUILD_TOML, shown_file(directory)
        try:
            update = plan_update(read_bytes(path, shown), directory, shown)
            changed = changed or bool(update.changes)
            if update.changes and not (check or diff):
                write_update(path, update)
        except FindingsError as error:
            failed += error.diagnostics
            continue
        if diff:
            click.echo(update.diff(), nl=False)
        elif update.changes:
            click.echo(f"{shown}: {'would change' if check else 'updated'}: {', '.join(update.changes)}")
        elif not options().quiet:
            click.echo(f"{shown}: up to date")
    print_diagnostics(failed)
    return 1 if failed or (check and changed) else 0


def _migrate(kernels: tuple[str, ...], catalog: str, *, check: bool, diff: bool) -> int:
    found = migrations_of(opened(kernels, None), load_catalog(catalog))
    for kernel in found:
        shown, update = shown_file(kernel.directory), whole_change(kernel.migrations)
        if update is not None and not (check or diff):
            write_update(Path(kernel.directory) / BUILD_TOML, update)
        if diff and update is not None:
            click.echo(update.diff(), nl=False)
        for item in kernel.migrations:
            done = "would change" if check or diff else "updated"
            said = f"{done}: {', '.join(item.change.changes)}" if item.change else f"by hand: {item.title}: {item.todo}"
            click.echo(f"{shown}: {item.id}: {said}; {item.reason}", err=diff)
    if not found and not options().quiet:
        click.echo("nothing to migrate", err=diff)
    return 1 if check and found else 0
