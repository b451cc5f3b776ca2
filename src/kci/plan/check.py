"""Checks of build.toml, kci.toml and sources, and the kernels that can be planned in spite of
findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from kci.config.discovery import (
    FaultyKernel,
    RepositorySettings,
    drop_suppressed,
    find_kernels,
    find_root,
    find_settings,
    read_kernels,
    same_names,
)
from kci.config.file_lints import lint_file
from kci.config.reader import Kernel, build_toml_path
from kci.config.sources.package_rules import checker_version, source_findings
from kci.diagnostics import Diagnostic, errors_in, in_file_order
from kci.errors import FindingsError, KciError
from kci.matrix.catalog.loading import for_kernel, load_catalog, overlays_of
from kci.matrix.catalog.rows import Catalog, Overlay
from kci.matrix.lints import lint_matrix
from kci.matrix.variants import Matrix
from kci.plan.inputs.flake import flake_narrows
from kci.plan.inputs.source_lints import (
    declared_input_missing,
    include_not_listed,
    lint_sources,
    lint_standards,
    source_escapes,
)
from kci.plan.inputs.source_tree import SourceTree, SourceTrees
from kci.plan.plan import UnplannedVariant
from kci.plan.settings_lints import lint_settings
from kci.plan.workspace import Choice, Workspace, tier_errors
from kci.utils.frozen import Frozen


class CheckResult(Frozen):
    """The files that were checked, and the findings."""

    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


Progress = Callable[[int, int], None]


def no_progress(_done: int, _total: int) -> None:
    """Says nothing."""


def check_kernels(
    arguments: Sequence[str] = (),
    catalog: str | None = None,
    remember: Path | None = None,
    progress: Progress = no_progress,
) -> CheckResult:
    """Read and lint kernels and their kci.toml; suppressed findings are left out.

    `progress` hears how many kernels of a repository were checked, and of how many. The catalog is
    by default that of kci.toml. UsageError for a missing directory or edition, FindingsError for an
    invalid catalog.
    """
    by_root: dict[Path, list[str]] = {}
    for directory in find_kernels(arguments, pass_over=True):
        by_root.setdefault(find_root(Path(directory))[0], []).append(directory)
    groups = [
        _check_group(group, catalog, remember, progress) for _, group in sorted(by_root.items())
    ]
    diagnostics = [item for checked, _ in groups for item in checked.diagnostics]
    kernels = [kernel for _, workspace in groups for kernel in workspace.kernels]
    diagnostics += same_names((kernel.build.name, kernel.directory) for kernel in kernels)
    if kernels and not errors_in(diagnostics):
        empty = [_nothing_selected(workspace) for _, workspace in groups]
        diagnostics += [item for items in empty for item in items if all(empty)]
    files = sorted(file for checked, _ in groups for file in checked.files)
    return CheckResult(tuple(files), tuple(sorted(diagnostics, key=in_file_order)))


def lint_kernel(
    kernel: Kernel, catalog: Catalog, tree: SourceTree | None, more: Sequence[Diagnostic] = ()
) -> list[Diagnostic]:
    """All findings about a kernel in file order, with `more`; without the `tree` of its files they
    are not checked.
    """
    findings = [
        *kernel.diagnostics,
        *more,
        *lint_file(kernel),
        *source_escapes(kernel),
        *lint_matrix(kernel, catalog),
    ]
    if tree is not None:
        findings += lint_sources(kernel, tree)
        findings += lint_standards(kernel, catalog, tree)
        findings += flake_narrows(kernel, catalog, Path(kernel.directory))
    return sorted(findings, key=in_file_order)


def kernel_errors(
    workspace: Workspace, kernel: Kernel, trees: SourceTrees | None
) -> list[Diagnostic]:
    """The errors of one kernel that are not suppressed: it cannot be built.

    Without `trees` sources do not count.
    """

    def of_texts() -> list[Diagnostic]:
        rows = for_kernel(workspace.catalog, workspace.overlays, kernel.build.name)
        return errors_in(
            [
                *lint_file(kernel),
                *source_escapes(kernel),
                *lint_matrix(kernel, rows, errors_only=True),
            ]
        )

    def texts() -> object:
        read = (kernel.document, workspace.catalog.document, workspace.settings.document)
        return (
            checker_version(),
            workspace.catalog.name,
            [(one.path, one.text) for one in read if one is not None],
        )

    tree = trees.of(kernel.directory) if trees is not None else None
    kept = tree.remembered if tree is not None else None
    question = f"errors of {kernel.document.path}"
    found = of_texts() if kept is None else kept.answer(question, texts, list[Diagnostic], of_texts)
    of_sources: list[Diagnostic] = []
    if tree is not None:
        found += lint_sources(kernel, tree.at(Path(kernel.directory)), errors_only=True)
        of_sources = source_findings(kernel, workspace.settings, kept)
    found = sorted([*kernel.diagnostics, *found], key=in_file_order)
    return errors_in([*drop_suppressed(found, workspace.settings), *of_sources])


def _check_group(
    directories: list[str], catalog: str | None, remember: Path | None, progress: Progress
) -> tuple[CheckResult, Workspace]:
    kernels, unread = read_kernels(directories)
    files = [build_toml_path(directory) for directory in directories]
    diagnostics = [item for kernel in unread for item in kernel.diagnostics]
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
    trees = SourceTrees(remember)
    tree = trees.of(directories[0])
    of_sources: list[Diagnostic] = []
    for number, kernel in enumerate(kernels):
        progress(number, len(kernels))
        unlisted = list(include_not_listed(kernel, settings, tree))
        catalog_rows = for_kernel(rows, overlays, kernel.build.name)
        diagnostics += lint_kernel(kernel, catalog_rows, tree.at(Path(kernel.directory)), unlisted)
        of_sources += source_findings(kernel, settings, tree.remembered)
    trees.save()
    names = {kernel.build.name for kernel in kernels}
    if settings.document is not None:
        files.append(settings.document.path)
        said = settings.settings
        meant = [item.kernel for item in said.limits] + [item.kernel for item in said.overlay]
        if {*meant, *(item.kernel for item in said.inputs)} - {None, *names}:
            names |= {kernel.build.name for kernel in read_kernels([str(settings.root)])[0]}
        diagnostics += [*lint_settings(settings, names), *declared_input_missing(settings, tree)]
    result = CheckResult(tuple(files), (*drop_suppressed(diagnostics, settings), *of_sources))
    return result, Workspace(tuple(kernels), settings, rows, tuple(overlays))


def _nothing_selected(workspace: Workspace) -> tuple[Diagnostic, ...]:
    try:
        workspace.require_variants(workspace.matrix(), Choice())
    except FindingsError as error:
        path = workspace.kernels[0].document.path if len(workspace.kernels) == 1 else ""
        return tuple(replace(item, path=path) for item in error.diagnostics)
    return ()


def _catalog(name: str | None, settings: RepositorySettings) -> tuple[Catalog, list[Diagnostic]]:
    if name is not None or settings.catalog is None or settings.document is None:
        return load_catalog(name), []
    try:
        return load_catalog(settings.catalog), []
    except KciError as error:
        problem = settings.document.at_value(("catalog",), "KCI332", error.message, error.hint)
        return load_catalog(), [problem, *error.diagnostics]


class NoSoundKernelError(FindingsError):
    """Kernels with errors, without which nothing can be done."""

    def __init__(self, faulty: Sequence[FaultyKernel], start: str, hint: str) -> None:
        self.faulty = tuple(sorted(faulty, key=lambda item: item.path))
        every = [item for kernel in faulty for item in kernel.diagnostics]
        place = f"{every[0].path}: " if every[0].path else ""
        super().__init__(f"{start}{place}{every[0].message}", hint, every)


def split_faulty(
    workspace: Workspace, choice: Choice, trees: SourceTrees, progress: Progress = no_progress
) -> tuple[Workspace, tuple[FaultyKernel, ...]]:
    """Split kernels into sound and faulty ones; NoSoundKernelError if none is sound.

    A backend without a component (KCI130) is no fault of a kernel with other selected backends; see
    `split_without_component`.
    """
    sound: list[Kernel] = []
    faulty = list(workspace.unread)
    for number, kernel in enumerate(workspace.kernels):
        progress(number, len(workspace.kernels))
        errors = kernel_errors(workspace, kernel, trees)
        if all(item.rule == "KCI130" for item in errors) and not _only_without_component(
            workspace, kernel, choice
        ):
            sound.append(kernel)
        else:
            faulty.append(_faulty(kernel, errors or lint_file(kernel, ["KCI130"])))
    if faulty and not sound:
        hint = "fix them, or name other kernels; `kci check` lists all findings"
        raise NoSoundKernelError(faulty, "nothing is planned: ", hint)
    return workspace.with_kernels(sound), tuple(sorted(faulty, key=lambda item: item.path))


def _faulty(kernel: Kernel, errors: Sequence[Diagnostic]) -> FaultyKernel:
    return FaultyKernel(kernel.directory, kernel.build.name, errors[0].message, tuple(errors))


def _backends_without_component(kernel: Kernel) -> set[str]:
    build = kernel.build
    return {
        str(item) for item in build.general.backends if build.torch and not build.components(item)
    }


def _only_without_component(workspace: Workspace, kernel: Kernel, choice: Choice) -> bool:
    bare = _backends_without_component(kernel)
    if not bare or bare >= {*kernel.build.general.backends}:
        return bool(bare)
    chosen = {
        variant.backend
        for variant in workspace.with_kernels([kernel]).matrix(choice).kernels[0].variants
    }
    asked = bare & {*choice.backends, *workspace.scopes.get(kernel.directory, ())}
    return bool(asked) or (bool(chosen) and bare >= chosen)


def split_without_component(
    workspace: Workspace, matrix: Matrix
) -> tuple[Matrix, list[UnplannedVariant]]:
    """Split off the variants that no component makes (KCI130)."""
    unplanned: list[UnplannedVariant] = []
    kernels = {item.path: item for item in matrix.kernels}
    for kernel in workspace.kernels:
        if bare := _backends_without_component(kernel):
            item = kernels[kernel.directory]
            faults = {
                fault.message.partition(" ")[0]: fault for fault in lint_file(kernel, ["KCI130"])
            }
            for variant in (variant for variant in item.each_once() if variant.backend in bare):
                why = faults[variant.backend]
                where = (variant.backend, variant.system, why.rule, why.message, why.path, why.line)
                unplanned.append(UnplannedVariant(item.name, variant.name, *where))
            variants = tuple(variant for variant in item.variants if variant.backend not in bare)
            kernels[kernel.directory] = replace(item, variants=variants)
    return replace(matrix, kernels=tuple(kernels.values())), unplanned


def require_readable(workspace: Workspace) -> None:
    """Raise FindingsError if a build.toml has an error: workflow files need names, paths and plans,
    and no sources.
    """
    found = ((kernel, kernel_errors(workspace, kernel, None)) for kernel in workspace.kernels)
    wrong = [*workspace.unread, *(_faulty(kernel, errors) for kernel, errors in found if errors)]
    if wrong:
        raise NoSoundKernelError(wrong, "", "`kci check` lists all findings")
