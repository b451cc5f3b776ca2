"""The inputs of a kernel: the files that affect each variant, for `affected`, fingerprints and
builders.

A compiled variant has the sources of its components and binding, all listed headers, the inputs of
kci.toml, and the installed files of the Python package; a noarch variant has the package. A build
sees no other file.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from kci.config.discovery import companion, find_root, find_settings
from kci.config.model import Build, Component
from kci.config.reader import BUILD_TOML
from kci.config.sources.package_rules import TESTS
from kci.config.values import HEADER_ENDINGS, python_name
from kci.errors import FindingsError, rule_error
from kci.matrix.archs import too_old
from kci.matrix.variants import Kind, Variant
from kci.plan.inputs.source_tree import EntryKind, SourceTree
from kci.utils.walk import is_bytecode

BINDING = ""
"""The label of the binding of `[torch]` or `[tvm-ffi]`, which each compiled variant has."""

SEALED = ("metadata.json", "metadata.json.sigstore")
"""Files that sealing writes; copies in the package would pass for them."""

FLAKE = ("flake.nix", "flake.lock")
MARKER = "kernels_ci"
"""The pytest marker of the tests that CI runs; its declaration in a conftest.py marks none."""

_MARKED = re.compile(
    rb"""^[^#\n]*\b(?:mark\.|add_marker\(\s*["'])%b\b""" % MARKER.encode(), re.MULTILINE
)
_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")
_ALSO_OF_OTHERS = ("pyproject.toml", "setup.cfg", "tox.ini")
_PYTEST_FILES = ("conftest.py", "pytest.ini", ".pytest.ini", *_ALSO_OF_OTHERS)
"""Files that pytest reads in the kernel and each directory above; `_ALSO_OF_OTHERS` only if they
name pytest."""

_Files = frozenset[tuple[str, str]]
"""Pairs of a path in the tree and its real path, empty without a file."""


def active(build: Build, variant: Variant) -> dict[str, Component]:
    """The components of a variant by label, without those that `cuda-minver` excludes
    (docs/format.md#components).
    """
    if variant.kind is Kind.NOARCH:
        return {}
    parts = build.components(variant.backend)
    return {label: part for label, part in parts.items() if not too_old(part, variant.compute)}


def package_path(build: Build) -> str:
    """The Python package, relative to the kernel's directory (docs/format.md#visible-files)."""
    return (
        f"{'tvm-ffi-ext' if build.tvm_ffi is not None else 'torch-ext'}/{python_name(build.name)}"
    )


def is_installed(name: str, build: Build, *, compiled: bool) -> bool:
    """True if a variant carries a file of the package; a compiled one by `pyext`
    (docs/format.md#tree).
    """
    if name in SEALED or is_bytecode(name):
        return False
    return not compiled or name.endswith(tuple(f".{ext}" for ext in ("py", *build.data_extensions)))


