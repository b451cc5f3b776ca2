"""Which variants a file of a kernel decides.

One answer for two questions: what does a change touch (`affected`), and what is a variant made from (`fingerprint`).
A file belongs to the components that list it in `src` and to those whose sources include it. What no component is known
to use counts for every variant, unless it is of a kind that no build reads: tests, benchmarks, documentation.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from kci.config.model import Build, CudaComponent
from kci.config.reader import BUILD_TOML
from kci.config.values import Version, python_name
from kci.matrix.names import Kind
from kci.matrix.variants import Variant

BINDING = ""
"""In place of a component's label: the binding of `[torch]` or `[tvm-ffi]`, which every compiled variant has."""

_INCLUDED_FROM = (".", "csrc", "torch-ext")
"""Directories that builders add to the include path on their own."""

_READ_AT_MOST = 8 * 1024 * 1024
"""Bytes of a source that are searched for includes; beyond that it counts as including anything."""

_NO_INPUT_DIRECTORIES = ("benchmark", "benchmarks", "doc", "docs", "test", "tests")
_NO_INPUT_NAMES = re.compile(r"(?i)(card|changelog|contributing|licen[cs]e|notice|readme)(\..*)?|.*\.md")
_OUTPUT_DIRECTORIES = ("build", "dist", "result")
_BYTECODE = (".pyc", ".pyo")


class Effect(msgspec.Struct, frozen=True):
    """What a file decides: the variants of some components, all variants (None), or nothing (an empty set)."""

    labels: frozenset[str] | None
    reason: str


class Uses(msgspec.Struct, frozen=True):
    """What a component's sources are known to read."""

    listed: frozenset[str]
    """Files in `src`, relative to the kernel's directory."""
    included: frozenset[str] = frozenset()
    """Files of the kernel that the sources include, directly or not."""
    names: frozenset[str] = frozenset()
    """The last part of every name in an `#include`, found or not."""
    anything: bool = False
    """An include that cannot be followed, such as `#include MACRO`: it may stand for any header."""


def active(build: Build, variant: Variant) -> dict[str, tuple[str, ...]]:
    """The labels of the components that are compiled into a variant (a `cuda-minver` can leave some out).

    Returns:
        the label to the files in its `src`.
    """
    if variant.kind is Kind.NOARCH:
        return {}
    compute = Version.parse(variant.compute) if variant.compute else None
    found = {}
    for label, part in build.components(variant.backend).items():
        minver = part.cuda_minver if isinstance(part, CudaComponent) else None
        if minver is None or compute is None or compute >= minver:
            found[label] = part.src
    return found


def listed(build: Build) -> dict[str, Uses]:
    """What build.toml itself says that each component reads; the binding is under `BINDING`."""
    framework = build.torch or build.tvm_ffi
    sources = {label: part.src for label, part in build.kernel.items()}
    if framework is not None:
        sources[BINDING] = framework.src
    return {label: Uses(frozenset(_plain(entry) for entry in src)) for label, src in sources.items()}


def scan(kernel_dir: Path, build: Build) -> dict[str, Uses]:
    """`listed`, and what the listed files include.

    All directories in which a compiler might look are searched, not only the first that has the file, so that too much
    is found rather than too little. Links are followed as long as they stay in the kernel's directory.
    """
    root = Path(os.path.realpath(kernel_dir))
    reader = _Reader(root)
    framework = build.torch or build.tvm_ffi
    shared = tuple(framework.include or ()) if framework is not None else ()
    found = {}
    for label, uses in listed(build).items():
        own = () if label == BINDING else tuple(build.kernel[label].include or ())
        found[label] = reader.follow(uses, (*own, *shared, *_INCLUDED_FROM), _flags(build, label))
    return found


