"""Lints of the files in build.toml.

Builds see only those of `src` lists (docs/format.md#visible-files).
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kci.config.discovery import RepositorySettings, find_root
from kci.config.document import KeyPath
from kci.config.facts import BACKENDS, SOURCE_ENDINGS, floors
from kci.config.file_lints import compiler_flags
from kci.config.model import Component, Torch, TvmFfi
from kci.config.reader import Kernel
from kci.config.values import CXX_ENDINGS, HEADER_ENDINGS, Version, quoted
from kci.diagnostics import Diagnostic, finding
from kci.errors import KciError
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import select
from kci.matrix.variants import Kind
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import EntryKind, SourceTree
from kci.utils.suggest import nearest_name

_SPLICE = re.compile(rb"\\[ \t\v\f]*\n")
# An unterminated string ends at its line: a search from each quote would be quadratic.
_COMMENT_OR_STRING = re.compile(
    rb"""//[^\n]*|/\*.*?(?:\*/|\Z)|'(?:\\[^\n]|[^'\\\n])'|"(?:\\[^\n]|[^"\\\n])*+"?""", re.DOTALL
)
_INCLUDE = re.compile(
    rb"""^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*include[ \t\v\f]*(?:"([^"\n]{1,400})"|<([^<>\n]{1,400})>)""",
    re.MULTILINE,
)

_CONDITIONAL = re.compile(
    rb"""^[ \t\v\f]*\#[ \t\v\f]*(include|define|endif|ifdef|ifndef|if)\b"""
    rb"""[ \t\v\f]*(?:[<"]([^">\n]{1,400})[>"]|(\w+))?""",
    re.MULTILINE,
)


def quoted_includes(raw: bytes) -> list[str]:
    """The names in quoted includes of a source, in order, without comments and strings."""
    return [name for name, quoted in _parse_includes(raw) if quoted] if b'"' in raw else []


def included(raw: bytes) -> list[str]:
    """The names in all includes of a source."""
    return [name for name, _ in _parse_includes(raw)]


def unconditional_includes(raw: bytes) -> list[str]:
    """The names in includes of a source without a condition other than an include guard; none of
    one that deals with Python's limited API.
    """
    if b"include" not in raw or b"Py_LIMITED_API" in raw:
        return []
    text = _strip_comments(raw)
    names = []
    certain: list[bool] = []
    guard = b""
    for word, name, macro in _CONDITIONAL.findall(text):
        match word:
            case b"include" if name and all(certain):
                names.append(name.decode("utf-8", "replace"))
            case b"endif" if certain:
                certain.pop()
            case b"define" if macro == guard and certain:
                certain[-1] = True
            case b"if" | b"ifdef" | b"ifndef":
                certain.append(False)
        guard = macro if word == b"ifndef" else b""
    return names


def _parse_includes(raw: bytes) -> list[tuple[str, bool]]:
    if b"include" not in raw:
        return []
    matches = _INCLUDE.finditer(_strip_comments(raw))
    return [
        ((match[1] or match[2]).decode("utf-8", "replace"), bool(match[1])) for match in matches
    ]


def _strip_comments(raw: bytes) -> bytes:
    # without comments and BOM, with LF line ends and joined continuation lines
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\\" in text:
        text = _SPLICE.sub(b"", text)
    return _COMMENT_OR_STRING.sub(lambda match: b" " if match[0][:1] == b"/" else match[0], text)


GENERATED = frozenset({"torch-ext/registration.h"})
"""Headers that the generated project provides (docs/format.md#visible-files)."""

MAX_MISSING = 50


class _Source(NamedTuple):
    place: KeyPath
    text: str
    include: tuple[str, ...]


def lint_sources(
    kernel: Kernel, tree: SourceTree, *, errors_only: bool = False
) -> list[Diagnostic]:
    """All findings about the files of a kernel, whose directory is the tree; `errors_only` reads no
    source.
    """
    return [*source_missing(kernel, tree), *(() if errors_only else pybind_included(kernel, tree))]


def source_escapes(kernel: Kernel) -> Iterator[Diagnostic]:
    """KCI137: a path that is absolute or leads out of the kernel, without a look at the disk."""
    for source in _sources(kernel):
        if escapes(source.text):
            message = f"{quoted(source.text[:100])} leads out of the kernel's directory"
            hint = "name files inside the kernel, relative to its build.toml"
            yield kernel.document.at_value(source.place, "KCI137", message, hint)


@lru_cache(maxsize=65536)  # several lints repeat many paths
def escapes(path: str) -> bool:
    """True for a path that is absolute, has a drive, or leads above its start."""
    slashed = path.replace("\\", "/")
    if slashed.startswith("/") or slashed[1:2] == ":":
        return True
    return ".." in slashed and f"{_normal(slashed)}/".startswith("../")


