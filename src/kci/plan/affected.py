"""`--affected`: the part of a matrix that a change touches. Nothing is checked out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kci.config.document import MAX_BYTES, parse_document
from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.config.settings import Settings
from kci.errors import KciError, rule_error
from kci.matrix.catalog.runners import Runner, Runners
from kci.matrix.variants import KernelMatrix, Kind, Matrix, Variant
from kci.plan.changes import Changes, changes_since
from kci.plan.fingerprint import Fingerprints, configuration, said
from kci.plan.hardware_tests import TestMachine, machines_for
from kci.plan.inputs.kernel_inputs import BINDING, Effect, active
from kci.plan.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.plan.legs import image_of
from kci.utils.git import list_blobs, read_blob, read_objects


class Terms(msgspec.Struct, frozen=True):
    """What kci.toml, the catalog and the command line say at one end of a change."""

    select: Callable[[Kernel], KernelMatrix]
    """The matrix of one kernel."""
    runners: Runners
    settings: Settings
    container: bool = True
    """True if legs build in images."""


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
    """True if a changed file is the kernel's, or it or its tests read it; else it is as it was, if the settings are."""
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


_SHOWN_KEYS = 4


class KernelEnd(msgspec.Struct, frozen=True, dict=True):
    """A kernel at one end of a change."""

    kernel: Kernel
    prints: Fingerprints
    """Its files there."""
    toolchains: Mapping[Variant, str]
    """Its matrix there, and what compiles each variant."""
    test: Mapping[tuple[str, str], Runner] = {}
    """The machines that test there, by backend and system."""

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each variant by name; raises as `Fingerprints.fingerprint`."""
        return {variant.name: self.prints.fingerprint(variant, by) for variant, by in self.toolchains.items()}

    @cached_property
    def told(self) -> dict[str, tuple[object, ...]]:
        """What build.toml, the catalog and the settings say of each variant by name."""
        build = self.kernel.build
        return {
            variant.name: (configuration(build, variant), said(build, variant), by)
            for variant, by in self.toolchains.items()
        }

    @cached_property
    def machines(self) -> dict[str, tuple[TestMachine, str]]:
        """The machines that test the kernel, by name, each with what its tests depend on beside the tree."""
        found = machines_for([variant.name for variant in self.toolchains], self.test)
        return {machine.name: (machine, machine.inputs(self.prints.tests())) for machine in found}

    def readers(self, effect: Effect) -> set[str]:
        return {
            variant.name
            for variant in self.toolchains
            if (
                effect.noarch
                if variant.kind is Kind.NOARCH
                else effect.labels & {BINDING, *active(self.kernel.build, variant)}
            )
        }


class View(msgspec.Struct, frozen=True, dict=True):
    """One kernel at both ends of a change."""

    name: str
    directory: str
    """Relative to the repository's root, with `/`; empty for the root itself."""
    now: KernelEnd
    then: KernelEnd | None = None
    """How it was; None if it was not there at the base, or could not be planned."""

    @cached_property
    def moved(self) -> frozenset[str]:
        """The variants that are made from something else now, new ones among them."""
        before = self.then.fingerprints if self.then is not None else {}
        return frozenset(name for name, value in self.now.fingerprints.items() if before.get(name) != value)

    @cached_property
    def made_otherwise(self) -> tuple[str, ...]:
        """Those of them of which build.toml or a toolchain says something else: not only the files differ. Sorted."""
        before, now = self.then.told if self.then is not None else {}, self.now.told
        return tuple(sorted(name for name in self.moved if before.get(name) != now[name]))

    @cached_property
    def retested(self) -> dict[str, TestMachine]:
        """The machines on which other tests run now than before, or which were none before, by name."""
        before = {name: inputs for name, (_, inputs) in self.then.machines.items()} if self.then is not None else {}
        return {name: machine for name, (machine, inputs) in self.now.machines.items() if before.get(name) != inputs}

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The variants that moved, and those that have to be there for the tests to run again."""
        return self.moved.union(*(machine.variants for machine in self.retested.values()))


class Touch(msgspec.Struct, frozen=True):
    """What one changed file touches, and why."""

    path: str
    kernel: str
    """Empty for a file that belongs to no kernel and touches none."""
    touches: tuple[str, ...]
    """Names of variants, sorted."""
    reason: str
    tests: tuple[str, ...] = ()
    """The kinds of machine on which the kernel is tested again because of it, sorted."""


def affected(
    changed: Iterable[str], views: Sequence[View], settings: Mapping[str, tuple[str, ...]] | None = None
) -> list[Touch]:
    """What a change touches: at least one decision for each changed file, sorted by path and kernel.

    Paths are relative to the repository's root, with `/`; a renamed file has both names. `settings` are the changed
    files that every kernel is planned by (kci.toml, a catalog), and what changed in each.
    """
    settings = settings or {}
    decisions: list[Touch] = []
    for path in sorted(set(changed)):
        if path in settings:
            found = [
                _by_keys(path, settings[path], view, "decides no variant", tuple(sorted(view.retested)))
                for view in views
            ]
        else:
            owners = [view for view in views if not view.directory or path.startswith(f"{view.directory}/")]
            # A kernel inside another one's directory owns its files alone; who reads it besides says so.
            deepest = max((len(view.directory) for view in owners), default=0)
            owning = [view for view in owners if len(view.directory) == deepest]
            found = [_decide(path, view) for view in owning]
            others = (_decide(path, view) for view in views if view not in owning)
            found += [decision for decision in others if decision.touches or decision.tests]
        decisions += found or [
            Touch(path, "", (), _OF_WORKFLOWS if path.startswith(".github/workflows/") else _OUTSIDE)
        ]
    return sorted(decisions, key=lambda decision: (decision.path, decision.kernel))


def narrow(matrix: Matrix, views: Iterable[View]) -> Matrix:
    """The matrix with the touched variants only, without the kernels that have no such variant.

    A kernel whose tests alone changed keeps the variants that they test; those that a tree has already are not built.
    """
    touched = {view.name: view.wanted for view in views}
    kernels = []
    for kernel in matrix.kernels:
        kept = tuple(item for item in kernel.variants if item.name in touched.get(kernel.name, ()))
        if kept:
            kernels.append(msgspec.structs.replace(kernel, variants=kept))
    return msgspec.structs.replace(matrix, kernels=tuple(kernels))


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a TOML document that differ, dotted; of a table that came or went only its own."""
    return tuple(_differing(old, new, ""))


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differing(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}"