def effect(path: str, build: Build, uses: Mapping[str, Uses]) -> Effect:
    """What a file of a kernel decides.

    Args:
        path: relative to the kernel's directory, with `/`.
        build: the kernel's build.toml.
        uses: from `listed` or `scan`.
    """
    for labels, verb in (
        (_labels(uses, lambda item: path in item.listed), "source of"),
        (_labels(uses, lambda item: path in item.included), "included by"),
    ):
        if BINDING in labels:
            return Effect(None, f"{verb} the binding, which every variant has")
    if path.startswith(package_path(build) + "/"):
        return Effect(None, "part of the Python package, which every variant has")
    reads = _labels(uses, lambda item: path in item.listed or path in item.included)
    reads |= _labels(uses, lambda item: item.anything and _may_be_included(path, uses))
    if BINDING in reads:
        return Effect(None, "perhaps included by the binding, which every variant has")
    if reads:
        return Effect(frozenset(reads), f"read by {', '.join(f'kernel.{label}' for label in sorted(reads))}")
    if reason := _no_input(path):
        return Effect(frozenset(), reason)
    return Effect(None, "no component is known to read it, so any may")


def removed(path: str, uses: Mapping[str, Uses], before: Mapping[str, Uses]) -> Effect | None:
    """What the removal of a file decides: who listed it before, and whoever still includes something of its name.

    Returns:
        None if it was not listed before, so that only its path says anything about it.
    """
    owners = _labels(before, lambda item: path in item.listed)
    if not owners:
        return None
    name = PurePosixPath(path).name
    readers = owners | _labels(uses, lambda item: item.anything or name in item.names)
    if BINDING in readers:
        return Effect(None, "was part of the binding, which every variant has")
    return Effect(frozenset(readers), f"was read by {', '.join(f'kernel.{label}' for label in sorted(readers))}")


def package_path(build: Build) -> str:
    """Where the Python package lies, relative to the kernel's directory (docs/format.md#visible-files)."""
    return f"{'tvm-ffi-ext' if build.tvm_ffi is not None else 'torch-ext'}/{python_name(build.name)}"


def kernel_files(kernel_dir: Path, build: Build, uses: Mapping[str, Uses]) -> list[str]:
    """Every file that may decide a variant, relative to the kernel's directory, sorted; build.toml is not among them.

    Hidden files, bytecode and build outputs are none, except where a component lists them or the package holds them.
    """
    root = Path(os.path.realpath(kernel_dir))
    found = {path for item in uses.values() for path in (*item.listed, *item.included) if not _leads_out(path)}
    found |= set(_walk(root, "", hidden=False))
    found |= set(_walk(root, package_path(build), hidden=True))
    return sorted(found - {BUILD_TOML})