def source_missing(kernel: Kernel, tree: SourceTree) -> Iterator[Diagnostic]:
    """KCI136: a missing file of a `src` list, unless it `escapes`."""
    missing = 0
    for source in _sources(kernel):
        if escapes(source.text):
            continue
        if not source.text.strip() or "\0" in source.text or not _exists(tree, source.text):
            missing += 1
            if missing > MAX_MISSING:
                continue
            hint = "paths are relative to the kernel's directory, not to the file's table"
            if any(char in source.text for char in "*?["):
                hint = "patterns are not expanded: name every file"
            elif submodule := submodule_of(Path(tree.root), source.text):
                hint = (
                    f"it lies in the git submodule {submodule}: `git submodule update --init "
                    "--recursive` fetches it"
                )
            elif near := _nearest_file(tree, source.text):
                hint = f"did you mean `{near}`?"
            yield kernel.document.at_value(
                source.place, "KCI136", f"{quoted(source.text[:100])} does not exist", hint
            )
    if missing > MAX_MISSING:
        message = f"{missing - MAX_MISSING} more sources do not exist"
        hint = "are they generated, or is the checkout incomplete?"
        yield finding("KCI136", message, path=kernel.document.path, hint=hint)


def submodule_of(directory: Path, path: str) -> str:
    """The submodule of .gitmodules that a kernel's path lies in; empty for none."""
    root, _ = find_root(directory)
    try:
        modules = (root / ".gitmodules").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    inside = os.path.relpath(directory.resolve() / path, root)
    places = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", modules, re.MULTILINE)
    return next((place for place in places if Path(inside).is_relative_to(place)), "")


def _nearest_file(tree: SourceTree, path: str) -> str:
    # a near name in its folder, or the same name in another folder
    folder, _, name = path.rpartition("/")
    try:
        here = tree.real(folder)
        entries = {} if here is None else tree.entries(here)
        beside = [entry for entry, kind in entries.items() if kind is EntryKind.FILE]
        if near := nearest_name(name, beside):
            return posixpath.join(folder, near)
        elsewhere = [
            posixpath.join(place, name)
            for place, kind in tree.entries("").items()
            if kind is EntryKind.DIRECTORY and name in tree.entries(place)
        ]
    except KciError:
        return ""
    return elsewhere[0] if len(elsewhere) == 1 else ""


def _exists(tree: SourceTree, path: str) -> bool:
    # A dangling link exists too; a folder of many files is read once.
    folder, _, name = path.rpartition("/")
    try:
        here = tree.real(folder)
        return (here is not None and name in tree.entries(here)) or os.path.lexists(
            f"{tree.root}/{path}"
        )
    except KciError:
        return False


def include_not_listed(
    kernel: Kernel, settings: RepositorySettings, tree: SourceTree
) -> Iterator[Diagnostic]:
    """KCI138: a listed file includes, in quotes, a repository file that no `src` lists; once per
    file.
    """
    try:
        inputs = KernelInputs(
            kernel.build,
            Path(kernel.directory),
            tree,
            settings.settings.inputs_of(kernel.build.name),
        )
        visible = inputs.visible()
    except KciError:
        return
    reported: set[str] = set()
    for source in _sources(kernel):
        path = _normal(inputs.inside(source.text))
        if escapes(source.text) or not path.endswith(SOURCE_ENDINGS):
            continue
        folders = [posixpath.dirname(path), *(inputs.inside(folder) for folder in source.include)]
        for name in _names(tree, path, quoted_includes):
            existing = _own_files(tree, folders, name)
            if not existing or not visible.isdisjoint(existing) or existing[0] in reported:
                continue
            shown = inputs.shown(existing[0])
            if shown in GENERATED:
                continue
            reported.add(existing[0])
            outside = escapes(shown)
            where = "lies outside of the kernel" if outside else "is in no `src` list"
            message = (
                f"{quoted(source.text)} includes {quoted(shown)}, which {where}: no build sees it"
            )
            hint = _DECLARE if outside else f'add "{shown}" to this `src`'
            yield kernel.document.at_value(source.place, "KCI138", message, hint)


_DECLARE = (
    "copy the file into the kernel; or declare it in kci.toml, as `[[inputs]]` with `paths`, and "
    "builds see it"
)


_PYBIND = re.compile(r"pybind11/.+|torch/(?:extension|python|csrc/utils/pybind)\.h")


def pybind_included(kernel: Kernel, tree: SourceTree) -> Iterator[Diagnostic]:
    """KCI167: a source includes pybind11's headers unconditionally: they have no limited API."""
    if any("Py_LIMITED_API" in flag.text for flag in compiler_flags(kernel)):
        return
    for source in _sources(kernel):
        if source.text.endswith(HEADER_ENDINGS):
            continue
        name = next(
            filter(_PYBIND.fullmatch, _foreign_includes(tree, source, unconditional_includes)), ""
        )
        if name:
            message = (
                f"{quoted(source.text)} includes <{name}>: pybind11's headers do not compile with "
            )
            message += "Python's limited API (Py_LIMITED_API), which every native module has"
            yield kernel.document.at_value(source.place, "KCI167", message, INSTEAD_OF_PYBIND)


