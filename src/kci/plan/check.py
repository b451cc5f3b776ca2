"""Checks of build.toml, kci.toml and sources, and the kernels that can be planned in spite of findings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kci.config.discovery import (
    FaultyKernel,
    RepositorySettings,
    drop_suppressed,
    find_kernels,
    find_root,
    find_settings,
    read_kernels,
)
from kci.config.file_lints import backend_without_component, lint_file
from kci.config.reader import Kernel, build_toml_path, read_kernel
from kci.config.settings import KCI_TOML
from kci.config.sources.package_rules import source_findings
from kci.diagnostics import Diagnostic, Severity, in_file_order
from kci.errors import FindingsError, KciError
from kci.matrix.catalog.loading import for_kernel, load_catalog, overlays_of
from kci.matrix.catalog.rows import Catalog, Overlay
from kci.matrix.lints import lint_matrix
from kci.matrix.variants import Matrix
from kci.plan.affected import changes_since
from kci.plan.inputs.source_lints import (
    declared_input_missing,
    include_not_listed,
    lint_sources,
    lint_standards,
    source_escapes,
)
from kci.plan.inputs.source_tree import SourceTrees
from kci.plan.plan import UnplannedVariant
from kci.plan.settings_lints import lint_settings
from kci.plan.workspace import Choice, Workspace, tier_errors


class CheckResult(msgspec.Struct, frozen=True):
    """The files that were checked, and the findings."""

    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def check_kernels(
    arguments: Sequence[str] = (), catalog: str | None = None, remember: Path | None = None
) -> CheckResult:
    """Read and lint kernels and their kci.toml; suppressed findings are left out.

    The catalog is by default that of kci.toml. UsageError for a missing directory or edition, FindingsError for an
    invalid catalog.
    """
    by_root: dict[Path, list[str]] = {}
    for directory in find_kernels(arguments, pass_over=True):
        by_root.setdefault(find_root(Path(directory))[0], []).append(directory)
    files: list[str] = []
    diagnostics: list[Diagnostic] = []
    for _, group in sorted(by_root.items()):
        checked = _check_group(group, catalog, remember)
        files += checked.files
        diagnostics += checked.diagnostics
    return CheckResult(tuple(sorted(files)), tuple(sorted(diagnostics, key=in_file_order)))


def lint_kernel(
    kernel: Kernel,
    catalog: Catalog,
    directory: Path | None,
    more: Sequence[Diagnostic] = (),
    *,
    errors_only: bool = False,
) -> list[Diagnostic]:
    """All findings about a kernel in file order, with `more`; without a `directory` its sources are not checked."""
    findings = [*kernel.diagnostics, *more, *lint_file(kernel), *source_escapes(kernel)]
    if directory is not None:
        findings += lint_sources(kernel, directory, errors_only=errors_only)
        findings += () if errors_only else lint_standards(kernel, catalog, directory)
    findings += lint_matrix(kernel, catalog, errors_only=errors_only)
    return sorted(findings, key=in_file_order)


def kernel_errors(workspace: Workspace, kernel: Kernel) -> list[Diagnostic]:
    """The errors of one kernel that are not suppressed: it cannot be built."""
    rows = for_kernel(workspace.catalog, workspace.overlays, kernel.build.name)
    all_findings = lint_kernel(kernel, rows, Path(kernel.directory), errors_only=True)
    findings = drop_suppressed(all_findings, workspace.settings)
    return [item for item in findings if item.severity is Severity.ERROR]


def _check_group(directories: list[str], catalog: str | None, remember: Path | None) -> CheckResult:
    files: list[str] = []
    diagnostics: list[Diagnostic] = []
    settings = RepositorySettings()
    try:
        settings = find_settings(directories[0])
    except FindingsError as error:
        diagnostics += error.diagnostics
    rows, problems = _catalog(catalog, settings)
    diagnostics += [*problems, *tier_errors(settings)]
    overlays: list[tuple[str | None, Overlay]] = []
    try:
        overlays = overlays_of(settings)
    except FindingsError as error:
        diagnostics += error.diagnostics
    names = set()
    trees = SourceTrees(remember)
    tree = trees.of(directories[0])
    of_sources: list[Diagnostic] = []
    for directory in directories:
        files.append(build_toml_path(directory))
        try:
            kernel = read_kernel(directory)
        except FindingsError as error:
            diagnostics += error.diagnostics
            continue
        names.add(kernel.build.name)
        unlisted = list(include_not_listed(kernel, settings, tree))
        diagnostics += lint_kernel(kernel, for_kernel(rows, overlays, kernel.build.name), Path(directory), unlisted)
        of_sources += source_findings(kernel, settings, tree.remembered)
    trees.save()
    if settings.document is not None:
        files.append(settings.document.path)
        settings_values = settings.settings
        meant = {item.kernel for item in settings_values.limits} | {item.kernel for item in settings_values.overlay}
        meant |= {item.kernel for item in settings_values.inputs}
        if meant - {None, *names}:
            names |= {kernel.build.name for kernel in read_kernels([str(settings.root)])[0]}
        diagnostics += [*lint_settings(settings, names), *declared_input_missing(settings, tree)]
    return CheckResult(tuple(files), (*drop_suppressed(diagnostics, settings), *of_sources))


def _catalog(name: str | None, settings: RepositorySettings) -> tuple[Catalog, list[Diagnostic]]:
    if name is not None or settings.catalog is None or settings.document is None:
        return load_catalog(name), []
    try:
        return load_catalog(settings.catalog), []
    except KciError as error:
        problem = settings.document.at_value(("catalog",), "KCI332", error.message, error.hint)
        return load_catalog(), [problem, *error.diagnostics]


_OF_ALL = re.compile(rf"{re.escape(KCI_TOML)}|\.github/workflows/kci[^/]*\.ya?ml")


def split_faulty(
    workspace: Workspace, choice: Choice, trees: SourceTrees | None
) -> tuple[Workspace, tuple[FaultyKernel, ...]]:
    """Split kernels into sound and faulty ones; FindingsError if none is sound.

    Sources are checked if `trees` is given. A backend without a component (KCI130) is no fault of a kernel with other
    selected backends; see `split_without_component`.
    """
    sound: list[Kernel] = []
    faulty = list(workspace.unread)
    for kernel in workspace.kernels:
        errors = kernel_errors(workspace, kernel)
        if trees is not None:
            of_sources = source_findings(kernel, workspace.settings, trees.of(kernel.directory).remembered)
            errors += [item for item in of_sources if item.severity is Severity.ERROR]
        if all(item.rule == "KCI130" for item in errors) and not _only_without_component(workspace, kernel, choice):
            sound.append(kernel)
        else:
            errors = errors or list(backend_without_component(kernel))
            faulty.append(FaultyKernel(kernel.directory, kernel.build.name, errors[0].message, tuple(errors)))
    if faulty and not sound:
        every = [item for kernel in faulty for item in kernel.diagnostics]
        hint = "fix them, or name other kernels; `kci check` lists all findings"
        raise FindingsError(f"nothing is planned: {_first_fault(faulty)}", hint=hint, diagnostics=every)
    faulty.sort(key=lambda item: item.path)
    return workspace.with_kernels(sound) if len(sound) < len(workspace.kernels) else workspace, tuple(faulty)


def _first_fault(faulty: Sequence[FaultyKernel]) -> str:
    first = faulty[0].diagnostics[0]
    return f"{first.path}: {first.message}" if first.path else first.message


def _backends_without_component(kernel: Kernel) -> set[str]:
    build = kernel.build
    return {str(item) for item in build.general.backends if build.torch is not None and not build.components(item)}


def _only_without_component(workspace: Workspace, kernel: Kernel, choice: Choice) -> bool:
    bare = _backends_without_component(kernel)
    if not bare:
        return False
    selected_backends = {*choice.backends, *workspace.scopes.get(kernel.directory, ())}
    chosen = {variant.backend for variant in workspace.with_kernels([kernel]).matrix(choice).kernels[0].variants}
    return (
        bare >= {*kernel.build.general.backends} or bool(bare & selected_backends) or (bool(chosen) and bare >= chosen)
    )


def split_without_component(workspace: Workspace, matrix: Matrix) -> tuple[Matrix, list[UnplannedVariant]]:
    """Split off the variants that no component makes (KCI130)."""
    bare = {
        kernel.build.name: (kernel, lacking)
        for kernel in workspace.kernels
        if (lacking := _backends_without_component(kernel))
    }
    unplanned: list[UnplannedVariant] = []
    kernels = []
    for item in matrix.kernels:
        kernel, backends = bare.get(item.name, (None, set()))
        if kernel is not None:
            faults = {fault.message.partition(" ")[0]: fault for fault in backend_without_component(kernel)}
            for variant in item.each_once():
                if variant.backend in backends:
                    why = faults[variant.backend]
                    where = (variant.backend, variant.system, why.rule, why.message, why.path, why.line)
                    unplanned.append(UnplannedVariant(item.name, variant.name, *where))
        remaining = tuple(variant for variant in item.variants if variant.backend not in backends)
        kernels.append(replace(item, variants=remaining))
    return replace(matrix, kernels=tuple(kernels)), unplanned


def require_readable(workspace: Workspace) -> None:
    """Raise FindingsError if a build.toml has an error: workflow files need names, paths and plans."""
    wrong = list(workspace.unread)
    for kernel in workspace.kernels:
        errors = kernel_errors(workspace, kernel)
        if errors:
            wrong.append(FaultyKernel(kernel.directory, kernel.build.name, errors[0].message, tuple(errors)))
    if wrong:
        every = [diagnostic for item in wrong for diagnostic in item.diagnostics]
        raise FindingsError(_first_fault(wrong), hint="`kci check` lists all findings", diagnostics=every)


def touched_since(kernels: Mapping[str, str], workspace: Workspace, base: str) -> frozenset[str]:
    """The directories of the kernels (names by directory) that a change since `base` touches."""
    if not kernels:
        return frozenset()
    changes = changes_since(Path(next(iter(kernels))), base)
    changed = [changes.root.resolve() / file for file in changes.files]
    catalog = workspace.catalog_file
    if any(_OF_ALL.fullmatch(file) for file in changes.files) or (catalog and catalog.resolve() in changed):
        return frozenset(kernels)
    root, settings = workspace.settings.root, workspace.settings.settings
    return frozenset(
        path
        for path, name in kernels.items()
        for places in [[Path(path), *(root / entry for entry in settings.inputs_of(name))]]
        if any(file.is_relative_to(place.resolve()) for place in places for file in changed)
    )