_OF_WORKFLOWS = "a workflow decides no variant; `kci render --check` says whether it is up to date"
_OUTSIDE = "outside of every kernel that is planned"


def _decide(path: str, view: View) -> Touch:
    build_toml = f"{view.directory}/{BUILD_TOML}" if view.directory else BUILD_TOML
    if path == build_toml:
        return _by_build_toml(path, view)
    touched: set[str] = set()
    reasons: list[str] = []
    for end in (view.now, view.then):
        if end is not None:
            effect = end.prints.inputs.effect(path)
            if effect.labels or effect.noarch:
                touched |= end.readers(effect)
                reasons.append(effect.reason)
    touched &= view.moved
    tests: tuple[str, ...] = ()
    if any(end is not None and end.prints.inputs.is_test(path) for end in (view.now, view.then)):
        tests = tuple(sorted(view.retested))
        if not reasons:
            return Touch(path, view.name, (), _of_tests(view), tests)
    if not reasons:
        return Touch(path, view.name, (), view.now.prints.inputs.effect(path).reason)
    if not touched:
        reason = f"{reasons[0]}; but it changes no input of a planned variant"
        return Touch(path, view.name, (), reason, tests)
    return Touch(path, view.name, tuple(sorted(touched)), reasons[0], tests)


def _of_tests(view: View) -> str:
    if view.retested:
        return f"read by the tests, which run again on {', '.join(sorted(view.retested))}"
    if view.now.machines:
        return "read by the tests; but it changes no input of a planned test"
    return "read by the tests, and no job runs them: kci.toml has no machine for the kernel under [test]"


def _by_build_toml(path: str, view: View) -> Touch:
    if view.then is None:
        return Touch(path, view.name, tuple(sorted(view.moved)), "the kernel could not be planned at the base")
    keys = changed_keys(view.then.kernel.document.data, view.now.kernel.document.data)
    return _by_keys(path, keys, view, "is not an input of a variant", ())


def _by_keys(path: str, keys: Sequence[str], view: View, otherwise: str, tests: tuple[str, ...]) -> Touch:
    if not keys:
        return Touch(path, view.name, (), "only comments and layout changed in it")
    more = f" and {len(keys) - _SHOWN_KEYS} more keys" if len(keys) > _SHOWN_KEYS else ""
    nothing = "" if view.made_otherwise else f", which {otherwise}"
    again = f"; the tests run again on {', '.join(tests)}" if tests else ""
    reason = f"{', '.join(keys[:_SHOWN_KEYS])}{more} changed{nothing}{again}"
    return Touch(path, view.name, view.made_otherwise, reason, tests)
