"""`--affected`: what git knows about a change, and the part of a matrix that it touches. Nothing is checked out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kci.catalog.runners import Runners
from kci.config.document import MAX_BYTES, parse_document
from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.config.settings import Settings
from kci.errors import KciError, rule_error
from kci.files.git import GitRefusedError, list_blobs, read_blob, read_objects, ref_names, run_git
from kci.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.matrix.variants import KernelMatrix, Matrix, Variant
from kci.plan.affected import KernelEnd, Touch, View, affected, changed_keys, narrow
from kci.plan.fingerprint import Fingerprints
from kci.plan.legs import image_of
from kci.suggest import suggestion

_DIFFERENCE = re.compile(
    rb"(.*)(?:\n[0-9a-f]{40,64}){2}\n(?:\^([0-9a-f]{40,64})\n)?(?:\^[0-9a-f]{40,64}\n)*", re.DOTALL
)
"""A repository's top directory, the two commits, and where their histories parted: at several places, or at none."""


class Changes(msgspec.Struct, frozen=True):
    """What differs between a base and the working tree."""

    root: Path
    """The repository's top directory."""
    base: str
    """The commit that is compared with: where the history of the base and of HEAD parted."""
    files: tuple[str, ...]
    """Paths relative to the root, sorted. A file that was renamed is there with both names."""


def changes_since(directory: Path, base: str) -> Changes:
    """The files that changed since the history of HEAD left a base, uncommitted and new files among them.

    Raises:
        MissingToolError: there is no git.
        FindingsError: it is no repository, there is no such base, or its history is not here (KCI312).
    """
    if base.startswith("-"):
        raise rule_error("KCI312", f"{base!r} is not a revision", hint="name a branch, a tag or a commit")
    found = _DIFFERENCE.fullmatch(_git(directory, "rev-parse", "--show-toplevel", f"{base}^{{commit}}...HEAD") or b"")
    if found is None:
        if _git(directory, "rev-parse", "--show-toplevel") is None:
            message, hint = f"{directory} is not in a git repository", "--affected needs one; plan without it"
        else:
            message = f"there is no commit {base!r} here"
            hint = suggestion(base, ref_names(directory)) or "fetch it: `fetch-depth: 0` of actions/checkout does"
        raise rule_error("KCI312", message, hint=hint)
    if not found[2]:
        hint = "fetch the whole history: `fetch-depth: 0` of actions/checkout does"
        raise rule_error("KCI312", f"HEAD and {base!r} have no common commit here", hint=hint)
    root, parted = Path(os.fsdecode(found[1])), found[2].decode()
    # Without rename detection a renamed file is one that went and one that came, so both of its names count.
    changed = _git(
        root, "diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
        "--ignore-submodules=none", parted, "--",
    )  # fmt: skip
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if changed is None or untracked is None:
        raise rule_error("KCI312", f"git cannot compare the files with {base!r}", hint="see what `git diff` says")
    names = {os.fsdecode(name) for name in (changed + untracked).split(b"\0") if name}
    return Changes(root, parted, tuple(sorted(names)))


def merged_into(directory: Path, head: str) -> str:
    """The newest commit of the branch that a pull request would be merged into: the first parent of HEAD.

    GitHub checks out a merge commit of its own for a pull request, made when the run starts. `head` is the pull
    request's own newest commit: its first parent would be another commit of the pull request.

    Raises:
        MissingToolError: there is no git.
        FindingsError: HEAD is no such merge commit, or its parents are not here (KCI312).
    """
    found = (_git(directory, "rev-parse", "HEAD^0", "HEAD^1", "HEAD^2") or b"").decode().split()
    if not found or found[0] == head:
        message = "HEAD is not the merge commit that GitHub makes of a pull request, so what it changes is unknown"
        hint = "check it out with `fetch-depth: 2` and no `ref`, as actions/checkout does, or name a commit"
        raise rule_error("KCI312", message, hint=hint)
    return found[1]


def clean_commit(directory: Path) -> str | None:
    """The commit of HEAD if the directory's tracked files are as it has them; None if not, or outside of git."""
    if shutil.which("git") is None:
        return None
    commit = _git(directory, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") or b""
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none")
    return commit.decode("ascii", "replace").strip() or None if changed == b"" else None


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        return run_git(directory, *arguments)
    except GitRefusedError as error:
        raise rule_error("KCI312", error.message, hint=error.hint) from error


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

    `then` says what held at the base; it is called only if one of `settings` changed, the files that every kernel is
    planned by: kci.toml, the catalog if it is a file.

    Raises:
        KciError: as `changes_since`.
    """
    changes = changes_since(Path(kernels[0].directory) if kernels else Path(), base)
    by_path = {kernel.directory: kernel for kernel in kernels}
    deciding = {where: path for path in settings if (where := _relative(path, changes.root)) in changes.files}
    origin = Base(changes.root, changes.base)
    before: Terms | None = now
    if deciding:
        try:
            before = then(origin)
        except KciError:
            before = None
    tree = SourceTree(changes.root)
    old_tree = PatchedTree(tree, _patch(changes))
    views = []
    for selected in matrix.kernels:
        kernel = by_path[selected.path]
        directory = _relative(Path(kernel.directory), changes.root)
        if directory is None:
            message = f"{kernel.directory} is not in the repository {changes.root}"
            raise KciError(message, hint="plan kernels of one repository at a time with --affected")
        prints = Fingerprints(kernel, tree, now.settings.inputs_of(kernel.build.name))
        if deciding or _may_be_touched(directory, prints, changes):
            end = KernelEnd(kernel, prints, _toolchains(selected, now), now.runners.test)
            views.append(View(selected.name, directory, end, _at_base(kernel, directory, changes, old_tree, before)))
    said = {where: _keys(origin, path) for where, path in deciding.items()}
    return narrow(matrix, views), affected(changes.files, views, said)


def _may_be_touched(directory: str, prints: Fingerprints, changes: Changes) -> bool:
    """Whether a changed file is the kernel's, or it or its tests read it; else it is as it was, if the settings are."""
    return any(
        not place or file == place or file.startswith(f"{place}/") or place.startswith(f"{file}/")
        for place in (directory, *prints.inputs.declared)
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


def _toolchains(selected: KernelMatrix, terms: Terms) -> dict[Variant, str]:
    return {variant: image_of(variant, terms.runners, container=terms.container) for variant in selected.each_once()}


def _patch(changes: Changes) -> dict[str, tuple[EntryKind, bytes] | None]:
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
            raise rule_error("KCI312", message, hint=hint)
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


def _relative(path: Path, root: Path) -> str | None:
    """A path relative to the repository's root, empty for the root itself; None if it is outside."""
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        return None
    relative = real.relative_to(root.resolve()).as_posix()
    return "" if relative == "." else relative
