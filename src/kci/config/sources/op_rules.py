"""Rules about torch op registrations: the namespace comes from the build (docs/format.md#requirements)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from kci.config.sources.imports import OpFinding, last_name, node_span
from kci.diagnostics import Diagnostic, Span, finding

PREFIX = "add_op_namespace_prefix"
PREFIXES = (PREFIX, "torch_add_op_namespace_prefix")

_BY_REFERENCE = frozenset(
    ("custom_op", "register_fake", "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op")
)
_KEYWORDS = {
    "custom_op": "name", "triton_op": "name", "define": "qualname", "impl": "qualname", "impl_abstract": "qualname",
    "register_fake": "op", "register_kernel": "op", "register_vmap": "op", "register_torch_dispatch": "op",
    "register_autograd": "op", "register_autocast": "op", "Library": "ns",
}  # fmt: skip
"""The functions of torch.library that register ops, with the name of their op argument."""

_LIBRARY = "torch.library"


class FileNames(msgspec.Struct, frozen=True):
    """Imported and defined names of a file."""

    dotted: Mapping[str, str]
    """Local name to full name: `co` is `torch.library.custom_op`."""
    defined: frozenset[str]
    """Functions that the file defines."""

    def canonical(self, node: ast.expr) -> str:
        """Resolve a dotted name: `tl.custom_op` is `torch.library.custom_op`; empty if it is not one."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.dotted.get(node.id, node.id), *reversed(parts)])


