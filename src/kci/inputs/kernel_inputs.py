"""What the variants of a kernel are made from: which file decides which variant, why, and which ones a build read.

One answer for every question about it: what does a change touch (`affected`), what is a variant made from
(`fingerprint`), what may a compiler have read (the builders).

A compiled variant is made from the sources that its components and the binding list, from what those include, and from
the files of the Python package that are installed with it; a variant of Python only is made from the package. No other
file counts. The includes are found by reading the sources (`IncludeGraph`); the build compares them with what the
compiler says that it read, and fails if that is more.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.find_settings import FoundSettings, find_settings, locate
from kci.config.model import Build, Component
from kci.config.reader import BUILD_TOML
from kci.config.values import Version, python_name
from kci.diagnostics import finding
from kci.errors import FindingsError, rule_error
from kci.files.walk import is_bytecode, is_own
from kci.inputs.include_graph import IncludeGraph, Reached
from kci.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.matrix.archs import compiled_components
from kci.matrix.names import Kind
from kci.matrix.variants import Variant

BINDING = ""
"""In place of a component's label: the binding of `[torch]` or `[tvm-ffi]`, which every compiled variant has."""

SEALED = ("metadata.json", "metadata.json.sigstore")
"""Sealing a variant writes them; a copy of them in the package would be taken for the real one."""

_INCLUDED_FROM = ("csrc", ".", "torch-ext")
"""Directories that builders add to the include path on their own."""

_NOTHING = Reached(frozenset())

_TESTS = "tests"
_ALSO_OF_OTHERS = ("pyproject.toml", "setup.cfg", "tox.ini")
_PYTEST_FILES = ("conftest.py", "pytest.ini", ".pytest.ini", *_ALSO_OF_OTHERS)
"""What pytest reads beside the tests and in every directory above; some of it only if that speaks of pytest."""


class Effect(msgspec.Struct, frozen=True):
    """What a file decides: the variants of some components, or of every kind of them, and why."""

    labels: frozenset[str]
    """The components; `BINDING` stands for every compiled variant."""
    noarch: bool
    reason: str


def active(build: Build, variant: Variant) -> dict[str, Component]:
    """The components compiled into a variant, by label; `cuda-minver` can exclude some (docs/format.md#components)."""
    if variant.kind is Kind.NOARCH:
        return {}
    compute = Version.parse(variant.compute) if variant.compute else None
    return compiled_components(build, variant.backend, compute)


def package_path(build: Build) -> str:
    """Where the Python package lies, relative to the kernel's directory (docs/format.md#visible-files)."""
    return f"{'tvm-ffi-ext' if build.tvm_ffi is not None else 'torch-ext'}/{python_name(build.name)}"


def is_installed(name: str, build: Build, *, compiled: bool) -> bool:
    """Whether a variant carries a file of the package: a compiled one only what `pyext` says (docs/format.md#tree)."""
    if name in SEALED or is_bytecode(name):
        return False
    return not compiled or name.endswith(tuple(f".{ext}" for ext in ("py", *build.data_extensions)))


_Path = Annotated[str, Meta(min_length=1, max_length=4096)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class RecordedInputs(msgspec.Struct, frozen=True):
    """What the build of a variant really read: said by its compilers, and kept in the tree's manifest."""

    files: dict[_Path, _Digest]
    """The SHA-256 of each file of the repository, by its path relative to the kernel's directory."""
    toolchain: Annotated[str, Meta(max_length=4096)] = ""
    """The versions of what compiled it; empty where nothing was compiled."""


Asked = dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]]
"""Sources, include directories and flags of each component."""


class _KnownReach(msgspec.Struct, frozen=True, array_like=True):
    state: str
    looked_into: list[str]
    reached: dict[str, Reached]


