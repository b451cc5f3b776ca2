"""Rules about torch op registrations that each file shows by itself; loading a built variant judges
what it registers.

The namespace comes from the build (docs/format.md#requirements).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from kci.config.sources.imports import last_name, node_span
from kci.diagnostics import Diagnostic, Span, finding

PREFIX = "add_op_namespace_prefix"
_PREFIXES = (PREFIX, f"torch_{PREFIX}")
_DECORATORS = frozenset(
    (
        "custom_op",
        "register_fake",
        "register_kernel",
        "register_torch_dispatch",
        "register_vmap",
        "triton_op",
    )
)
_REGISTERING = _DECORATORS | {"define", "impl", "register_autocast", "register_autograd"}
_IMPORT_IT = f"import {PREFIX} from the package's own _ops, and call it with the op's name"


def check_ops(tree: ast.Module, package: str) -> Iterator[Diagnostic]:
    """Yield the findings about ops of a Python file, without paths."""
    judged: set[ast.AST] = set()
    for definition in tree.body:
        for decorator in getattr(definition, "decorator_list", ()):
            match decorator:
                case ast.Call(func=function, args=[op_name, *_]) if (
                    last_name(function) in _DECORATORS
                ):
                    judged.add(decorator)
                    yield from _name_of_op(decorator, last_name(function), op_name)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *rest]) if (
                node not in judged
            ):
                if _registers(last_name(function), name, rest):
                    message = f"{last_name(function)} takes the fixed name {name!r}"
                    yield finding("KCI772", message, hint=_IMPORT_IT, span=node_span(node))
            case ast.FunctionDef(name=name) if name in _PREFIXES and any(
                map(_has_namespace, ast.walk(node))
            ):
                message = (
                    f"{name} of this file gives ops a fixed namespace, also to those of another "
                    "build"
                )
                yield finding("KCI779", message, hint=_IMPORT_IT, span=node_span(node))
            case ast.Attribute(
                attr=used, value=ast.Attribute(attr="ops", value=ast.Name(id="torch"))
            ) if used == package:
                message = (
                    f"it uses torch.ops.{package}, and no build of this kernel registers that "
                    "namespace"
                )
                hint = "from ._ops import ops, then ops.<name>"
                yield finding("KCI780", message, hint=hint, span=node_span(node))


def _registers(function: str, name: str, rest: list[ast.expr]) -> bool:
    if function == "Library":  # "IMPL" extends an existing namespace such as aten
        return any(
            isinstance(kind, ast.Constant) and kind.value in ("DEF", "FRAGMENT") for kind in rest
        )
    namespace, separator, _ = name.partition("::")
    return function in _REGISTERING and bool(separator) and namespace not in _EXISTING


def _name_of_op(decorator: ast.Call, function: str, name: ast.expr) -> Iterator[Diagnostic]:
    called = last_name(name.func) if isinstance(name, ast.Call) else ""
    if called not in _PREFIXES:
        rule, how = ("KCI779", f"by {called}, and not by") if called else ("KCI772", "without")
        yield finding(
            rule,
            f"{function} takes its op name {how} {PREFIX}",
            hint=_IMPORT_IT,
            span=node_span(decorator),
        )


def _has_namespace(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "::" in node.value


SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hip", ".hpp", ".mm", ".sycl")
_MAX_BYTES = 4 * 1024 * 1024
_EXISTING = frozenset(("aten", "prim", "prims", "_"))
"""Torch's own namespaces, for which kernels may register implementations."""

# Comments, literals, and macro definitions with continued lines.
_NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|'(?:\\.|[^'\\\n])'|"(?:\\.|[^"\\\n])*+"?"""
    r"""|^[ \t]*\#[ \t]*define\b(?:[^\n]*\\\r?\n)*[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
# `TORCH_LIBRARY(ns`, also for stable ABI, fragments and implementations.
_REGISTRATION = re.compile(
    r"\b((?:STABLE_)?TORCH_LIBRARY(_FRAGMENT|_IMPL)?)(?:_EXPAND)?\s*\(\s*(\w+)"
)


_CONDITION = re.compile(r"^[ \t]*\#[ \t]*(if|endif)", re.MULTILINE)


def check_cpp(
    files: Iterable[tuple[str | Path, str]], together: Iterable[Collection[str]] = ()
) -> Iterator[Diagnostic]:
    """Yield the findings about ops of C++ and CUDA files; `together` are the shown paths that each
    variant compiles.
    """
    texts: dict[str, str] = {}
    for path, shown in files:
        try:
            with open(path, "rb") as file:  # noqa: PTH123  - a Path for each file costs more than reading it
                text = file.read(_MAX_BYTES)
        except OSError as error:
            yield finding("KCI700", f"cannot read it: {error.strerror}", shown)
            continue
        if b"TORCH_LIBRARY" in text:
            texts[shown] = text.decode("utf-8", "replace")
            yield from _registrations(texts[shown], shown)
    twice = (
        item
        for names in together
        for item in _libraries({name: texts[name] for name in names if name in texts})
    )
    yield from dict.fromkeys(twice)


def _libraries(texts: Mapping[str, str]) -> Iterator[Diagnostic]:
    defined: dict[str, str] = {}
    for shown, text in texts.items():
        for match, span, conditional in _macros(text):
            first = shown if match[2] or conditional else defined.setdefault(match[3], shown)
            if first != shown:
                message = (
                    f"it defines the library {match[3]}, as {first} does: no process can load the "
                    "variant"
                )
                hint = (
                    "keep one of them; the other can register with TORCH_LIBRARY_FRAGMENT or "
                    "TORCH_LIBRARY_IMPL"
                )
                yield finding("KCI782", message, shown, hint=hint, span=span)


def _macros(text: str) -> Iterator[tuple[re.Match[str], Span, bool]]:
    # each with the place of its namespace, and whether it stands under a condition
    code = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    line, counted, depth = 1, 0, 0
    for match in _REGISTRATION.finditer(code):
        start = match.start(3)
        line += code.count("\n", counted, start)
        depth += sum(1 if word == "if" else -1 for word in _CONDITION.findall(code, counted, start))
        counted = start
        column = start - code.rfind("\n", 0, start)
        yield match, Span(line, column, line, column + len(match[3])), depth > 0


def _registrations(text: str, shown: str) -> Iterator[Diagnostic]:
    for match, span, _ in _macros(text):
        name, kind, namespace = match.groups()
        # what a macro stands for shows when the variant is loaded
        if namespace.isupper() or (kind == "_IMPL" and namespace in _EXISTING):
            continue
        message = f"{name} registers ops under the fixed name {namespace}"
        hint = f'#include "registration.h", then {name}_EXPAND(TORCH_EXTENSION_NAME, ...)'
        yield finding("KCI781", message, shown, hint=hint, span=span)