def resolve_names(nodes: Iterable[ast.AST]) -> FileNames:
    """Collect imports and assignments of dotted names."""
    dotted: dict[str, str] = {}
    defined = set()
    assigned = []
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    dotted[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                joined = base if base.endswith(".") else f"{base}."
                dotted |= {alias.asname or alias.name: f"{joined}{alias.name}" for alias in names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Name() as value):
                assigned.append((name, value))
            case _:
                pass
    file_names = FileNames(dotted, frozenset(defined))
    for name, value in assigned:
        if (full_name := file_names.canonical(value)).startswith(("torch", ".")) and name not in dotted:
            dotted[name] = full_name
    return file_names


def may_define_ops(text: bytes, package: str) -> bool:
    """True if a file has a word that the op rules look for; most files have none."""
    if any(word in text for word in _WORDS):
        return True
    return b"ops" in text and re.search(rb"\.[\s\\]*" + package.encode(), text) is not None


_WORDS = (b"library", *(name.encode() for name in sorted(_BY_REFERENCE)))


def check_ops(tree: ast.Module, nodes: Sequence[ast.AST], package: str) -> Iterator[OpFinding]:
    """Yield the findings about ops of a Python file, without paths."""
    names = resolve_names(nodes)
    judged = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and decorator.args and last_name(decorator.func) in _BY_REFERENCE:
                    judged.add(id(decorator))
                    what = f"{last_name(decorator.func)} of {node.name}"
                    yield _unprefixed(decorator, decorator.args[0], what, names)
    for inner in nodes:
        if isinstance(inner, ast.Call) and id(inner) not in judged:
            yield from _call(inner, names)
    for inner in nodes:
        if (
            isinstance(inner, ast.Attribute)
            and inner.attr == package
            and names.canonical(inner) == f"torch.ops.{package}"
        ):
            message = f"it uses torch.ops.{package}, and no build of this kernel registers that namespace"
            yield partial(finding, "KCI780", message, hint=_FROM_OPS, span=node_span(inner)), ""


_FROM_OPS = "from ._ops import ops, then ops.<name>"


def _call(node: ast.Call, names: FileNames) -> Iterator[OpFinding]:
    name = last_name(node.func)
    function = names.canonical(node.func)
    by_name = function == name and name in _BY_REFERENCE and name not in names.defined
    if not function.startswith(f"{_LIBRARY}.") and not by_name:
        return
    target = function.rpartition(".")[2]
    keyword = _KEYWORDS.get(target)
    if keyword is None:
        return
    if target == "Library":
        kind = node.args[1] if len(node.args) > 1 else next((i.value for i in node.keywords if i.arg == "kind"), None)
        if isinstance(kind, ast.Constant) and kind.value == "IMPL":
            return  # It extends an existing namespace such as aten.
    argument = node.args[0] if node.args else next((item.value for item in node.keywords if item.arg == keyword), None)
    if argument is not None and (_fixed(argument) or _prefix_like(argument, names)):
        yield _unprefixed(node, argument, target, names)


def _unprefixed(node: ast.Call, argument: ast.expr, function: str, names: FileNames) -> OpFinding:
    name = last_name(node.func)
    dotted = names.canonical(argument.func) if isinstance(argument, ast.Call) else ""
    if dotted.isidentifier() and "*" in names.dotted:
        dotted = names.dotted["*"].replace("*", dotted)
    hint = f"import {PREFIX} from the package's own _ops, then {name}({PREFIX}(...))"
    rule, message = "KCI772", f"{function} takes its op name without {PREFIX}"
    if _prefix_like(argument, names):
        rule, message = "KCI779", f"{function} takes its op name by {dotted or PREFIX}, which may be another function"
    return partial(finding, rule, message, hint=hint, span=node_span(node)), dotted


def _prefix_like(argument: ast.expr, names: FileNames) -> bool:
    # by its name; of the file's own functions none is the right one
    if not isinstance(argument, ast.Call) or last_name(argument.func) in names.defined:
        return False
    return not {last_name(argument.func), names.canonical(argument.func).rpartition(".")[2]}.isdisjoint(PREFIXES)


def _fixed(argument: ast.expr) -> bool:
    match argument:
        case ast.Constant(value=str()):
            return True
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return "::" in text
        case ast.BinOp(op=ast.Add() | ast.Mod(), left=left):
            return isinstance(left, ast.Constant) and isinstance(left.value, str) and "::" in left.value
        case _:
            return False


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
_REGISTRATION = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(_FRAGMENT|_IMPL)?(_EXPAND)?\s*\(\s*(\w+)")


_EXPANDING = frozenset(f"{stable}TORCH_LIBRARY_{kind}" for stable in ("", "STABLE_") for kind in ("FRAGMENT", "IMPL"))
"""Torch macros that expand their argument."""


def check_cpp(files: Iterable[tuple[str | Path, str]]) -> Iterator[Diagnostic]:
    """Yield the findings about ops of C++ and CUDA files."""
    for path, shown in files:
        try:
            with open(path, "rb") as file:  # noqa: PTH123  - a Path for each file costs more than reading it
                text = file.read(_MAX_BYTES)
        except OSError as error:
            yield finding("KCI700", f"cannot read it: {error.strerror}", path=shown)
            continue
        if b"TORCH_LIBRARY" in text:
            yield from _registrations(text.decode("utf-8", "replace"), shown)


_CONDITION = re.compile(r"^[ \t]*\#[ \t]*(if|endif)", re.MULTILINE)


def check_libraries(files: Sequence[tuple[str | Path, str]]) -> Iterator[Diagnostic]:
    """KCI782: two of the files of one variant define the same library; a definition under a condition may not count."""
    defined: dict[str, str] = {}
    for path, shown in files:
        with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
            for namespace, span in _definitions(text) if "TORCH_LIBRARY" in text else ():
                first = defined.setdefault(namespace, shown)
                if first != shown:
                    message = f"it defines the library {namespace}, as {first} does: no process can load the variant"
                    hint = "keep one of them; the other can register with TORCH_LIBRARY_FRAGMENT or TORCH_LIBRARY_IMPL"
                    yield finding("KCI782", message, hint=hint, path=shown, span=span)


def _definitions(text: str) -> Iterator[tuple[str, Span]]:
    code = _blanked(text)
    for match in _REGISTRATION.finditer(code):
        before = _CONDITION.findall(code, 0, match.start())
        if match[1] is None and before.count("if") == before.count("endif"):
            line, column = code.count("\n", 0, match.start(3)) + 1, match.start(3) - code.rfind("\n", 0, match.start(3))
            yield match[3], Span(line, column, line, column + len(match[3]))


def _blanked(text: str) -> str:
    return _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _registrations(text: str, shown: str) -> Iterator[Diagnostic]:
    code = _blanked(text)
    line, counted = 1, 0
    for match in _REGISTRATION.finditer(code):
        impl, expand, namespace = match[1] == "_IMPL", bool(match[2]), match[3]
        line += code.count("\n", counted, match.start(3))
        counted = match.start(3)
        macro = namespace.isupper() and not namespace.isdigit()
        name = match[0].partition("(")[0].strip()
        if macro and (expand or name in _EXPANDING):
            continue
        if impl and namespace in _EXISTING:
            continue
        column = counted - code.rfind("\n", 0, counted)
        why = (
            f"{name} does not expand {namespace}" if macro else f"{name} registers ops under the fixed name {namespace}"
        )
        base = name.removesuffix("_EXPAND")
        hint = f'#include "registration.h", then {base}_EXPAND(TORCH_EXTENSION_NAME, ...)'
        yield finding(
            "KCI781", why, hint=f"{name}(TORCH_EXTENSION_NAME, ...)" if name in _EXPANDING else hint,
            path=shown, span=Span(line, column, line, column + len(namespace)),
        )  # fmt: skip