class KernelInputs:
    """The files of a kernel and the variants that they affect.

    `tree` is that of its repository, by default of its directory; `extra` are the inputs of
    kci.toml, relative to the tree's root. FindingsError (KCI333) for a missing one.
    """

    def __init__(
        self,
        build: Build,
        directory: Path,
        tree: SourceTree | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        self.build = build
        self.tree = tree or SourceTree(directory)
        real = os.path.realpath(directory)
        if real != self.tree.root and not real.startswith(f"{self.tree.root}/"):
            raise FindingsError(
                f"{directory} is not in {self.tree.root}", hint="plan it from its own repository"
            )
        self.kernel = real[len(self.tree.root) + 1 :]
        self.declared = tuple(self._declared(entry) for entry in extra)
        self._by_labels: dict[tuple[str, ...], _Files] = {}
        self._parents: dict[_Files, frozenset[str]] = {}

    def of(self, variant: Variant) -> _Files:
        """The files that affect a variant; FindingsError for an unreadable directory."""
        return self.compiled_from(variant) | self.package_of(variant)

    def compiled_from(self, variant: Variant) -> _Files:
        if variant.kind is Kind.NOARCH:
            return frozenset()
        labels = tuple(sorted({BINDING, *active(self.build, variant)}))
        if labels not in self._by_labels:
            files = set(self._headers)
            for label in labels:
                files |= self._listed.get(label, frozenset())
            for place in self.declared:
                files.update(self._below(place))
            self._by_labels[labels] = frozenset(files)
        return self._by_labels[labels]

    def package_of(self, variant: Variant) -> _Files:
        return self._package[variant.kind is not Kind.NOARCH]

    def everything(self) -> _Files:
        """All files of the kernel and its declared inputs, and flakes around it, for builders that
        may read any.
        """
        files = {item for place in (self.kernel, *self.declared) for item in self._below(place)}
        found = {(path, self.tree.file(path) or "") for path in self._around(FLAKE)}
        return frozenset(files | {item for item in found if item[1]})

    def _around(self, names: Sequence[str]) -> Iterator[str]:
        """The paths of these names in the kernel and each directory above."""
        folder = f"{self.kernel}/"
        while folder:
            folder = folder.rpartition("/")[0]
            yield from (f"{folder}/{name}".removeprefix("/") for name in names)

    @cached_property
    def leads_out(self) -> bool:
        """True if a link leads to what is neither in the kernel nor a declared input."""
        places = tuple(f"{place}/" if place else "" for place in (self.kernel, *self.declared))
        return any(
            not real.startswith(places)
            for path, real in self.everything()
            if path not in self.declared
        )

    def visible(self) -> frozenset[str]:
        """The paths that any variant's build sees."""
        files = self._headers.union(*self._listed.values(), *self._package)
        declared = (path for place in self.declared for path, _ in self._below(place))
        return frozenset([*(path for path, _ in files), *declared])

    def paths_of(self, variant: Variant, *, everything: bool = False) -> frozenset[str]:
        if everything:
            return self._with_parents(self.everything())
        return self._with_parents(self.compiled_from(variant)) | self._with_parents(
            self.package_of(variant)
        )

    def is_test(self, path: str) -> bool:
        """True if the kernel's tests read this path, or would if it existed."""
        files, folders = self.tests
        return any(path in item for item in files) or any(
            path.startswith(f"{folder}/") for folder in folders
        )

    @cached_property
    def tests(self) -> tuple[_Files, frozenset[str]]:
        """The files and directories of the tests, with what pytest reads around them."""
        own = os.path.relpath(companion(Path(self.tree.root, self.kernel), TESTS), self.tree.root)
        beside = filter(self._may_be_of_pytest, self._around(_PYTEST_FILES))
        places = [Path(own).as_posix(), *beside]
        files: set[tuple[str, str]] = set()
        folders: set[str] = set()
        while places:
            place = places.pop()
            real = self.tree.real(place)
            if real is None or self.tree.kind(real) is not EntryKind.DIRECTORY:
                files.add((place, self.tree.file(place) or ""))
            elif real not in folders:
                folders.add(real)
                places += self.tree.below(real)
        return frozenset(files), frozenset(folders)

    @cached_property
    def marked(self) -> bool | None:
        """True if tests are marked for CI, False if none is, None without tests."""
        files = {path: real for path, real in self.tests[0] if real and path.endswith(".py")}
        found = any(_MARKED.search(self.tree.content(real)) for real in files.values())
        return found if any(map(_TEST_FILE.fullmatch, files)) else None

    def _may_be_of_pytest(self, path: str) -> bool:
        real = self.tree.file(path)
        return (
            real is None
            or not path.endswith(_ALSO_OF_OTHERS)
            or b"pytest" in self.tree.content(real)
        )

    def inside(self, path: str) -> str:
        return f"{self.kernel}/{path}" if self.kernel else path

    def shown(self, path: str) -> str:
        """A path of the tree relative to the kernel, as fingerprints name it."""
        if not self.kernel:
            return path
        prefix = f"{self.kernel}/"
        return (
            path[len(prefix) :] if path.startswith(prefix) else posixpath.relpath(path, self.kernel)
        )

    def _declared(self, entry: str) -> str:
        real = self.tree.real(entry)
        if not real:
            message = f"the declared input {entry!r} is not there, or not in the repository"
            raise rule_error("KCI333", message, path="kci.toml")
        return real

    @cached_property
    def _listed(self) -> dict[str, _Files]:
        framework = self.build.torch or self.build.tvm_ffi
        lists = {BINDING: framework.src} if framework is not None else {}
        lists |= {label: part.src for label, part in self.build.kernel.items()}
        return {label: frozenset(self._entries(src)) for label, src in lists.items()}

    @cached_property
    def _headers(self) -> _Files:
        # Headers of each component and data beside the package: the reference shows them to all
        # variants.
        every = (item for files in self._listed.values() for item in files)
        headers = {item for item in every if item[0].lower().endswith(HEADER_ENDINGS)}
        if endings := tuple(f".{ending}" for ending in self.build.data_extensions):
            beside = self.tree.below(posixpath.dirname(self.inside(package_path(self.build))))
            headers.update(item for item in beside.items() if item[0].endswith(endings))
        return frozenset(headers)

    def _entries(self, src: Iterable[str]) -> Iterator[tuple[str, str]]:
        for entry in src:
            path = posixpath.normpath(self.inside(entry))
            if path.startswith(("/", "../")):
                continue
            yield from self.tree.files(path).items()

    @cached_property
    def _package(self) -> tuple[_Files, _Files]:
        where = self.inside(package_path(self.build))
        files = [item for item in self.tree.files(where).items() if item[0] != where]
        every, some = (
            frozenset(
                item
                for item in files
                if is_installed(item[0][len(where) + 1 :], self.build, compiled=compiled)
            )
            for compiled in (False, True)
        )
        return every, some

    def _with_parents(self, files: _Files) -> frozenset[str]:
        if files not in self._parents:
            paths: set[str] = set()
            for place in (part for item in files for part in item):
                here = place
                while here and here not in paths:
                    paths.add(here)
                    here = here.rpartition("/")[0]
            self._parents[files] = frozenset(paths)
        return self._parents[files]

    def _below(self, place: str) -> list[tuple[str, str]]:
        # build.toml counts by its values, without comments.
        own = self.inside(BUILD_TOML)
        return [item for item in self.tree.files(place).items() if item[0] != own]


def inputs_for(build: Build, directory: Path) -> KernelInputs:
    """The inputs of a kernel in its repository; FindingsError for an invalid kci.toml or a missing
    input (KCI333).
    """
    declared = find_settings(directory).settings.inputs_of(build.name)
    return KernelInputs(build, directory, SourceTree(find_root(directory)[0]), declared)
