"""All that can be said about the files that people write: each build.toml, the sources it names, and kci.toml."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kci.catalog.loading import load_catalog
from kci.catalog.overlay import Overlay, for_kernel, overlays_of
from kci.catalog.rows import Catalog
from kci.config.discover import find_kernels
from kci.config.file_lints import lint_file
from kci.config.find_settings import FoundSettings, find_settings, locate
from kci.config.reader import Kernel, read_kernel, shown_file
from kci.config.suppression import apply_comments, apply_settings
from kci.diagnostics import Diagnostic, Severity, finding, in_file_order
from kci.errors import FindingsError, KciError
from kci.inputs.kernel_inputs import SourceTrees
from kci.inputs.source_lints import (
    declared_input_missing,
    include_leaves_kernel,
    lint_sources,
    lint_standards,
    source_escapes,
)
from kci.inputs.source_tree import SourceTree
from kci.matrix.kernel_lints import lint_matrix
from kci.matrix.tiers import tier_of
from kci.plan.settings_lints import lint_settings
from kci.sources.source_rules import source_findings
from kci.workspace.workspace import Workspace


class Checked(msgspec.Struct, frozen=True):
    """What was looked at, and what was found."""

    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def check_kernels(arguments: Sequence[str] = (), catalog: str | None = None, remember: Path | None = None) -> Checked:
    """Read and lint kernels and the kci.toml that holds for them. Suppressed findings are left out.

    Args:
        arguments: directories with a build.toml, or with kernels below them; the working directory by default.
        catalog: an edition or file; by default what kci.toml names, else the default edition.
        remember: a folder in which facts about sources are kept from run to run; None to read every file.

    Raises:
        UsageError: a directory or the catalog named here does not exist.
        FindingsError: it is not valid.
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
        directory: where it lies; None for a text alone, whose sources nobody can look at.
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
    """What `check` calls an error about one kernel: it cannot be built as its files say.

    Args:
        workspace: where the kernel is from.
        kernel: the kernel.
        tree: the files of its repository, read once for all kernels.
    """
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
    overlays, unreadable = _overlays(settings)
    found += problems + unreadable
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
        meant = {item.kernel for item in settings.settings.limits} | {item.kernel for item in settings.settings.overlay}
        meant |= {item.kernel for item in settings.settings.inputs}
        if meant - {None, *names}:
            names |= _all_names(settings.root)
        said = [*lint_settings(settings, names), *declared_input_missing(settings, tree)]
        found += apply_comments(said, settings.document)
    return Checked(tuple(files), (*apply_settings(found, settings, files), *of_sources))


def _catalog(name: str | None, settings: FoundSettings) -> tuple[Catalog, list[Diagnostic]]:
    if name is not None or settings.catalog is None or settings.document is None:
        return load_catalog(name), []
    try:
        return load_catalog(settings.catalog), []
    except KciError as error:
        span = settings.document.value_span(("catalog",))
        problem = finding("KCI332", error.message, hint=error.hint, path=settings.document.path, span=span)
        return load_catalog(), [problem, *error.diagnostics]


def _overlays(settings: FoundSettings) -> tuple[list[tuple[str | None, Overlay]], list[Diagnostic]]:
    """The overlays of kci.toml, and what is wrong with them and with its tiers."""
    problems: list[Diagnostic] = []
    for name in settings.settings.tiers:
        try:
            tier_of(name, settings)
        except FindingsError as error:
            problems += error.diagnostics
    try:
        return overlays_of(settings), problems
    except FindingsError as error:
        return [], [*problems, *error.diagnostics]


def _all_names(root: Path) -> set[str]:
    """The names of all kernels of a repository that can be read."""
    names = set()
    for directory in find_kernels([str(root)]):
        try:
            names.add(read_kernel(directory).build.name)
        except FindingsError:
            continue
    return names
