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

from kci.config.facts import BACKENDS
from kci.config.model import Build, Component
from kci.config.reader import Kernel
from kci.config.values import Version
from kci.matrix.archs import component_archs
from kci.matrix.catalog.rows import OLDEST, arch_tables
from kci.matrix.catalog.runners import Runners, default_runners
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import KernelInputs, active
from kci.plan.inputs.source_tree import EntryKind, SourceTree
from kci.plan.legs import image_of
from kci.utils.walk import is_bytecode
from kci.version import __version__

SCHEMA = 4
"""Part of every fingerprint: a change of what is hashed, or how, makes all of them new."""

PACKAGE = Path(__file__).parent.parent
"""Where kci itself lies."""

_BUILDING = (
    "build",
    "config/facts.py",
    "matrix/catalog/data/floors.toml",
    "run/build_leg.py",
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
        self._of_files: dict[frozenset[tuple[str, str]], str] = {}

    def fingerprint(self, variant: Variant, toolchain: str, *, everything: bool = False) -> str:
        """The fingerprint of one variant, 64 hexadecimal digits: over the files that decide it, and what is said of it.

        Args:
            variant: which one.
            toolchain: what compiles it: for a leg what `image_of` says; on this machine what
                `toolchain_identity` of `kci.build` says. Empty for a variant that nothing compiles.
            everything: count every file of the kernel, for a builder that may look at any (nix).

        Raises:
            FindingsError: a file cannot be read.
        """
        inputs = self.inputs
        compiled = inputs.everything() if everything else inputs.compiled_from(variant)
        files = self._hashed(compiled), self._hashed(inputs.package_of(variant))
        return hashlib.sha256(b"\0".join([self.facts(variant, toolchain), *map(str.encode, files)])).hexdigest()

    def facts(self, variant: Variant, toolchain: str) -> bytes:
        """What no file of the kernel decides: kci itself, the toolchain, and what build.toml and the catalog say."""
        build = self.inputs.build
        facts = [SCHEMA, builder(), toolchain, configuration(build, variant), said(build, variant)]
        return msgspec.json.encode(facts, enc_hook=str, order="deterministic")

    def tests(self) -> str:
        """A hash of what the kernel's tests are made of."""
        return self._hashed(self.inputs.tests[0])

    def _hashed(self, files: frozenset[tuple[str, str]]) -> str:
        """A hash over the names and the content of some files."""
        if files not in self._of_files:
            shown, digest = self.inputs.shown, self.inputs.tree.digest
            held = []
            for path, real in sorted(files):
                behind = "" if real == path else shown(real) if real else self._instead(path)
                held.append(f"{shown(path)}\0{behind}\0{digest(real) if real else ''}\n")
            text = "".join(held).encode(errors="surrogateescape")
            self._of_files[files] = hashlib.sha256(text).hexdigest()
        return self._of_files[files]

    def _instead(self, path: str) -> str:
        """What stands where no file of the tree does; building it will fail and say so."""
        tree = self.inputs.tree
        folder, _, name = path.rpartition("/")
        here = tree.real(folder)
        kind = tree.kind(f"{here}/{name}".removeprefix("/")) if here is not None else None
        return f"-> {tree.target(path)}" if kind is EntryKind.LINK else str(kind)


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
    if BACKENDS[part.backend].archs and variant.compute is not None:
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


Key = tuple[str, str]
"""A kernel's name and a variant's."""


def already(fingerprints: Mapping[Key, str], published: Mapping[Key, str]) -> dict[Key, str]:
    """The variants that need not be built, because they are published with the same fingerprint; and why."""
    return {
        key: f"published already with the same fingerprint, {now[:12]}"
        for key, now in fingerprints.items()
        if published.get(key) == now
    }
