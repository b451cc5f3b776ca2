"""What cannot be planned, set apart from what can: a broken kernel stops only itself, and a broken backend too."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path

from msgspec.structs import replace

from kci.config.discover import FaultyBackend, FaultyKernel
from kci.config.file_lints import backend_without_component
from kci.config.reader import Kernel
from kci.config.settings import KCI_TOML
from kci.diagnostics import Diagnostic, Severity
from kci.errors import FindingsError
from kci.inputs.kernel_inputs import SourceTrees
from kci.inputs.source_tree import SourceTree
from kci.plan.changed_files import changes_since
from kci.sources.source_rules import source_findings
from kci.workspace.check import kernel_errors
from kci.workspace.choice import Choice
from kci.workspace.workspace import Workspace

_OF_ALL = re.compile(rf"{re.escape(KCI_TOML)}|\.github/workflows/kci[^/]*\.ya?ml")
"""Files that every kernel depends on."""


def without_faulty(
    workspace: Workspace, choice: Choice, trees: SourceTrees
) -> tuple[Workspace, Workspace, tuple[FaultyKernel, ...]]:
    """The kernels that can be planned, the same without those of their backends that cannot, and what is at fault.

    A kernel is planned where `kci check` finds no error in it, or only errors that one or some of its backends have,
    and neither does the choice name one of those nor is nothing else chosen. A leg of anything at fault would start a
    machine only to fail there.

    Args:
        workspace: the kernels.
        choice: what of them is planned.
        trees: the files of their repositories.

    Raises:
        FindingsError: no kernel can be planned.
    """
    sound: list[Kernel] = []
    reduced: list[Kernel] = []
    faulty = list(workspace.unread)
    for kernel in workspace.kernels:
        tree = trees.of(kernel.directory)
        errors = kernel_errors(workspace, kernel, tree)
        said = source_findings(kernel, workspace.settings, trees.remember)
        of_sources = [item for item in said if item.severity is Severity.ERROR]  # every backend has the package
        of_backends = {} if of_sources else _of_backends(workspace, kernel, errors, tree)
        errors += of_sources
        if errors and not _can_do_without(of_backends, workspace, kernel, choice):
            faulty.append(FaultyKernel(kernel.directory, kernel.build.name, errors[0].message, tuple(errors)))
            continue
        found = _without_component(kernel) | of_backends
        for backend, fault in sorted(found.items()):
            faulty.append(FaultyBackend(kernel.directory, kernel.build.name, fault.message, (fault,), backend))
        left = {str(backend) for backend in kernel.build.general.backends} - found.keys()
        sound.append(kernel)
        reduced.append(replace(kernel, build=kernel.build.only(left)) if found else kernel)
    if faulty and not sound:
        every = [item for kernel in faulty for item in kernel.diagnostics]
        hint = "fix them, or name other kernels; `kci check` lists all findings"
        raise FindingsError(f"nothing is planned: {faulty[0].message}", hint=hint, diagnostics=every)
    faulty.sort(key=lambda item: item.path)
    whole = workspace.of(sound) if len(sound) < len(workspace.kernels) else workspace
    return whole, (workspace.of(reduced) if reduced != sound else whole), tuple(faulty)


def _of_backends(
    workspace: Workspace, kernel: Kernel, errors: Sequence[Diagnostic], tree: SourceTree
) -> dict[str, Diagnostic]:
    """The first error of each backend at fault; nothing if an error is not one that a backend has when it is alone."""
    build = kernel.build
    found: dict[str, Diagnostic] = {}
    explained: set[int] = set()
    for backend in {*build.general.backends, *(part.backend for part in build.kernel.values())} if errors else ():
        alone = kernel_errors(workspace, replace(kernel, build=build.only([backend])), tree)
        told = {(item.rule, item.message) for item in alone}
        own = [index for index, item in enumerate(errors) if (item.rule, item.message) in told]
        explained.update(own)
        if own:
            found[str(backend)] = errors[own[0]]
    return found if len(explained) == len(errors) else {}


def _can_do_without(of_backends: Container[str], workspace: Workspace, kernel: Kernel, choice: Choice) -> bool:
    """Whether something is left of a kernel, and of what is chosen of it, without the backends at fault."""
    asked = {*choice.backends, *workspace.scopes.get(kernel.directory, ())}
    chosen = {variant.backend for variant in workspace.of([kernel]).matrix(choice).kernels[0].variants}
    wanted = (kernel.build.general.backends, *([chosen] if chosen else []))
    sound = all(any(backend not in of_backends for backend in backends) for backends in wanted)
    return bool(of_backends) and sound and not any(backend in of_backends for backend in asked)


def _without_component(kernel: Kernel) -> dict[str, Diagnostic]:
    """The backends that KCI130 is about, where it is suppressed too: nothing can build their variants.

    They have no place: it is no fault where somebody wants it so.
    """
    build = kernel.build
    bare = [str(backend) for backend in dict.fromkeys(build.general.backends) if not build.components(backend)]
    found = [replace(item, path="", line=0) for item in backend_without_component(kernel)]
    return dict(zip(bare, found, strict=True)) if build.torch is not None else {}


def require_sound(workspace: Workspace) -> Workspace:
    """The kernels, where `kci check` finds no error in any; without backends that may lack a component.

    Raises:
        FindingsError: it finds one; the error carries every finding.
    """
    _, reduced, faulty = without_faulty(workspace, Choice(), SourceTrees())
    # A finding without a place is a suppressed one.
    if wrong := [found for item in faulty for found in item.diagnostics if found.path]:
        raise FindingsError(wrong[0].message, hint="`kci check` lists all findings", diagnostics=wrong)
    return reduced


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
