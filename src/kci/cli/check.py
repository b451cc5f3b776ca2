"""`kci check`: is the build.toml right."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import Command, answer_forms
from kci.cli._answers import FORMATS, show_findings
from kci.cli._workspace import KERNELS
from kci.config.discovery import find_kernels
from kci.config.document import read_bytes
from kci.config.reader import BUILD_TOML, shown_file
from kci.config.update import plan_fixes, write_update
from kci.errors import FindingsError
from kci.plan.check import check_kernels
from kci.utils.cache import default_cache
from kci.utils.suggest import count


@click.command("check", cls=Command)
@KERNELS
@answer_forms(*FORMATS)
@click.option("--fix", is_flag=True, help="First fix the findings whose fix does not change what the file means.")
def command(kernels: tuple[str, ...], output: str, fix: bool) -> int:
    """Check the build.toml of each KERNEL, its sources and Python package, and kci.toml. Exit 1 if there is an error.

    A finding is suppressed by an entry of `[[lint.ignore]]` in kci.toml. Notes of severity info are counted, and shown
    with -v.

    --fix fixes KCI107, KCI111 and KCI135, as `kci update` does: comments, order and layout stay.

    Examples:
        # check every kernel in this directory and kci.toml
        kci check
        # fix what is safe to fix, then check
        kci check --fix
    """
    if fix:
        _fix(kernels)
    checked = check_kernels(kernels, None, default_cache() / "inputs")
    what = f"{count(len(checked.files), 'file')} checked"
    return show_findings(checked.diagnostics, output, what=what)


def _fix(kernels: tuple[str, ...]) -> None:
    """Fix each file; `check` reports a file that cannot be read."""
    for directory in find_kernels(kernels):
        path, shown = Path(directory) / BUILD_TOML, shown_file(directory)
        try:
            fixed = plan_fixes(read_bytes(path, shown), directory, shown)
        except FindingsError:
            continue
        if fixed.changes:
            write_update(path, fixed)
            click.echo(f"{shown}: fixed: {', '.join(fixed.changes)}", err=True)
