"""Registrations of torch ops in C++ and CUDA sources: their namespace must be the one that the build chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kci.diagnostics import Diagnostic, Span, finding

SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hip", ".hpp", ".mm", ".sycl")
_MAX_BYTES = 4 * 1024 * 1024
_EXISTING = frozenset(("aten", "prim", "prims", "_"))
"""Namespaces of torch itself, for which a kernel may add implementations."""

_NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|'(?:\\.|[^'\\\n])'|"(?:\\.|[^"\\\n])*+"?"""
    r"""|^[ \t]*\#[ \t]*define\b(?:[^\n]*\\\r?\n)*[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
_REGISTRATION = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(_FRAGMENT|_IMPL)?(_EXPAND)?\s*\(\s*(\w+)")


def check_cpp(files: Iterable[tuple[Path, str]]) -> Iterator[Diagnostic]:
    """The rules about source files.

    Args:
        files: each with its path for diagnostics.
    """
    for path, shown in files:
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError as error:
            yield finding("KCI700", f"cannot read it: {error.strerror}", path=shown)
            continue
        if "TORCH_LIBRARY" in text:
            yield from _registrations(text, shown)


def _registrations(text: str, shown: str) -> Iterator[Diagnostic]:
    code = _NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    line, counted = 1, 0
    for found in _REGISTRATION.finditer(code):
        impl, expand, namespace = found[1] == "_IMPL", bool(found[2]), found[3]
        line += code.count("\n", counted, found.start(3))
        counted = found.start(3)
        macro = namespace.isupper() and not namespace.isdigit()
        if (expand and macro) or (impl and namespace in _EXISTING):
            continue
        name = found[0].partition("(")[0].strip()
        column = counted - code.rfind("\n", 0, counted)
        why = (
            f"{name} does not expand {namespace}" if macro else f"{name} registers ops under the fixed name {namespace}"
        )
        base = name.removesuffix("_EXPAND")
        yield finding(
            "KCI781", why, hint=f"#include \"registration.h\", then {base}_EXPAND(TORCH_EXTENSION_NAME, ...)",
            path=shown, span=Span(line, column, line, column + len(namespace)),
        )  # fmt: skip
