"""What a variant is made from, as one hash, and so: which variants need not be built, because they are published.

Two variants of the same fingerprint are the same binaries up to what every build has of its own: the unique id (which
names the module after the state of the repository) and the commit in the metadata. So a published variant need not be
built again while its fingerprint stays. In doubt the fingerprint moves: a build too many costs minutes, one too few
ships old code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kci.catalog.arch_tables import OLDEST, arch_tables
from kci.catalog.runners import Runners, default_runners
from kci.config.model import Build, Component, CudaComponent, RocmComponent
from kci.config.reader import Kernel
from kci.config.values import Version
from kci.files.walk import is_bytecode
from kci.inputs.changed_objects import compiled_again
from kci.inputs.kernel_inputs import KernelInputs, RecordedInputs, active
from kci.inputs.source_tree import EntryKind, SourceTree
from kci.matrix.archs import component_archs
from kci.matrix.names import Kind
from kci.matrix.variants import Matrix, Variant
from kci.plan.legs import image_of
from kci.plurals import count
from kci.version import __version__

SCHEMA = 3
"""Part of every fingerprint: a change of what is hashed, or how, makes all of them new."""

PACKAGE = Path(__file__).parent.parent
"""Where kci itself lies."""

_PART = 32
"""Digits of each part of a fingerprint; 128 bits are enough against accidents, and there is no reason to forge one."""

_BUILDING = (
    "builders",
    "processes",
    "toolchains",
    "catalog/data/floors.toml",
    "inputs/changed_objects.py",
    "run/one_variant.py",
    "tree/digest.py",
    "tree/identity.py",
    "tree/metadata.py",
)
"""The parts of kci that decide what is in a variant directory."""

_NOT_IN_BYTES = ("archs_since", "bundled", "loads")
"""What is known of a variant and decides nothing about its bytes."""

_SELECTION_ONLY = ("cuda_minver",)
"""Keys of a component that say whether it is compiled, and nothing about how."""


class Fingerprints:
    """The fingerprints of one kernel's variants."""

    def __init__(self, kernel: Kernel, tree: SourceTree | None = None, extra: Sequence[str] = ()) -> None:
        """Nothing is read yet. `tree` and `extra` are those of `KernelInputs`."""
        self.inputs = KernelInputs(kernel.build, Path(kernel.directory), tree, extra)
        self._of_files: dict[frozenset[tuple[str, str]], tuple[str, str]] = {}

    def fingerprint(self, variant: Variant, toolchain: str, *, everything: bool = False) -> str:
        """The fingerprint of one variant, 96 hexadecimal digits.

        The first third is over what its code is made with and the names of the files that compilers may read, the
        second over their content, the last over the Python package and what metadata.json says: see `still_holds`
        and `compiled_again`.

        Args:
            variant: which one.
            toolchain: what compiles it: for a leg what `image_of` says; on this machine what
                `toolchain_identity` of `kci.builders` says. Empty for a variant that nothing compiles.
            everything: count every file of the kernel, for a builder that may look at any (nix).

        Raises:
            FindingsError: a file cannot be read, or an include leads out of the kernel (KCI145).
        """
        inputs = self.inputs
        names, contents = self._hashed(inputs.everything() if everything else inputs.compiled_from(variant))
        made_with = [SCHEMA, builder(), toolchain, configuration(inputs.build, variant), names]
        package = [said(inputs.build, variant), *self._hashed(inputs.package_of(variant))]
        return _short(made_with) + contents[:_PART] + _short(package)

    def still_holds(self, now: str, then: str, read: Mapping[str, str]) -> bool:
        """Whether a variant that was built earlier is what a build would give now, by what its build really read.

        It is if it is made with the same, no file came or went that a compiler might look for, and what was read (the
        digests of files as `KernelInputs.shown` names them) has not changed. What a build may read and did not (the
        header of another backend, say) may differ.
        """
        (made, _, package), (made_then, _, package_then) = _parts(now), _parts(then)
        return bool(read) and (made, package) == (made_then, package_then) and not self._changed(read)

    def compiled_again(self, variant: Variant, now: str, then: PublishedVariant) -> frozenset[str] | None:
        """The sources that have to be compiled where all objects of an earlier build are there; None where that is all.

        They are as build.toml names them: those that read what changed since, and those with the kernel's id, which
        every commit changes. Raises as `fingerprint`.
        """
        (made, compiled, _), (made_then, compiled_then, _) = _parts(now), _parts(then.fingerprint)
        if made != made_then:
            return None
        if compiled == compiled_then:
            return compiled_again(self.inputs, variant, ())
        if then.inputs is None or not then.inputs.files:
            return None
        return compiled_again(self.inputs, variant, self._changed(then.inputs.files))

    def _changed(self, read: Mapping[str, str]) -> set[str]:
        """Of files that were read, by their digests then, the paths in the tree of those that are others now."""
        tree, found = self.inputs.tree, set()
        for shown, digest in read.items():
            path = self.inputs.in_tree(shown)
            real = tree.file(path)
            if real is None or tree.digest(real) != digest:
                found |= {path, real or path}
        return found

    def tests(self) -> str:
        """A hash of what the kernel's tests are made of."""
        return self._hashed(self.inputs.tests[0])[1]

    def _hashed(self, files: frozenset[tuple[str, str]]) -> tuple[str, str]:
        """A hash over the names of some files, and one over names and content."""
        if files not in self._of_files:
            shown, digest = self.inputs.shown, self.inputs.tree.digest
            named, held = [], []
            for path, real in sorted(files):
                name = shown(path)
                behind = name if real == path else shown(real) if real else self._instead(path)
                named.append(f"{name}\0{behind}\n")
                held.append(f"{name}\0{digest(real) if real else behind}\n")
            self._of_files[files] = (_digest_of(named), _digest_of(held))
        return self._of_files[files]

    def _instead(self, path: str) -> str:
        """What stands where no file of the tree does; building it will fail and say so."""
        tree = self.inputs.tree
        kind = tree.kind(path)
        return f"-> {tree.target(path)}" if kind is EntryKind.LINK else str(kind)