INSTEAD_OF_PYBIND = (
    "include <torch/all.h>, and where operators are registered <torch/library.h> (TORCH_LIBRARY)"
)


def _foreign_includes(
    tree: SourceTree, source: _Source, parse: Callable[[bytes], list[str]]
) -> list[str]:
    # the names in a source's own includes that are no files of the kernel
    path = _normal(source.text)
    folders = [posixpath.dirname(path), *source.include]
    names = _names(tree, path, parse) if path.endswith(SOURCE_ENDINGS) else []
    return [name for name in names if not _own_files(tree, folders, name)]


def _own_files(tree: SourceTree, folders: Iterable[str], name: str) -> list[str]:
    places = (_normal(posixpath.join(folder, name)) for folder in folders)
    return [place for place in places if not escapes(place) and tree.file(place) is not None]


def _names(tree: SourceTree, path: str, parse: Callable[[bytes], list[str]]) -> list[str]:
    try:
        return [] if escapes(path) else tree.parsed(path, parse)
    except KciError:
        return []


def _sources(kernel: Kernel) -> Iterator[_Source]:
    build = kernel.build
    tables: list[tuple[KeyPath, Torch | TvmFfi | Component, tuple[str, ...]]] = [
        ((name,), table, ())
        for name, table in (("torch", build.torch), ("tvm-ffi", build.tvm_ffi))
        if table is not None
    ]
    tables += [
        (("kernel", label), component, ("csrc",)) for label, component in build.kernel.items()
    ]
    for place, table, more in tables:
        for index, text in enumerate(table.src):
            yield _Source((*place, "src", index), text, (*(table.include or ()), *more))


@lru_cache(maxsize=65536)
def _normal(path: str) -> str:
    return posixpath.normpath(path) if path else ""


def declared_input_missing(settings: RepositorySettings, tree: SourceTree) -> Iterator[Diagnostic]:
    """KCI333: an `[[inputs]]` path that is not in the repository."""
    if settings.document is None:
        return
    for index, entry in enumerate(settings.settings.inputs):
        for number, path in enumerate(entry.paths):
            if not tree.real(path):
                message = f"{quoted(path[:100])} is not in the repository"
                hint = "name a file or directory relative to kci.toml"
                yield settings.document.at_value(
                    ("inputs", index, "paths", number), "KCI333", message, hint
                )


_STANDARD = re.compile(r"--?std=(?:c|gnu)\+\+(\d\d)")
_TORCH_HEADERS = re.compile(
    r"(?:ATen|c10|caffe2|torch)/(?!macros/|headeronly/|csrc/stable/|csrc/inductor/aoti_torch/).+"
)
"""Headers of torch, without those for older standards."""
_DEVICE_SOURCES = {
    facts.flags: facts.endings for facts in BACKENDS.values() if facts.flags and facts.endings
}
_OTHER_COMPILER_SOURCES = {
    "cxx-flags": (".cuh", *sum(_DEVICE_SOURCES.values(), ())),
    **dict.fromkeys(_DEVICE_SOURCES, CXX_ENDINGS),
}
"""Sources of another compiler with other flags."""
_OLD_CENTURY = 90


def lint_standards(kernel: Kernel, catalog: Catalog, tree: SourceTree) -> Iterator[Diagnostic]:
    """KCI159: a flag with a C++ standard older than the headers of a torch accept, once
    per flag.
    """
    old = [
        (flag, int(match[1]))
        for flag in compiler_flags(kernel)
        if flag.place[0] != "tvm-ffi" and (match := _STANDARD.fullmatch(flag.text))
    ]
    if not old:
        return
    variants = [item for item in select(kernel, catalog).variants if item.kind is Kind.FULL]
    for flag, year in old:
        standard = year - 100 if year >= _OLD_CENTURY else year  # `98` was before `11`
        built = {
            item.torch for item in variants if item.torch and flag.backend in ("", item.backend)
        }
        lacking = [torch for torch in sorted(built) if standard < _standard_of(torch)]
        others = _OTHER_COMPILER_SOURCES.get(str(flag.place[-2]), ())
        reads = (
            _foreign_includes(tree, item, included)
            for item in _sources(kernel)
            if item.place[:-2] == flag.place[:-2] and not item.text.endswith(others)
        )
        if lacking and any(_TORCH_HEADERS.fullmatch(name) for names in reads for name in names):
            which = ", ".join(map(str, lacking))
            needed = f"C++{_standard_of(lacking[-1])}, which the headers of torch {which} ask for"
            hint = "remove it: each build has the standard of its torch"
            yield kernel.document.at_value(
                flag.place, "KCI159", f"`{flag.text}` is older than {needed}", hint
            )


def _standard_of(torch: Version) -> int:
    known = floors().cxx_standard.items()
    return max(least for since, least in known if Version.parse(since) <= torch)
