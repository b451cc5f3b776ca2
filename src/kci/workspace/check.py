"""All that can be said about the files that people write, and what can be planned in spite of it.

A broken kernel stops only itself, and a broken backend too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kci.catalog.loading import load_catalog
from kci.catalog.overlay import for_kernel, overlays_of
from kci.catalog.rows import Catalog, Overlay
from kci.config.discover import FaultyBackend, FaultyKernel, find_kernels, read_each
from kci.config.file_lints import backend_without_component, lint_file
from kci.config.find_settings import FoundSettings, find_settings, locate
from kci.config.reader import Kernel, read_kernel, shown_file
from kci.config.settings import KCI_TOML
from kci.config.suppression import apply_comments, apply_settings
from kci.diagnostics import Diagnostic, Severity, in_file_order
from kci.errors import FindingsError, KciError
from kci.inputs.source_lints import (
    declared_input_missing,
    include_leaves_kernel,
    lint_sources,
    lint_standards,
    source_escapes,
)
from kci.inputs.source_tree import SourceTree, SourceTrees
from kci.matrix.kernel_lints import lint_matrix
from kci.plan.changes import changes_since
from kci.plan.settings_lints import lint_settings
from kci.sources.source_rules import source_findings
from kci.workspace.workspace import Choice, Workspace, tier_errors


class Checked(msgspec.Struct, frozen=True):
    """What was looked at, and what was found."""

    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def check_kernels(arguments: Sequence[str] = (), catalog: str | None = None, remember: Path | None = None) -> Checked:
    """Read and lint kernels and the kci.toml that holds for them. Suppressed findings are left out.

    The catalog is by default what kci.toml names, else the default edition.

    Raises:
        UsageError: a directory or the catalog named here does not exist.
        FindingsError: the catalog is not valid.
    """
    by_root: dict[Path, list[str]] = {}
    for directory in find_kernels(arguments):
        by_root.setdefault(locate(Path(directory))[0], []).append(directory)
    files: list[str] = []
    found: list[Diagnostic] = []
    for _, group in sorted(by_root.items()):
        checked = _check_group(group, catalog, remember)
        files += checked.files
        found += checked.diagnostics
    return Checked(tuple(sorted(files)), tuple(sorted(found, key=in_file_order)))


def lint_kernel(
    kernel: Kernel,
    catalog: Catalog,
    directory: Path | None,
    more: Sequence[Diagnostic] = (),
    *,
    errors_only: bool = False,
) -> list[Diagnostic]:
    """Every finding about a kernel that was read, those of reading included, without the suppressed ones.

    Args:
        kernel: the kernel.
        catalog: the rows to judge it by.
        directory: where it lies; None for a text alone, whose sources are not there.
        more: what was found in its file besides.
        errors_only: leave out warnings that take time to find.
    """
    found = [*kernel.diagnostics, *more, *lint_file(kernel), *source_escapes(kernel)]
    if directory is not None:
        found += lint_sources(kernel, directory, errors_only=errors_only)
        found += () if errors_only else lint_standards(kernel, catalog, directory)
    found += lint_matrix(kernel, catalog)
    return sorted(apply_comments(found, kernel.document), key=in_file_order)


def kernel_errors(workspace: Workspace, kernel: Kernel, tree: SourceTree) -> list[Diagnostic]:
    """What `check` calls an error about one kernel of a tree: it cannot be built as its files say."""
    rows = for_kernel(workspace.catalog, workspace.overlays, kernel.build.name)
    leaving = list(include_leaves_kernel(kernel, workspace.settings, tree))
    found = lint_kernel(kernel, rows, Path(kernel.directory), leaving, errors_only=True)
    kept = apply_settings(found, workspace.settings, [shown_file(kernel.directory)])
    return [item for item in kept if item.severity is Severity.ERROR]


def _check_group(directories: list[str], catalog: str | None, remember: Path | None) -> Checked:
    """The kernels of one repository."""
    files: list[str] = []
    found: list[Diagnostic] = []
    settings = FoundSettings()
    try:
        settings = find_settings(directories[0])
    except FindingsError as error:
        found += error.diagnostics
    rows, problems = _catalog(catalog, settings)
    found += [*problems, *tier_errors(settings)]
    overlays: list[tuple[str | None, Overlay]] = []
    try:
        overlays = overlays_of(settings)
    except FindingsError as error:
        found += error.diagnostics
    names = set()
    trees = SourceTrees(remember)
    tree = trees.of(directories[0])
    of_sources: list[Diagnostic] = []
    for directory in directories:
        files.append(shown_file(directory))
        try:
            kernel = read_kernel(directory)
        except FindingsError as error:
            found += error.diagnostics
            continue
        names.add(kernel.build.name)
        leaving = list(include_leaves_kernel(kernel, settings, tree))
        found += lint_kernel(kernel, for_kernel(rows, overlays, kernel.build.name), Path(directory), leaving)
        of_sources += source_findings(kernel, settings, remember)
    trees.save()
    if settings.document is not None:
        files.append(settings.document.path)
        said = settings.settings
        meant = {item.kernel for item in said.limits} | {item.kernel for item in said.overlay}
        meant |= {item.kernel for item in said.inputs}
        if meant - {None, *names}:
            names |= {kernel.build.name for kernel in read_each([str(settings.root)])[0]}
        of_settings = [*lint_settings(settings, names), *declared_input_missing(settings, tree)]
        found += apply_comments(of_settings, settings.document)
    return Checked(tuple(files), (*apply_settings(found, settings, files), *of_sources))


def _catalog(name: str | None, settings: FoundSettings) -> tuple[Catalog, list[Diagnostic]]:
    if name is not None or settings.catalog is None or settings.document is None:
        return load_catalog(name), []
    try:
        return load_catalog(settings.catalog), []
    except KciError as error:
        problem = settings.document.at_value(("catalog",), "KCI332", error.message, error.hint)
        return load_catalog(), [problem, *error.diagnostics]


_OF_ALL = re.compile(rf"{re.escape(KCI_TOML)}|\.github/workflows/kci[^/]*\.ya?ml")
"""Files that every kernel depends on."""


def without_faulty(
    workspace: Workspace, choice: Choice, trees: SourceTrees
) -> tuple[Workspace, Workspace, tuple[FaultyKernel, ...]]:
    """The kernels that can be planned, the same without those of their backends that cannot, and what is at fault.

    A kernel is planned where `kci check` finds no error in it, or only errors that one or some of its backends have,
    and neither does the choice name one of those nor is nothing else chosen. A leg of anything at fault would start a
    machine only to fail there.

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

    They have no place: what is suppressed is no fault.
    """
    build = kernel.build
    bare = [str(backend) for backend in dict.fromkeys(build.general.backends) if not build.components(backend)]
    found = [replace(item, path="", line=0) for item in backend_without_component(kernel)]
    return dict(zip(bare, found, strict=True)) if build.torch is not None else {}


def require_sound(workspace: Workspace, remember: Path | None = None) -> Workspace:
    """The kernels without backends that may lack a component; FindingsError with all errors that `check` finds.

    In the folder `remember`, facts about files are kept from run to run; without it every file is read.
    """
    trees = SourceTrees(remember)
    _, reduced, faulty = without_faulty(workspace, Choice(), trees)
    trees.save()
    # A finding without a place is a suppressed one.
    if wrong := [found for item in faulty for found in item.diagnostics if found.path]:
        raise FindingsError(wrong[0].message, hint="`kci check` lists all findings", diagnostics=wrong)
    return reduced


def touched_since(faulty: Sequence[FaultyKernel], workspace: Workspace, base: str) -> tuple[FaultyKernel, ...]:
    """Those that a change since a base may have made faulty; a change elsewhere is not held up."""
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