class KernelInputs:
    """The files of one kernel, and which of its variants each decides.

    Args:
        build: what build.toml says.
        directory: the kernel's.
        tree: the files of its repository; without one, those of its directory alone.
        extra: what kci.toml declares: files and directories outside of the kernel, relative to the tree's root.

    Raises:
        FindingsError: a declared input is not in the tree (KCI333).
    """

    def __init__(
        self, build: Build, directory: Path, tree: SourceTree | None = None, extra: Sequence[str] = ()
    ) -> None:
        self.build = build
        self.tree = tree or SourceTree(directory)
        real = os.path.realpath(directory)
        if real != self.tree.root and not real.startswith(f"{self.tree.root}/"):
            raise FindingsError(f"{directory} is not in {self.tree.root}", hint="plan it from its own repository")
        self.kernel = real[len(self.tree.root) + 1 :]
        self.graph = IncludeGraph(self.tree, self.kernel, tuple(self._declared(entry) for entry in extra))
        self._by_labels: dict[tuple[str, ...], frozenset[tuple[str, str]]] = {}

    def of(self, variant: Variant) -> frozenset[tuple[str, str]]:
        """The files that decide a variant: paths in the tree, and the real path behind each, empty without a file.

        Raises:
            FindingsError: a file cannot be read, or an include leads out of the kernel's directory (KCI145).
        """
        return self.compiled_from(variant) | self.package_of(variant)

    def compiled_from(self, variant: Variant) -> frozenset[tuple[str, str]]:
        """Those of `of` that compilers may read."""
        labels = self._labels(variant)
        if labels not in self._by_labels:
            self.refuse_escapes(labels)
            parts = [self._reached.get(label, _NOTHING) for label in labels]
            found = {item for part in parts for item in part.files | part.refused}
            if any(part.unknown for part in parts):
                found |= {item for item in self._below(self.kernel) if is_own(self.shown(item[0]))}
                found |= {item for part in self._reached.values() for item in part.files}
            self._by_labels[labels] = frozenset(found)
        return self._by_labels[labels]

    def package_of(self, variant: Variant) -> frozenset[tuple[str, str]]:
        """Those of `of` that are files of the Python package, which the variant carries."""
        return self._package[variant.kind is not Kind.NOARCH]

    def of_source(
        self, variant: Variant, source: str, include: Iterable[str], flags: Sequence[str]
    ) -> frozenset[tuple[str, str]]:
        """Those that compiling one source may read; all of `compiled_from`, if an include cannot be followed."""
        reached = self.graph.follow([source], (*include, *self._shared), flags)
        return self.compiled_from(variant) if reached.unknown else reached.files

    def _labels(self, variant: Variant) -> tuple[str, ...]:
        return () if variant.kind is Kind.NOARCH else tuple(sorted({BINDING, *active(self.build, variant)}))

    def everything(self) -> frozenset[tuple[str, str]]:
        """Every file of the kernel and of what is declared: for builders that look at more than the native one."""
        places = (self.kernel, *self.graph.allowed)
        return frozenset(item for place in places for item in self._below(place))

    def effect(self, path: str) -> Effect:
        """What the file at a path of the tree decides."""
        by_label, package, installed = self._places
        reads = {label for label, places in by_label.items() if path in places}
        noarch = path in package and self.build.torch_noarch is not None
        if path in installed:
            return Effect(frozenset({BINDING}), noarch, "part of the Python package, which every variant has")
        if BINDING in reads:
            return Effect(frozenset({BINDING}), noarch, self._why(BINDING, path))
        guessing = {label for label, part in self._reached.items() if part.unknown and self._may_be_any(path)} - reads
        reasons = dict.fromkeys(self._why(label, path) for label in sorted(reads))
        if guessing:
            what = self._reached[min(guessing)].unknown
            reasons[f"perhaps included, for nothing says what this is: {what}"] = None
        if reads | guessing:
            labels = {BINDING} if BINDING in guessing else reads | guessing
            return Effect(frozenset(labels), noarch, "; ".join(reasons))
        if noarch:
            return Effect(frozenset(), True, "part of the Python package of variants without compiled code")
        if path in package:
            return Effect(frozenset(), False, "in the Python package, but `pyext` does not have it installed")
        return Effect(frozenset(), False, "no component reads it")

    def is_test(self, path: str) -> bool:
        """Whether the kernel's tests read a file, or might if it were there."""
        files, folders = self.tests
        return any(path in item for item in files) or any(path.startswith(f"{folder}/") for folder in folders)

    @cached_property
    def tests(self) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
        """The files of the kernel's tests, as `of` says them, and the directories that they lie in, behind links too.

        The tests are a folder, and what pytest reads around it.
        """
        around = [self.kernel]
        while around[-1]:
            around.append(around[-1].rpartition("/")[0])
        beside = (f"{folder}/{name}".removeprefix("/") for folder in around for name in _PYTEST_FILES)
        places = [self.graph.inside(_TESTS), *(path for path in beside if self._may_be_of_pytest(path))]
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

    def _may_be_of_pytest(self, path: str) -> bool:
        real = self.tree.file(path)
        return real is None or not path.endswith(_ALSO_OF_OTHERS) or b"pytest" in self.tree.content(real)

    def shown(self, path: str) -> str:
        """A path of the tree as seen from the kernel's directory; this is how records and fingerprints name files."""
        if not self.kernel:
            return path
        prefix = f"{self.kernel}/"
        return path[len(prefix) :] if path.startswith(prefix) else posixpath.relpath(path, self.kernel)

    def in_tree(self, shown: str) -> str:
        """The path in the tree of what `shown` named."""
        return posixpath.normpath(f"{self.kernel}/{shown}") if self.kernel else posixpath.normpath(shown)

    def escapes(self, labels: Iterable[str] | None = None) -> list[tuple[str, str]]:
        """What to say about includes that lead out of the kernel and are not declared, with their component."""
        return [
            (label, f"{self.shown(it.file)!r} includes {it.name!r}, which leads out of the kernel, to {it.leads_to}")
            for label in (self._reached if labels is None else labels)
            for it in self._reached.get(label, _NOTHING).escapes
        ]

    def unlisted(self, variant: Variant) -> frozenset[str]:
        """The real paths of files that a compiler reads and does not list: those that flags and assembler name."""
        parts = (self._reached.get(label, _NOTHING) for label in self._labels(variant))
        return frozenset().union(*(part.unlisted for part in parts))

    def installed(self, variant: Variant) -> frozenset[str]:
        """The real paths of the files of the Python package that a variant carries."""
        return frozenset(real for _, real in self.package_of(variant))

    def refuse_escapes(self, labels: Iterable[str] | None = None) -> None:
        """Raise a FindingsError (KCI145) about what `escapes` finds."""
        found = dict.fromkeys(message for _, message in self.escapes(labels))
        if found:
            path = self.shown_build_toml
            problems = [finding("KCI145", message, hint=ESCAPE_HINT, path=path) for message in found]
            raise FindingsError(problems[0].message, hint=ESCAPE_HINT, diagnostics=problems)

    @property
    def shown_build_toml(self) -> str:
        """How messages name the kernel's build.toml."""
        return f"{self.kernel}/build.toml" if self.kernel else "build.toml"

    def _declared(self, entry: str) -> str:
        real = self.tree.real(entry)
        if not real:
            message = f"the declared input {entry!r} is not there, or not in the repository"
            raise rule_error("KCI333", message, path="kci.toml")
        return real

    @property
    def _shared(self) -> tuple[str, ...]:
        framework = self.build.torch or self.build.tvm_ffi
        return (*(framework.include or ()), *_INCLUDED_FROM) if framework is not None else _INCLUDED_FROM

    @cached_property
    def asked(self) -> Asked:
        """What the graph is asked for each component, `BINDING` among them."""
        framework = self.build.torch or self.build.tvm_ffi
        shared = self._shared
        asked: Asked = {}
        if framework is not None:
            asked[BINDING] = (framework.src, shared, framework.cxx_flags or ())
        for label, part in self.build.kernel.items():
            asked[label] = (part.src, (*(part.include or ()), *shared), flags_of(part))
        return asked

    @cached_property
    def _reached(self) -> dict[str, Reached]:
        asked, remembered = self.asked, self.tree.remembered
        if remembered is None:
            return {label: self.graph.follow(*words) for label, words in asked.items()}
        with suppress(ValueError, FindingsError):  # no such record, or a file is gone
            known = msgspec.msgpack.decode(remembered.result(self.kernel) or b"", type=_KnownReach)
            if known.state == self._state(asked, known.reached, known.looked_into):
                return known.reached
        # A tree that looks at nothing yet, so that it says afterwards what counted.
        seen = PatchedTree(self.tree, {})
        graph = IncludeGraph(seen, self.kernel, self.graph.allowed)
        found = {label: graph.follow(*words) for label, words in asked.items()}
        if all(os.path.realpath(path).startswith(f"{seen.root}/") for path in graph.beyond):
            with suppress(ValueError):  # a name that is not UTF-8
                known = _KnownReach(self._state(asked, found, seen.listed()), seen.listed(), found)
                remembered.put_result(self.kernel, msgspec.msgpack.encode(known))
        return found

    def _state(self, asked: Asked, reached: Mapping[str, Reached], looked_into: Iterable[str]) -> str:
        """A digest of all that following includes depends on: what was asked, what directories list, what files hold.

        A link counts with the place that it leads to, which may be changed by another one outside of the tree.
        """
        tree, plain = self.tree, EntryKind.FILE
        said = [repr((self.kernel, self.graph.allowed, asked))]
        for directory in looked_into:
            entries = tree.entries(directory)
            names = [name if kind is plain else self._led_to(directory, name, kind) for name, kind in entries.items()]
            said += [f"{directory}//", *sorted(names)]
        for real in sorted({real for part in reached.values() for _, real in part.files}):
            said += [real, tree.digest(real)]
        return hashlib.blake2b("\0".join(said).encode()).hexdigest()

    def _led_to(self, directory: str, name: str, kind: EntryKind) -> str:
        place = os.path.realpath(f"{self.tree.root}/{directory}/{name}") if kind is EntryKind.LINK else ""
        return f"{name}/{kind.name}{place}"

    @cached_property
    def _package(self) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
        # what a noarch variant carries of it, and what a compiled one does
        where = self.graph.inside(package_path(self.build))
        real = self.tree.real(where)
        if real is None or self.tree.kind(real) is not EntryKind.DIRECTORY:
            return frozenset(), frozenset()
        entries = {path[len(real) + 1 :]: behind for path, behind in self.tree.below(real).items()}
        installed = [name for name in entries if is_installed(name, self.build, compiled=False)]
        compiled = [name for name in installed if is_installed(name, self.build, compiled=True)]
        all_files, some = (
            frozenset((f"{where}/{name}", entries[name]) for name in names) for names in (installed, compiled)
        )
        return all_files, some

    @cached_property
    def _places(self) -> tuple[dict[str, frozenset[str]], frozenset[str], frozenset[str]]:
        # where a change touches what each component reads, what noarch variants carry, and what compiled ones do
        by_label = {label: _with_parents(reached.files) for label, reached in self._reached.items()}
        return by_label, _with_parents(self._package[0]), _with_parents(self._package[1])

    def _may_be_any(self, path: str) -> bool:
        return (not self.kernel or path.startswith(f"{self.kernel}/")) and is_own(self.shown(path))

    def _below(self, place: str) -> list[tuple[str, str]]:
        if self.tree.kind(place) is EntryKind.DIRECTORY:
            # What build.toml says is counted by itself, without its comments.
            own = self.graph.inside(BUILD_TOML)
            return [item for item in self.tree.below(place).items() if item[0] != own]
        return [(place, self.tree.file(place) or "")]

    def _why(self, label: str, path: str) -> str:
        what = "the binding, which every compiled variant has" if label == BINDING else f"kernel.{label}"
        part = self.build.torch or self.build.tvm_ffi if label == BINDING else self.build.kernel[label]
        if any(path == posixpath.normpath(self.graph.inside(entry)) for entry in (part.src if part else ())):
            return f"source of {what}"
        return f"included by {what}"


ESCAPE_HINT = (
    "copy the file into the kernel; or declare it in kci.toml, as `[[inputs]]` with `paths`, and it counts as an input"
)


def inputs_for(build: Build, directory: Path, settings: FoundSettings | None = None) -> KernelInputs:
    """The inputs of a kernel in the repository that it lies in, with what its kci.toml declares.

    Raises:
        FindingsError: kci.toml is not valid, or declares an input that is not there (KCI333).
    """
    found = settings or find_settings(directory)
    return KernelInputs(build, directory, SourceTree(locate(directory)[0]), found.settings.inputs_of(build.name))


def flags_of(part: Component) -> tuple[str, ...]:
    """Every flag of a component."""
    keys = ("cxx_flags", "cuda_flags", "hip_flags", "sycl_flags")
    return tuple(flag for key in keys for flag in getattr(part, key, None) or ())


def _with_parents(files: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Where a change changes some files: they, what is behind a link, and each link or submodule on the way to one."""
    found: set[str] = set()
    for place in (part for item in files for part in item):
        here = place
        while here and here not in found:
            found.add(here)
            here = here.rpartition("/")[0]
    return frozenset(found)
