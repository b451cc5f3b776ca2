"""`kci update`: rewrites build.toml to edition 5."""

from __future__ import annotations

from pathlib import Path

from kci.cli import flag, kci_command
from kci.cli._output import answer, options, print_diagnostics
from kci.cli._workspace import KERNELS
from kci.config.discovery import find_kernels
from kci.config.document import read_bytes
from kci.config.reader import BUILD_TOML, build_toml_path
from kci.config.update import plan_update, write_update
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError


@kci_command
@KERNELS
@flag("--check", "Write nothing; exit 1 if something would change.")
@flag("--diff", "Write nothing; print what would change.")
def command(kernels: tuple[str, ...], check: bool, diff: bool) -> int:
    """Rewrite the build.toml of each KERNEL to edition 5. Comments, order and layout stay.

    Examples:
        # print what would change
        kci update --diff
    """
    failed: list[Diagnostic] = []
    changed = False
    for directory in find_kernels(kernels):
        path, shown = Path(directory) / BUILD_TOML, build_toml_path(directory)
        try:
            update = plan_update(read_bytes(path, shown), directory, shown)
            changed = changed or bool(update.changes)
            if update.changes and not (check or diff):
                write_update(path, update)
        except FindingsError as error:
            failed += error.diagnostics
            continue
        if diff:
            answer(update.diff(), nl=False)
        elif update.changes:
            answer(
                f"{shown}: {'would change' if check else 'updated'}: {', '.join(update.changes)}"
            )
        elif not options().quiet:
            answer(f"{shown}: up to date")
    print_diagnostics(failed)
    return 1 if failed or (check and changed) else 0
