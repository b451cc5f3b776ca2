"""Lints of the files that a build.toml names: are they there, inside the kernel, and all that a build needs.

The reference builds in a sandbox in which only files named in a `src` list are visible (format section 8.1), so that a
header that happens to lie beside a source is not enough.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kci.config.document import KeyPath
from kci.config.lints import at_value
from kci.config.model import DEFAULT_PYEXT
from kci.config.reader import Kernel
from kci.diagnostics import Diagnostic

GENERATED = frozenset({"torch-ext/registration.h"})
"""Headers that the generated project brings along (format section 8.1)."""

_READ_AT_MOST = 2 * 1024 * 1024
_SCANNED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hip", ".hpp", ".hxx", ".inl", ".metal", ".mm")


class _Source(NamedTuple):
    """One entry of a `src` list: where it stands, its text, and where its quoted includes are looked for."""

    place: KeyPath
    text: str
    include: tuple[str, ...]


def lint_sources(kernel: Kernel, directory: Path) -> list[Diagnostic]:
    """Every finding about the files of a kernel.

    Args:
        kernel: its build.toml.
        directory: where it lies on this machine.
    """
    return [*source_missing(kernel, directory), *header_not_listed(kernel, directory)]


def source_escapes(kernel: Kernel) -> Iterator[Diagnostic]:
    """KCI137: a path that is absolute or leads out of the kernel; asks nothing of the disk."""
    for source in _sources(kernel):
        if escapes(source.text):
            message = f"{source.text[:100]!r} leads out of the kernel's directory"
            hint = "name files inside the kernel, relative to its build.toml"
            yield at_value(kernel, source.place, "KCI137", message, hint)


def escapes(path: str) -> bool:
    """Whether a path is absolute, has a drive, or has more `..` than directories before them."""
    slashed = path.replace("\\", "/")
    return slashed.startswith("/") or re.match(r"[A-Za-z]:", slashed) is not None or _normal(slashed).startswith("..")


def source_missing(kernel: Kernel, directory: Path) -> Iterator[Diagnostic]:
    """KCI136: a file of a `src` list does not exist. One that `escapes` is not looked at."""
    for source in _sources(kernel):
        if escapes(source.text):
            continue
        if not source.text.strip() or "\0" in source.text or not os.path.lexists(directory / source.text):
            hint = "paths are relative to the kernel's directory, not to the file's table"
            if any(char in source.text for char in "*?["):
                hint = "patterns are not expanded: name every file"
            yield at_value(kernel, source.place, "KCI136", f"{source.text[:100]!r} does not exist", hint)


def header_not_listed(kernel: Kernel, directory: Path) -> Iterator[Diagnostic]:
    """KCI138: a listed file includes a header that is in the kernel, but in no `src` list.

    Only includes in quotes count, and only files that are there: an include of anything else is the compiler's matter.
    Headers of headers are followed. Each header is reported once, at the first source that needs it.
    """
    listed = {_normal(source.text) for source in _sources(kernel) if not escapes(source.text)}
    below = tuple(f"{entry}/" for entry in listed if (directory / entry).is_dir())
    extensions = tuple(f".{ext}" for ext in kernel.build.framework.pyext or DEFAULT_PYEXT)
    reported: set[str] = set()
    includes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for source in _sources(kernel):
        if escapes(source.text):
            continue
        seen = {_normal(source.text)}
        todo = [_normal(source.text)]
        while todo:
            file = todo.pop()
            if (file, source.include) not in includes:
                includes[file, source.include] = _included(directory, file, source.include)
            for header in includes[file, source.include]:
                if header in seen:
                    continue
                seen.add(header)
                if header in listed or header.startswith(below or ("\0",)):
                    continue  # its own entry follows what it includes
                todo.append(header)
                packaged = header.startswith(("torch-ext/", "tvm-ffi-ext/")) and header.endswith(extensions)
                if header in reported or header in GENERATED or packaged:
                    continue
                reported.add(header)
                message = f"{file!r} includes {header!r}, which is in no `src` list: a sandboxed build will not see it"
                yield at_value(kernel, source.place, "KCI138", message, f'add "{header}" to this `src`')


def _sources(kernel: Kernel) -> Iterator[_Source]:
    build = kernel.build
    for name, table in (("torch", build.torch), ("tvm-ffi", build.tvm_ffi)):
        for index, text in enumerate(table.src if table else ()):
            yield _Source((name, "src", index), text, (table.include if table else None) or ())
    for label, component in build.kernel.items():
        for index, text in enumerate(component.src):
            yield _Source(("kernel", label, "src", index), text, (*(component.include or ()), "csrc"))


_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]{1,400})"', re.MULTILINE)


def _included(directory: Path, file: str, include: tuple[str, ...]) -> list[str]:
    """The files of the kernel that a file includes in quotes, sorted."""
    text = _text(directory, file)
    without = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    headers = set()
    for name in _INCLUDE.findall(without):
        for base in (posixpath.dirname(file), *include):
            header = _normal(posixpath.join(base, name))
            if not escapes(header) and (directory / header).is_file():
                headers.add(header)
                break
    return sorted(headers)


def _text(directory: Path, file: str) -> str:
    """The text of a source inside the kernel; nothing for any other file."""
    path = directory / file
    try:
        if not file.endswith(_SCANNED) or not path.is_file():
            return ""
        if not path.resolve().is_relative_to(directory.resolve()):
            return ""
        with path.open("rb") as stream:
            return stream.read(_READ_AT_MOST).decode("utf-8", "replace").replace("\r\n", "\n").replace("\\\n", "")
    except (OSError, ValueError):
        return ""


def _normal(path: str) -> str:
    return posixpath.normpath(path) if path else ""
