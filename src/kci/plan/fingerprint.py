"""Fingerprints: a hash of everything that a variant is made from, so that unchanged published
variants are not rebuilt.

The unique id and the commit in the metadata do not count. In doubt the fingerprint changes: a
needless build costs minutes, a missing one ships old code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kci.config.facts import BACKENDS
from kci.config.model import Build, Component
from kci.config.reader import Kernel
from kci.config.settings import EXTENSIONS
from kci.matrix.archs import component_archs
from kci.matrix.catalog.rows import OLDEST, arch_tables
from kci.matrix.catalog.runners import Runners
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import KernelInputs, active
from kci.plan.inputs.source_tree import EntryKind, SourceTree
from kci.plan.legs import NIX, toolchain_of
from kci.plan.plan import Key
from kci.utils.walk import is_bytecode
from kci.version import __version__

STEPS = f"{EXTENSIONS}/before-build.yml"

SCHEMA = 4
"""Part of each fingerprint: an increment makes all of them new."""

PACKAGE = Path(__file__).parent.parent

_BUILDING = (
    "builders",
    "config/data/backends.toml",
    "matrix/catalog/data/floors.toml",
    "run/build_leg.py",
    "tree/identity.py",
    "tree/metadata.py",
)

_NOT_IN_BYTES = ("archs_since", "bundled", "loads")

_SELECTION_ONLY = ("cuda_minver",)


class Fingerprints:
    """The fingerprints of one kernel's variants."""

    def __init__(
        self, kernel: Kernel, tree: SourceTree | None = None, extra: Sequence[str] = ()
    ) -> None:
        self.inputs = KernelInputs(kernel.build, Path(kernel.directory), tree, extra)
        self._of_files: dict[frozenset[tuple[str, str]], str] = {}

    def fingerprint(self, variant: Variant, toolchain: str, *, everything: bool = False) -> str:
        """The fingerprint of a variant, 64 hexadecimal digits; FindingsError for an unreadable
        file.

        `toolchain` is that of `toolchain_of` for a leg, of `toolchain_identity` here, or empty for
        noarch. `everything` counts all files of the kernel, for builders that may read any (nix).
        """
        inputs = self.inputs
        compiled = inputs.everything() if everything else inputs.compiled_from(variant)
        files = self._hashed(compiled), self._hashed(inputs.package_of(variant))
        return hashlib.sha256(
            b"\0".join([self.facts(variant, toolchain), *map(str.encode, files)])
        ).hexdigest()

    def of_leg(self, variant: Variant, toolchain: str) -> str:
        """The fingerprint of a variant that a leg builds with `toolchain_of`, after the
        repository's own steps.
        """
        steps = f"\n{self._hashed(files)}" if (files := self.steps) else ""
        return self.fingerprint(variant, f"{toolchain}{steps}", everything=toolchain == NIX)

    @property
    def steps(self) -> frozenset[tuple[str, str]]:
        """The file of steps that each build job has before the build, if there is one."""
        real = self.inputs.tree.file(STEPS)
        return frozenset([(STEPS, real)] if real else [])

    def facts(self, variant: Variant, toolchain: str) -> bytes:
        """Everything but files: kci, the toolchain, build.toml and the catalog."""
        build = self.inputs.build
        facts = [
            SCHEMA,
            builder(),
            toolchain,
            configuration(build, variant),
            packaging_facts(build, variant),
        ]
        return msgspec.json.encode(facts, enc_hook=str, order="deterministic")

    def tests(self) -> str:
        return self._hashed(self.inputs.tests[0])

    def _hashed(self, files: frozenset[tuple[str, str]]) -> str:
        if files not in self._of_files:
            shown, digest = self.inputs.shown, self.inputs.tree.digest
            lines = []
            for path, real in sorted(files):
                behind = "" if real == path else shown(real) if real else self._missing_entry(path)
                lines.append(f"{shown(path)}\0{behind}\0{digest(real) if real else ''}\n")
            text = "".join(lines).encode(errors="surrogateescape")
            self._of_files[files] = hashlib.sha256(text).hexdigest()
        return self._of_files[files]

    def _missing_entry(self, path: str) -> str:
        tree = self.inputs.tree
        folder, _, name = path.rpartition("/")
        here = tree.real(folder)
        kind = tree.kind(f"{here}/{name}".removeprefix("/")) if here is not None else None
        return f"-> {tree.target(path)}" if kind is EntryKind.LINK else str(kind)


def fingerprints(
    sources: Mapping[str, Fingerprints], matrix: Matrix, runners: Runners, container: bool | str
) -> dict[Key, str]:
    """The fingerprint of each variant of a matrix, by kernel and variant name; raises as
    `Fingerprints.fingerprint`.
    """
    return {
        (kernel.name, variant.name): sources[kernel.name].of_leg(
            variant, toolchain_of(variant, runners, container)
        )
        for kernel in matrix.kernels
        for variant in kernel.each_once()
    }


def configuration(build: Build, variant: Variant) -> dict[str, Any]:
    """The facts of build.toml and the catalog that affect compiled code, and not only which
    variants exist.
    """
    framework = build.framework
    return {
        "name": build.name,
        "framework": build.framework_name,
        "src": getattr(framework, "src", None),
        "include": getattr(framework, "include", None),
        "cxx-flags": getattr(framework, "cxx_flags", None),
        "variant": {
            key: value
            for key, value in msgspec.structs.asdict(variant).items()
            if key not in _NOT_IN_BYTES
        },
        "components": [_component(part, variant) for part in active(build, variant).values()],
    }


def packaging_facts(build: Build, variant: Variant) -> dict[str, Any]:
    """The facts of build.toml that affect files which are not compiled."""
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
    keys = {
        key: value
        for key, value in msgspec.structs.asdict(part).items()
        if key not in _SELECTION_ONLY
    }
    if BACKENDS[part.backend].archs and variant.compute is not None:
        tables = arch_tables(variant.archs_since or OLDEST)
        keys["built for"] = component_archs(part, variant.compute, tables)
    return keys


@cache
def builder() -> str:
    """The version of kci and a hash of its code and data for builds: commits between releases share
    a version.
    """
    total = hashlib.sha256()
    for part in _BUILDING:
        where = PACKAGE / part
        for file in sorted(where.rglob("*")) if where.is_dir() else [where]:
            name = file.relative_to(PACKAGE).as_posix()
            if file.is_file() and not is_bytecode(name):
                total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return f"{__version__}+{total.hexdigest()[:16]}"


def unchanged_variants(
    fingerprints: Mapping[Key, str], published: Mapping[Key, str]
) -> dict[Key, str]:
    """The variants that are published with the same fingerprint, and a reason to skip each."""
    return {
        key: f"published already with the same fingerprint, {now[:12]}"
        for key, now in fingerprints.items()
        if published.get(key) == now
    }
