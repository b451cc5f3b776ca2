"""`--affected`: from a git revision to the part of a matrix that a change touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.errors import KciError
from kci.matrix.variants import KernelMatrix, Matrix
from kci.plan.affected import Before, Touch, View, affected, narrow
from kci.plan.changed_files import Changes, changes_since, read_blob
from kci.plan.inputs import scan

Select = Callable[[Kernel], KernelMatrix]


def only_affected(
    matrix: Matrix,
    kernels: Sequence[Kernel],
    base: str,
    select: Select,
    everywhere: Mapping[Path, str] | None = None,
) -> tuple[Matrix, list[Touch]]:
    """Leave of a matrix what a change since a base touches.

    Args:
        matrix: the matrix of the kernels as they are now.
        kernels: the kernels.
        base: a git revision.
        select: makes the matrix of one kernel as it was, by the same catalog, tier and filters.
        everywhere: further files that decide every kernel, and why.

    Raises:
        MissingToolError: there is no git.
        FindingsError: the change cannot be found out (KCI312).
    """
    changes = changes_since(Path(kernels[0].directory) if kernels else Path(), base)
    by_path = {kernel.directory: kernel for kernel in kernels}
    views = [_view(by_path[selected.path], selected, changes, select) for selected in matrix.kernels]
    others = {_relative(path, changes.root): why for path, why in (everywhere or {}).items()}
    decisions = affected(changes.files, views, {path: why for path, why in others.items() if path is not None})
    return narrow(matrix, decisions), decisions


def _view(kernel: Kernel, selected: KernelMatrix, changes: Changes, select: Select) -> View:
    directory = _relative(Path(kernel.directory), changes.root)
    if directory is None:
        raise KciError(
            f"{kernel.directory} is not in the repository {changes.root}",
            hint="plan kernels of one repository at a time with --affected",
        )
    prefix = f"{directory}/" if directory else ""
    if not _touches(changes.files, prefix):
        return View(selected.name, directory, kernel.build, selected.variants, {})
    before = None
    if f"{prefix}{BUILD_TOML}" in changes.files:
        before = _before(changes, f"{prefix}{BUILD_TOML}", select)
    else:
        before = Before(kernel.build, selected.variants)
    return View(
        selected.name, directory, kernel.build, selected.variants, scan(Path(kernel.directory), kernel.build), before
    )


def _touches(files: Iterable[str], prefix: str) -> bool:
    return any(file.startswith(prefix) for file in files)


def _before(changes: Changes, path: str, select: Select) -> Before | None:
    """The kernel as it was at the base; None if its build.toml was not there or not valid."""
    raw = read_blob(changes.root, changes.base, path)
    if raw is None:
        return None
    try:
        kernel = parse_kernel(raw, shown_as=path)
        return Before(kernel.build, select(kernel).variants)
    except KciError:
        return None


def _relative(path: Path, root: Path) -> str | None:
    """A path relative to the repository's root, empty for the root itself; None if it is outside."""
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        return None
    relative = real.relative_to(root.resolve()).as_posix()
    return "" if relative == "." else relative