def _parts(fingerprint: str) -> tuple[str, str, str]:
    return fingerprint[:_PART], fingerprint[_PART : 2 * _PART], fingerprint[2 * _PART :]


def _short(values: Sequence[Any]) -> str:
    data = msgspec.json.encode(values, enc_hook=str, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:_PART]


def fingerprints(
    kernels: Iterable[Kernel],
    matrix: Matrix,
    runners: Runners | None = None,
    *,
    container: bool = True,
    source: Callable[[Kernel], Fingerprints] = Fingerprints,
) -> dict[tuple[str, str], str]:
    """The fingerprints of every variant of a matrix, by kernel and variant name.

    `runners` say where the images of the legs come from, `source` makes the object that is asked for a kernel: it knows
    the repository's files and the declared inputs. Raises as `Fingerprints.fingerprint`.
    """
    runners = runners or default_runners()
    by_path = {kernel.directory: kernel for kernel in kernels}
    found = {}
    for selected in matrix.kernels:
        prints = source(by_path[selected.path])
        for variant in selected.each_once():
            found[selected.name, variant.name] = prints.fingerprint(
                variant, image_of(variant, runners, container=container)
            )
    return found


def configuration(build: Build, variant: Variant) -> dict[str, Any]:
    """What build.toml and the catalog decide about a variant's code.

    Bounds on versions, the edition, the place on the Hub and the labels of components decide which variants there are
    and where they go, not what is in them.
    """
    framework = build.framework
    return {
        "name": build.name,
        "framework": build.framework_name,
        "src": getattr(framework, "src", None),
        "include": getattr(framework, "include", None),
        "cxx-flags": getattr(framework, "cxx_flags", None),
        "variant": {key: value for key, value in msgspec.structs.asdict(variant).items() if key not in _NOT_IN_BYTES},
        "components": [_component(part, variant) for part in active(build, variant).values()],
    }


def said(build: Build, variant: Variant) -> dict[str, Any]:
    """What build.toml decides about the files of a variant that no compiler makes."""
    general = build.general
    own = getattr(general, variant.backend, None)
    return {
        "version": general.version,
        "license": general.license,
        "upstream": general.upstream,
        "source": general.source,
        "python-depends": [general.python_depends, getattr(own, "python_depends", None)],
        "kernel-depends": [general.kernel_depends, getattr(own, "kernel_depends", None)],
        "pyext": build.framework.pyext if variant.kind is not Kind.NOARCH else None,
    }


def _component(part: Component, variant: Variant) -> dict[str, Any]:
    keys = {key: value for key, value in msgspec.structs.asdict(part).items() if key not in _SELECTION_ONLY}
    if isinstance(part, CudaComponent | RocmComponent) and variant.compute is not None:
        tables = arch_tables(variant.archs_since or OLDEST)
        keys["built for"] = component_archs(part, Version.parse(variant.compute), tables)
    return keys


@cache
def builder() -> str:
    """The builder's version: kci's own, and a hash of the code and data that make variants.

    The version alone would not do: an action is used by commit, and commits between two releases share a version.
    """
    total = hashlib.sha256()
    for part in _BUILDING:
        where = PACKAGE / part
        for file in sorted(where.rglob("*")) if where.is_dir() else [where]:
            name = file.relative_to(PACKAGE).as_posix()
            if file.is_file() and not is_bytecode(name):
                total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return f"{__version__}+{total.hexdigest()[:16]}"


def _digest_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


Key = tuple[str, str]
"""A kernel's name and a variant's."""


class PublishedVariant(msgspec.Struct, frozen=True):
    """A variant that is published and whole."""

    fingerprint: str
    """What it was made from, as the plan of its run said."""
    inputs: RecordedInputs | None = None
    """What its build really read."""


class Already(msgspec.Struct, frozen=True):
    """What need not be built."""

    reasons: dict[Key, str]
    """Why, for each variant."""
    fingerprints: dict[Key, str]
    """The fingerprints of all variants; of these the published ones, so that merging knows them again."""
    again: dict[Key, frozenset[str]] = {}
    """Of others, the sources that are compiled where the objects of what is published are kept."""


def already(
    fingerprints: Mapping[Key, str], known: Mapping[Key, PublishedVariant], prints_of: Callable[[str], Fingerprints]
) -> Already:
    """The variants that need not be built, by what is planned and what is published.

    `prints_of` gives the files of a kernel by its name, to compare them with what a build read.
    """
    reasons: dict[Key, str] = {}
    kept: dict[Key, str] = {}
    for key, now in fingerprints.items():
        found = known.get(key)
        if found is None:
            continue
        if found.fingerprint == now:
            reasons[key] = f"published already with the same fingerprint, {now[:12]}"
        elif found.inputs is not None and prints_of(key[0]).still_holds(now, found.fingerprint, found.inputs.files):
            read = count(len(found.inputs.files), "file")
            reasons[key] = f"published already, and nothing changed in the {read} that its build read"
            kept[key] = found.fingerprint
    return Already(reasons, {**fingerprints, **kept})