def _walk(root: Path, below: str, *, hidden: bool) -> Iterator[str]:
    for directory, folders, files in os.walk(root / below):
        inside = Path(directory).relative_to(root).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        links = [name for name in folders if Path(directory, name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in links
            and name != "__pycache__"
            and (hidden or not name.startswith("."))
            and not (not prefix and name in _OUTPUT_DIRECTORIES)
        ]
        for name in (*files, *links):
            if (hidden or not name.startswith(".")) and not name.endswith(_BYTECODE):
                yield prefix + name


def _labels(uses: Mapping[str, Uses], test: Callable[[Uses], bool]) -> set[str]:
    return {label for label, item in uses.items() if test(item)}


def _may_be_included(path: str, uses: Mapping[str, Uses]) -> bool:
    """Whether an include that cannot be followed could mean this file: some component has it, and it is no unit."""
    known = any(path in item.listed or path in item.included for item in uses.values())
    return known and not path.endswith((".cpp", ".cc", ".cxx", ".cu", ".mm"))


def _no_input(path: str) -> str:
    parts = PurePosixPath(path).parts
    if parts[0] in _NO_INPUT_DIRECTORIES:
        return f"{parts[0]}/ is not part of any variant"
    if any(part.startswith(".") for part in parts):
        return "hidden files are not part of any variant"
    if parts[0] in _OUTPUT_DIRECTORIES and len(parts) > 1:
        return f"{parts[0]}/ holds what was built"
    if _NO_INPUT_NAMES.fullmatch(parts[-1]):
        return "documentation is not part of any variant"
    return ""


def _plain(entry: str) -> str:
    return os.path.normpath(entry).replace(os.sep, "/")


def _leads_out(path: str) -> bool:
    return path.startswith(("../", "/")) or path == ".."


# A directive that names what it includes, or one that does not; and names that are only asked for. Lengths are bounded,
# so that no file makes the search slow.
_NAME = rb"""["<]([^"<>\n]{1,4096})[">]"""
_INCLUDE = re.compile(rb"^[ \t]*\#[ \t]*(?:include|include_next|import|embed)\b[ \t]*(?:" + _NAME + rb"|(\S))", re.M)
_ASKED = re.compile(rb"__has_(?:include|embed)[ \t]{0,8}\([ \t]{0,8}" + _NAME)


class _Reader:
    """Follows includes inside one kernel; each file is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._found: dict[str, tuple[frozenset[str], bool]] = {}
        self._places: dict[str, str | None] = {}

    def follow(self, uses: Uses, directories: Iterable[str], flags: Iterable[str]) -> Uses:
        shared = [_plain(entry) for entry in directories]
        seen = {path for path in uses.listed if self.place(path) is not None}
        seen |= {path for word in flags for path in self.candidates(word, shared)}
        names: set[str] = set()
        anything = False
        waiting = deque(sorted(seen))
        while waiting:
            path = waiting.popleft()
            real = self.place(path) or path
            wanted, unknown = self.includes(real)
            anything = anything or unknown
            names |= {PurePosixPath(name).name for name in wanted}
            beside = {str(PurePosixPath(place).parent) for place in (path, real)}
            new = {found for name in wanted for found in self.candidates(name, (*beside, *shared))} - seen
            seen |= new
            waiting.extend(sorted(new))
        real_paths = {self.place(path) or path for path in seen}
        return Uses(uses.listed, frozenset((seen | real_paths) - uses.listed), frozenset(names), anything)

    def candidates(self, name: str, directories: Iterable[str]) -> set[str]:
        """The files of the kernel that a name can mean when it is looked up in some directories."""
        paths = {_plain(f"{directory}/{name}") for directory in directories}
        return {path for path in paths if not _leads_out(path) and self.place(path) is not None}

    def place(self, path: str) -> str | None:
        """The real path of a file of the kernel, relative to its directory; None if there is no such file in it."""
        if path not in self._places:
            real = Path(os.path.realpath(self.root / path))
            inside = real.is_relative_to(self.root) and real.is_file()
            self._places[path] = real.relative_to(self.root).as_posix() if inside else None
        return self._places[path]

    def includes(self, path: str) -> tuple[frozenset[str], bool]:
        """The names that a file includes, and whether it includes something that cannot be told."""
        if path not in self._found:
            try:
                with (self.root / path).open("rb") as file:
                    raw = file.read(_READ_AT_MOST + 1)
            except OSError:
                raw = b""
            self._found[path] = _includes(raw)
        return self._found[path]


def _includes(raw: bytes) -> tuple[frozenset[str], bool]:
    # Both with and without comments: a comment can hide a directive, and a text such as "csrc/*.h" looks like one.
    joined = raw.replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    text = joined + b"\n" + _without_comments(joined)
    found = list(_INCLUDE.finditer(text))
    names = {match[1] for match in (*found, *_ASKED.finditer(text)) if match[1]}
    unknown = any(match[2] for match in found) or len(raw) > _READ_AT_MOST
    return frozenset(os.fsdecode(name) for name in names), unknown


def _without_comments(text: bytes) -> bytes:
    parts = []
    position = 0
    while (start := text.find(b"/*", position)) >= 0 and (end := text.find(b"*/", start + 2)) >= 0:
        parts.append(text[position:start])
        position = end + 2
    return b" ".join([*parts, text[position:]])


def _flags(build: Build, label: str) -> Iterator[str]:
    """Every word of a component's flags that may name a file: `-include`'s argument, `@file`, `--option=file`."""
    framework = build.torch or build.tvm_ffi
    owner = framework if label == BINDING else build.kernel[label]
    for key in ("cxx_flags", "cuda_flags", "hip_flags", "sycl_flags"):
        for flag in getattr(owner, key, None) or ():
            word = flag.rpartition("=")[2].lstrip("@")
            if word and not word.startswith("-"):
                yield word
