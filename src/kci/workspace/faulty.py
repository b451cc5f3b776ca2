"""Kernels that cannot be planned, set apart from those that can: one broken kernel stops only itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kci.config.discover import FaultyKernel
from kci.config.settings import KCI_TOML
from kci.errors import FindingsError
from kci.plan.changed_files import changes_since
from kci.plan.inputs import SourceTrees
from kci.workspace.check import kernel_errors
from kci.workspace.workspace import Workspace

_OF_ALL = re.compile(rf"{re.escape(KCI_TOML)}|\.github/workflows/kci[^/]*\.ya?ml")
"""Files that every kernel depends on."""


def without_faulty(workspace: Workspace) -> tuple[Workspace, tuple[FaultyKernel, ...]]:
    """The kernels in which `kci check` finds no error, and the others.

    A leg of a faulty kernel would start a machine only to fail there.

    Raises:
        FindingsError: no kernel is without an error.
    """
    sound, faulty = [], list(workspace.unread)
    trees = SourceTrees()
    for kernel in workspace.kernels:
        if errors := kernel_errors(workspace, kernel, trees.of(kernel.directory)):
            faulty.append(FaultyKernel(kernel.directory, kernel.build.name, errors[0].message, tuple(errors)))
        else:
            sound.append(kernel)
    if faulty and not sound:
        found = [item for kernel in faulty for item in kernel.diagnostics]
        hint = "fix them, or name other kernels; `kci check` lists all findings"
        raise FindingsError(f"nothing is planned: {faulty[0].message}", hint=hint, diagnostics=found)
    faulty.sort(key=lambda item: item.path)
    return (workspace.of(sound) if faulty else workspace), tuple(faulty)


def touched_since(faulty: Sequence[FaultyKernel], workspace: Workspace, base: str) -> tuple[FaultyKernel, ...]:
    """Those that a change since a base may have made faulty; a change elsewhere is not held up by the others.

    Raises:
        MissingToolError: there is no git.
        FindingsError: the change cannot be found out (KCI312).
    """
    if not faulty:
        return ()
    changes = changes_since(Path(faulty[0].path), base)
    changed = [changes.root.resolve() / file for file in changes.files]
    catalog = workspace.catalog_file
    if any(_OF_ALL.fullmatch(file) for file in changes.files) or (catalog and catalog.resolve() in changed):
        return tuple(faulty)
    root, settings = workspace.settings.root, workspace.settings.settings
    return tuple(
        item
        for item in faulty
        for places in [[Path(item.path), *(root / entry for entry in settings.inputs_of(item.kernel))]]
        if any(file.is_relative_to(place.resolve()) for place in places for file in changed)
    )
