"""What can be changed in a Python source so that a test should notice: one small change of behaviour each.

Names, texts (f-strings as a whole), what is declared (annotations, decorators, heads of classes, `__all__`) and assertions stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

_COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_DECLARE = ("annotation", "returns", "decorator_list", "bases")
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Site(NamedTuple):
    """A place in a source, and what is to stand there."""

    function: str
    """Its qualified name as Python has it; empty outside of functions."""
    line: int
    begin: int
    """In bytes of the file."""
    end: int
    new: str


def sites(source: str) -> list[Site]:
    """All changes of one source, in their order."""
    return sorted(_Finder(source).found(ast.parse(source), ""), key=lambda site: (site.begin, site.end, site.new))


class _Finder:
    def __init__(self, source: str) -> None:
        self.raw = source.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def found(self, node: ast.AST, scope: str, function: str = "") -> Iterator[Site]:
        """The changes in a node and in what is below it; `scope` is the beginning of the qualified names there."""
        if _only_declares(node):
            return
        for old, new in self._changes(node):
            begin, end = self._at(old.lineno, old.col_offset), self._at(old.end_lineno, old.end_col_offset)
            yield Site(function, old.lineno, begin, end, new)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function, scope = f"{scope}{node.name}", f"{scope}{node.name}.<locals>."
            case ast.ClassDef():
                function, scope = "", f"{scope}{node.name}."
        for name, value in ast.iter_fields(node):
            if name in _DECLARE or (name == "keywords" and isinstance(node, ast.ClassDef)):
                continue
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    yield from self.found(part, scope, function)

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self.starts[line - 1] + column

    def _text(self, node: ast.expr) -> str:
        return self.raw[
            self._at(node.lineno, node.col_offset) : self._at(node.end_lineno, node.end_col_offset)
        ].decode()

    def _changes(self, node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
        match node:
            case ast.Compare(left, [op], [right]):
                yield node, f"({self._text(left)}) {_COMPARED[type(op)]} ({self._text(right)})"
            case ast.BoolOp(op, values):
                word = " or " if isinstance(op, ast.And) else " and "
                yield node, f"({word.join(f'({self._text(value)})' for value in values)})"
            case ast.UnaryOp(ast.Not(), operand):
                yield node, f"({self._text(operand)})"
            case ast.Constant(bool() as value):
                yield node, str(not value)
            case ast.Constant(int() as value):
                yield node, str(value + 1)
            case ast.Call(ast.Name(name) as called) if name in _SWAPPED:
                yield called, _SWAPPED[name]
            case (
                ast.Expr(ast.Call() | ast.Yield() | ast.YieldFrom() | ast.Await())
                | ast.Raise()
                | ast.AugAssign()
                | ast.Delete()
            ):
                yield node, "pass"
            case ast.Continue() | ast.Break():
                yield node, "break" if isinstance(node, ast.Continue) else "pass"
            case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
                yield value, "None"
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
            node.test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant
        ):
            yield node.test, f"(not ({self._text(node.test)}))"
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield test, "True"


def _only_declares(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.If(ast.Name("TYPE_CHECKING")) | ast.Assign([ast.Name("__all__")]):
            return True
    return False
