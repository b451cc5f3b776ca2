"""Imports that a kernel may not need when it is loaded: which functions use them, and so can import them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

from kci.sources.imports import last_name

_SCRIPTED = ("script", "script_method", "script_if_tracing", "jit", "njit", "vectorize", "guvectorize")
"""Decorators of torch.jit, Triton and Numba, which compile no import statement."""


class Late(msgspec.Struct, frozen=True):
    """Where an import is used."""

    bodies: tuple[tuple[ast.stmt, ...], ...]
    """The bodies of the outermost functions that use it."""
    annotations: tuple[ast.expr, ...]
    """Annotations that use it, which can be texts."""


def used_late(tree: ast.Module, statement: ast.Import | ast.ImportFrom) -> Late | str:
    """Where a file uses what a statement at its top imports, or why that cannot wait until a function is called."""
    plain = isinstance(statement, ast.Import)
    names = {item.asname or (item.name.partition(".")[0] if plain else item.name) for item in statement.names}
    if "*" in names:
        return "it imports everything of it"
    bodies: dict[int, tuple[ast.stmt, ...]] = {}
    annotations: dict[int, ast.expr] = {}
    for node, body, annotation in _within(tree, statement):
        if isinstance(node, ast.arg) and node.arg in names:
            return f"line {node.lineno} has a parameter of its name"
        if not isinstance(node, ast.Name) or node.id not in names:
            continue
        if not isinstance(node.ctx, ast.Load):
            return f"line {node.lineno} gives its name to something else"
        if annotation is not None:
            annotations[id(annotation)] = annotation
        elif body is None:
            return f"line {node.lineno} uses it when the file is loaded"
        elif not body:
            return f"line {node.lineno} uses it in code that a decorator compiles"
        else:
            bodies[id(body[0])] = body
    return Late(tuple(bodies.values()), tuple(annotations.values()))


_Place = tuple[tuple[ast.stmt, ...] | None, ast.expr | None]
"""The body of the outermost function that a node is in (empty in scripted code), and the annotation that it is in."""


def _within(tree: ast.Module, without: ast.stmt) -> Iterator[tuple[ast.AST, *_Place]]:
    """Every node but those of one statement, with its place."""
    pending: list[tuple[ast.AST, *_Place]] = [(item, None, None) for item in tree.body if item is not without]
    while pending:
        node, body, annotation = pending.pop()
        yield node, body, annotation
        inner, said = body, getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            called = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
            if any(last_name(item) in _SCRIPTED for item in called):
                inner = ()
            elif body is None and not isinstance(node, ast.ClassDef):
                inner = tuple(node.body)
        statements = getattr(node, "body", None)
        statements = statements if isinstance(statements, list) else []
        for item in ast.iter_child_nodes(node):
            where = annotation
            if body is None and isinstance(item, ast.expr) and item is said:
                where = item
            pending.append((item, inner if item in statements else body, where))
