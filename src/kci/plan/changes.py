"""`--affected`: from a git revision to the part of a matrix that a change touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kci.catalog.runners import Runners
from kci.config.document import MAX_BYTES, parse_document
from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.config.settings import Settings
from kci.diagnostics import finding
from kci.errors import FindingsError, KciError
from kci.files.git import list_blobs, read_blob, read_objects
from kci.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.matrix.variants import KernelMatrix, Matrix, Variant
from kci.plan.affected import KernelEnd, Touch, View, affected, changed_keys, narrow
from kci.plan.changed_files import Changes, changes_since
from kci.plan.fingerprint import Fingerprints, image_of
from kci.plan.legs import each_once


class Terms(msgspec.Struct, frozen=True):
    """What kci.toml, the catalog and the command line say at one end of a change."""

    select: Callable[[Kernel], KernelMatrix]
    """The matrix of one kernel."""
    runners: Runners
    settings: Settings
    container: bool = True
    """Whether legs build in images."""


class Base(msgspec.Struct, frozen=True):
    """Where a change began."""

    root: Path
    """The repository's top directory."""
    commit: str

    def read(self, path: Path) -> bytes | None:
        """What a file of the repository said there; None if it was not there, or is outside of the repository."""
        relative = _relative(path, self.root)
        return read_blob(self.root, self.commit, relative, MAX_BYTES) if relative else None


def only_affected(
    matrix: Matrix,
    kernels: Sequence[Kernel],
    base: str,
    now: Terms,
    then: Callable[[Base], Terms],
    settings: Sequence[Path] = (),
) -> tuple[Matrix, list[Touch]]:
    """Leave of a matrix what a change since a base touches.

    Args:
        matrix: the matrix of the kernels as they are now.
        kernels: the kernels.
        base: a git revision.
        now: what holds now.
        then: says what held at the base; called only if one of `settings` changed.
        settings: the files that every kernel is planned by: kci.toml, the catalog if it is a file.

    Raises:
        MissingToolError: there is no git.
        FindingsError: the change cannot be found out (KCI312), or an include leads out of its kernel (KCI145).
    """
    changes = changes_since(Path(kernels[0].directory) if kernels else Path(), base)
    by_path = {kernel.directory: kernel for kernel in kernels}
    deciding = {where: path for path in settings if (where := _relative(path, changes.root)) in changes.files}
    origin = Base(changes.root, changes.base)
    before = _before(then, origin) if deciding else now
    tree = SourceTree(changes.root)
    old_tree = PatchedTree(tree, _patch(changes))
    views = []
    for selected in matrix.kernels:
        kernel = by_path[selected.path]
        directory = _directory(kernel, changes)
        prints = Fingerprints(kernel, tree, now.settings.inputs_of(kernel.build.name))
        prints.inputs.refuse_escapes()
        if deciding or _may_be_touched(directory, prints, changes):
            end = KernelEnd(kernel, prints, _toolchains(selected, now), now.runners.test)
            views.append(View(selected.name, directory, end, _at_base(kernel, directory, changes, old_tree, before)))
    said = {where: _keys(origin, path) for where, path in deciding.items()}
    return narrow(matrix, views), affected(changes.files, views, said)


def _may_be_touched(directory: str, prints: Fingerprints, changes: Changes) -> bool:
    """Whether a changed file is the kernel's, or it or its tests read it; else it is as it was, if the settings are."""
    return any(
        not place or file == place or file.startswith(f"{place}/") or place.startswith(f"{file}/")
        for place in (directory, *prints.inputs.graph.allowed)
        for file in changes.files
    ) or any(prints.inputs.is_test(file) for file in changes.files)


def _at_base(
    kernel: Kernel, directory: str, changes: Changes, tree: SourceTree, terms: Terms | None
) -> KernelEnd | None:
    """The kernel as it was at the base; None if it was not there, or could not be planned."""
    path = f"{directory}/{BUILD_TOML}" if directory else BUILD_TOML
    if terms is None:
        return None
    try:
        if path in changes.files:
            raw = read_blob(changes.root, changes.base, path, MAX_BYTES)
            if raw is None:
                return None
            kernel = parse_kernel(raw, kernel.directory, shown_as=path)
        prints = Fingerprints(kernel, tree, terms.settings.inputs_of(kernel.build.name))
        end = KernelEnd(kernel, prints, _toolchains(terms.select(kernel), terms), terms.runners.test)
        _ = end.fingerprints, end.machines
    except KciError:
        return None
    return end


def _before(then: Callable[[Base], Terms], base: Base) -> Terms | None:
    try:
        return then(base)
    except KciError:
        return None


def _toolchains(selected: KernelMatrix, terms: Terms) -> dict[Variant, str]:
    return {variant: image_of(variant, terms.runners, container=terms.container) for _, variant in each_once(selected)}


def _patch(changes: Changes) -> dict[str, tuple[EntryKind, bytes] | None]:
    """What the changed files were at the base."""
    blobs = list_blobs(changes.root, changes.base, changes.files)
    contents = read_objects(changes.root, sorted({blob.id for blob in blobs.values() if blob.mode != _SUBMODULE}))
    found: dict[str, tuple[EntryKind, bytes] | None] = dict.fromkeys(changes.files)
    for path, blob in blobs.items():
        if blob.mode == _SUBMODULE:
            found[path] = (EntryKind.OTHER, blob.id.encode())
        elif blob.id in contents:
            found[path] = (EntryKind.LINK if blob.mode == "120000" else EntryKind.FILE, contents[blob.id])
        else:
            message = f"{path} of {changes.base[:12]} is not here: the clone is a partial one"
            hint = "fetch it: a clone without --filter has all"
            raise FindingsError(message, hint=hint, diagnostics=[finding("KCI312", message, hint=hint)])
    return found


_SUBMODULE = "160000"


def _keys(base: Base, path: Path) -> tuple[str, ...]:
    """The keys of a TOML file that changed since the base; all of it if one of the two cannot be read."""
    try:
        now = parse_document(path.read_bytes(), path.name).data if path.is_file() else {}
        raw = base.read(path)
        return changed_keys(parse_document(raw, path.name).data if raw is not None else {}, now)
    except (OSError, KciError):
        return (path.name,)


def _directory(kernel: Kernel, changes: Changes) -> str:
    found = _relative(Path(kernel.directory), changes.root)
    if found is None:
        raise KciError(
            f"{kernel.directory} is not in the repository {changes.root}",
            hint="plan kernels of one repository at a time with --affected",
        )
    return found


def _relative(path: Path, root: Path) -> str | None:
    """A path relative to the repository's root, empty for the root itself; None if it is outside."""
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        return None
    relative = real.relative_to(root.resolve()).as_posix()
    return "" if relative == "." else relative
