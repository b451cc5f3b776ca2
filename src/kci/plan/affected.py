"""`--affected`: the variants and tests that a change touches, by fingerprints at both ends, without
a checkout.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from kci.config.document import MAX_BYTES
from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.config.settings import KCI_TOML
from kci.errors import KciError, rule_error
from kci.matrix.variants import KernelMatrix, Matrix
from kci.plan.fingerprint import STEPS, Fingerprints
from kci.plan.hardware_tests import machine_tests, why_untested
from kci.plan.inputs.kernel_inputs import FLAKE, KernelInputs
from kci.plan.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.plan.legs import NIX, toolchain_of
from kci.plan.plan import TestLeg
from kci.plan.workspace import Choice, Workspace
from kci.utils.frozen import Frozen
from kci.utils.git import (
    GitRefusedError,
    changed_paths,
    list_blobs,
    read_blob,
    read_objects,
    ref_names,
    run_git,
)
from kci.utils.suggest import suggestion

_DIFFERENCE = re.compile(
    rb"(.*)(?:\n[0-9a-f]{40,64}){2}\n(?:\^([0-9a-f]{40,64})\n)?(?:\^[0-9a-f]{40,64}\n)*", re.DOTALL
)
"""The output of git rev-parse: the top directory, two commits, and their merge base."""


class Changes(Frozen):
    """The difference between a base and the working tree."""

    root: Path
    base: str
    files: tuple[str, ...]

    def inside(self, path: Path) -> str | None:
        """The path relative to the root; None for one outside."""
        real, root = path.resolve(), self.root.resolve()
        return "/".join(real.relative_to(root).parts) if real.is_relative_to(root) else None

    def touch(self, places: Iterable[str]) -> bool:
        """True if a file changed at, below or above one of the places."""
        return any(
            not place
            or file == place
            or file.startswith(f"{place}/")
            or place.startswith(f"{file}/")
            for place, file in product(places, self.files)
        )


def changes_since(directory: Path, base: str) -> Changes:
    """The files that changed since the merge base, new ones included; FindingsError (KCI312)
    without a base.
    """
    if base.startswith("-"):
        raise rule_error(
            "KCI312", f"{base!r} is not a revision", hint="name a branch, a tag or a commit"
        )
    output = _DIFFERENCE.fullmatch(
        _git(directory, "rev-parse", "--show-toplevel", f"{base}^{{commit}}...HEAD") or b""
    )
    if output is None or not output[2]:
        if output is not None:
            message = f"HEAD and {base!r} have no common commit here"
            hint = "fetch the whole history: `fetch-depth: 0` of actions/checkout does"
        elif _git(directory, "rev-parse", "--show-toplevel") is None:
            message, hint = (
                f"{directory} is not in a git repository",
                "--affected needs one; plan without it",
            )
        else:
            message = f"there is no commit {base!r} here"
            hint = (
                suggestion(base, ref_names(directory))
                or "fetch it: `fetch-depth: 0` of actions/checkout does"
            )
        raise rule_error("KCI312", message, hint=hint)
    root, parted = Path(os.fsdecode(output[1])), output[2].decode()
    changed = changed_paths(root, parted)
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if changed is None or untracked is None:
        raise rule_error(
            "KCI312", f"git cannot compare the files with {base!r}", hint="see what `git diff` says"
        )
    names = changed.union(os.fsdecode(name) for name in untracked.split(b"\0") if name)
    return Changes(root, parted, tuple(sorted(names)))


def pull_request_base(directory: Path, head: str) -> str:
    """The target branch's newest commit: the first parent of a merge commit at HEAD, else
    FindingsError (KCI312).
    """
    commits = (_git(directory, "rev-parse", "HEAD^0", "HEAD^1", "HEAD^2") or b"").decode().split()
    if not commits or commits[0] == head:
        message = (
            "HEAD is not the merge commit that GitHub makes of a pull request, so what it changes "
            "is unknown"
        )
        hint = (
            "check it out with `fetch-depth: 2` and no `ref`, as actions/checkout does, or name a "
            "commit"
        )
        raise rule_error("KCI312", message, hint=hint)
    return commits[1]


def clean_commit(directory: Path) -> str | None:
    """The commit of HEAD if the tracked files are unchanged; None otherwise and outside of git."""
    if shutil.which("git") is None:
        return None
    commit = _git(directory, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") or b""
    clean = commit and changed_paths(directory, "HEAD") == frozenset()
    return commit.decode("ascii", "replace").strip() if clean else None


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        return run_git(directory, *arguments)
    except GitRefusedError as error:
        raise rule_error("KCI312", error.message, hint=error.hint) from error


_SUBMODULE = "160000"


class Touch(Frozen):
    """The effect of one changed file on one kernel."""

    path: str
    kernel: str
    """Empty for a file that touches no kernel."""
    touches: tuple[str, ...]
    reason: str
    tests: tuple[str, ...] = ()
    """Sorted test machines that test the kernel again because of it."""


def only_affected(
    workspace: Workspace,
    matrix: Matrix,
    choice: Choice,
    changes: Changes,
    *,
    container: bool | str = True,
) -> tuple[Matrix, list[Touch]]:
    """Reduce a matrix to what changes touch, and explain it for each changed file.

    A kernel with changed tests keeps the variants that they test. `container` is as for
    `toolchain_of`. KciError for a kernel in another repository.
    """
    kernels = {kernel.directory: kernel for kernel in workspace.kernels}
    settings = _changed_settings(workspace, changes)
    before = _at_base(workspace, changes) if settings else workspace
    tree = SourceTree(changes.root)
    old_tree = PatchedTree(tree, _patch(changes))
    views, affected = [], []
    for selected in matrix.kernels:
        kernel = kernels[selected.path]
        directory = changes.inside(Path(kernel.directory))
        if directory is None:
            message = f"{kernel.directory} is not in the repository {changes.root}"
            raise KciError(message, hint="plan kernels of one repository at a time with --affected")
        now = _KernelState(kernel, tree, workspace, selected, container)
        if settings or _may_be_touched(directory, now.prints.inputs, changes):
            then = (
                _end_at_base(now, directory, changes, old_tree, before, choice)
                if before is not None
                else None
            )
            view = _KernelChange(selected.name, directory, now, then)
            views.append(view)
            names = view.moved.union(*(test.variants for test in view.tests_to_repeat.values()))
            variants = tuple(item for item in selected.variants if item.name in names)
            affected += [replace(selected, variants=variants)] if variants else []
    touches = [touch for path in changes.files for touch in _touches(path, views, settings)]
    return replace(matrix, kernels=tuple(affected)), touches


def touched_by(changes: Changes, kernels: Mapping[str, str], workspace: Workspace) -> set[str]:
    """The directories of kernels that cannot be planned (names by directory) that changes touch."""
    if _changed_settings(workspace, changes):
        return {*kernels}
    root, declared = workspace.settings.root, workspace.settings.settings.inputs_of
    return {
        path
        for path, name in kernels.items()
        if changes.touch(
            inside
            for place in (Path(path), *(root / entry for entry in declared(name)))
            if (inside := changes.inside(place)) is not None
        )
    }


def _changed_settings(workspace: Workspace, changes: Changes) -> set[str | None]:
    files = (workspace.settings.root / KCI_TOML, workspace.catalog_file)
    return {changes.inside(path) for path in files if path is not None} & {*changes.files}


class _KernelState(Frozen, dict=True):
    """A kernel before or after a change."""

    kernel: Kernel
    tree: SourceTree
    workspace: Workspace
    selected: KernelMatrix
    container: bool | str

    @cached_property
    def prints(self) -> Fingerprints:
        extra = self.workspace.settings.settings.inputs_of(self.kernel.build.name)
        return Fingerprints(self.kernel, self.tree, extra)

    @cached_property
    def variants(self) -> dict[str, tuple[str, tuple[bytes, frozenset[str]]]]:
        variants, prints = {}, self.prints
        for variant in self.selected.each_once():
            toolchain = toolchain_of(variant, self.workspace.runners, self.container)
            paths = (
                prints.inputs.paths_of(variant, everything=toolchain == NIX)
                | dict(prints.steps).keys()
            )
            variants[variant.name] = (
                prints.of_leg(variant, toolchain),
                (prints.facts(variant, toolchain), paths),
            )
        return variants

    @cached_property
    def tests(self) -> dict[str, TestLeg]:
        prints, selected, runners = self.prints, self.selected, self.workspace.runners
        facts = self.variants, runners, prints.tests(), prints.inputs.marked
        return {test.name: test for test in machine_tests(selected.name, selected.path, *facts)}


class _KernelChange(Frozen, dict=True):
    """A kernel before and after a change; `then` is None if it was absent or could not be
    planned.
    """

    name: str
    directory: str
    now: _KernelState
    then: _KernelState | None

    @cached_property
    def moved(self) -> frozenset[str]:
        return frozenset(self.changed_names(0))

    @cached_property
    def tests_to_repeat(self) -> dict[str, TestLeg]:
        before = self.then.tests if self.then is not None else {}
        now = self.now.tests.items()
        return {
            name: test
            for name, test in now
            if name not in before or before[name].inputs != test.inputs
        }

    def changed_names(self, part: int) -> list[str]:
        before, now = self.then.variants if self.then is not None else {}, self.now.variants.items()
        return [name for name, its in now if name not in before or before[name][part] != its[part]]


def _may_be_touched(directory: str, inputs: KernelInputs, changes: Changes) -> bool:
    return (
        inputs.leads_out
        or changes.touch((directory, *inputs.declared))
        or any(
            file == STEPS or file.rpartition("/")[2] in FLAKE or inputs.is_test(file)
            for file in changes.files
        )
    )


def _at_base(workspace: Workspace, changes: Changes) -> Workspace | None:
    def read(path: Path) -> bytes | None:
        relative = changes.inside(path)
        return read_blob(changes.root, changes.base, relative, MAX_BYTES) if relative else None

    try:
        return workspace.at(read)
    except KciError:
        return None


def _end_at_base(
    now: _KernelState,
    directory: str,
    changes: Changes,
    tree: SourceTree,
    workspace: Workspace,
    choice: Choice,
) -> _KernelState | None:
    path, kernel = f"{directory}/{BUILD_TOML}".removeprefix("/"), now.kernel
    try:
        if path in changes.files:
            raw = read_blob(changes.root, changes.base, path, MAX_BYTES)
            if raw is None:
                return None
            kernel = parse_kernel(raw, kernel.directory, shown_as=path)
        selected = workspace.with_kernels([kernel]).matrix(choice).kernels[0]
        end = _KernelState(kernel, tree, workspace, selected, now.container)
        _ = end.variants, end.tests
    except KciError:
        return None
    return end


def _patch(changes: Changes) -> dict[str, tuple[EntryKind, bytes] | None]:
    blobs = list_blobs(changes.root, changes.base, changes.files)
    contents = read_objects(
        changes.root, sorted({blob.id for blob in blobs.values() if blob.mode != _SUBMODULE})
    )
    patch: dict[str, tuple[EntryKind, bytes] | None] = dict.fromkeys(changes.files)
    for path, blob in blobs.items():
        if blob.mode == _SUBMODULE:
            patch[path] = (EntryKind.OTHER, blob.id.encode())
        elif blob.id in contents:
            patch[path] = (
                EntryKind.LINK if blob.mode == "120000" else EntryKind.FILE,
                contents[blob.id],
            )
        else:
            message = f"{path} of {changes.base[:12]} is not here: the clone is a partial one"
            hint = "fetch it: a clone without --filter has all"
            raise rule_error("KCI312", message, hint=hint)
    return patch


def _touches(path: str, views: Sequence[_KernelChange], settings: set[str | None]) -> list[Touch]:
    touches = []
    for view in views:
        touch = _touch(path, view, of_settings=path in settings)
        inside = not view.directory or path.startswith(f"{view.directory}/")
        if touch.touches or touch.tests or inside or path in settings:
            touches.append(touch)
    return touches or [Touch(path, "", (), "outside of every kernel that is planned")]


def _touch(path: str, view: _KernelChange, *, of_settings: bool) -> Touch:
    now, ends = view.now, [end for end in (view.now, view.then) if end is not None]
    tests = of_settings
    if of_settings or path == f"{view.directory}/{BUILD_TOML}".removeprefix("/"):
        touched = view.changed_names(1)
        what = "these variants changed" if touched else "the planned variants is unchanged"
        reason = f"what it says of {what}"
        if view.then is None:
            reason = "the kernel could not be planned at the base"
    else:
        readers = {
            name for end in ends for name, (_, (_, paths)) in end.variants.items() if path in paths
        }
        touched = sorted(readers & view.moved)
        tests = any(end.prints.inputs.is_test(path) for end in ends)
        reason = "no `src` of build.toml lists it, and no variant contains it"
        if readers:
            reason = "an input of these variants"
            if not touched:
                reason = "an input, the same for every planned variant"
        elif tests:
            why = why_untested(now.variants, now.workspace.runners, now.prints.inputs.marked)
            reason = "; ".join(filter(None, ("read by the tests", why)))
    again = tuple(sorted(view.tests_to_repeat)) if tests else ()
    reason += f"; the tests run again on {', '.join(again)}" if again else ""
    return Touch(path, view.name, tuple(touched), reason, again)
