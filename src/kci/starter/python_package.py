"""The Python files of a package, as those of a kernel: relative imports, and the operators of the build."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping

import msgspec

_OPS = "_kernel_ops"


class Moved(msgspec.Struct, frozen=True):
    """A Python file in its new place."""

    text: str
    left: tuple[tuple[int, str], ...]
    """Lines of the old file, and what a person has to do there."""


class _Edit(msgspec.Struct, frozen=True):
    start: int
    end: int
    text: str


def moved(text: str, path: str, package: str, modules: Mapping[str, object], namespaces: set[str]) -> Moved:
    """One file of a package.

    Args:
        text: its content.
        path: its path in the package, such as `ops/norm.py`.
        package: what the package was called.
        modules: the extensions by the full names they were imported by, such as `pkg._C`.
        namespaces: the namespaces of torch.ops that the extensions registered.

    Returns:
        The file, with what is left to do. A file that is not Python stays as it is.
    """
    try:
        with warnings.catch_warnings():  # of a backslash in a text; Python says it of the user's files, not of kci's
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Moved(text, ((1, "it is not valid Python: imports were not made relative"),))
    file = _MovedFile(text, path, package, modules, namespaces)
    for statement in tree.body:
        file.top(statement)
    return file.result(tree)


class _MovedFile:
    def __init__(self, text: str, path: str, package: str, modules: Mapping[str, object], namespaces: set[str]) -> None:
        self.text, self.package, self.modules, self.namespaces = text, package, modules, namespaces
        self.folder = [package, *path.split("/")[:-1]]
        self.dots = "." * len(self.folder)
        lines = text.encode().split(b"\n")
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.edits: list[_Edit] = []
        self.left: list[tuple[int, str]] = []
        self.needs_ops = False

    def top(self, statement: ast.stmt) -> None:
        """A statement of the module; one that loads a library goes as a whole, because the build loads it."""
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef) and any(
            isinstance(node, ast.Attribute) and node.attr == "load_library" for node in ast.walk(statement)
        ):
            self.replace(statement, "pass  # the build of the kernel loads its library")
            self.left.append(
                (statement.lineno, "it loaded a library, which the build does now: look at what else it did")
            )
            return
        for node in ast.walk(statement):
            match node:
                case ast.ImportFrom():
                    self.imported_from(node)
                case ast.Import():
                    self.imported(node)
                case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="ops"), attr=name) if (
                    name in self.namespaces
                ):
                    self.needs_ops = True
                    self.replace(node, _OPS)
                case ast.Attribute(attr="load_library"):
                    self.left.append((node.lineno, "it loads a library: the build does that"))
                case ast.Call(func=ast.Attribute(attr="load" | "load_inline", value=ast.Name(id="cpp_extension"))):
                    self.left.append((node.lineno, "it compiles when it is imported: the kernel is built already"))
                case _:
                    pass

    def imported_from(self, node: ast.ImportFrom) -> None:
        module = self.absolute(node)
        if module in self.modules:
            lines = [f"from {self.dots}_ops import ops as {_OPS}"]
            lines += [
                f"{alias.asname or alias.name} = {_OPS}.{alias.name}" for alias in node.names if alias.name != "*"
            ]
            if any(alias.name == "*" for alias in node.names):
                self.left.append((node.lineno, f"it imports everything of `{module}`: name what it uses"))
            self.replace(node, "; ".join(lines))
            return
        own = [alias for alias in node.names if f"{module}.{alias.name}" in self.modules]
        others = [alias for alias in node.names if alias not in own]
        inside = module == self.package or module.startswith(f"{self.package}.")
        if not own and (node.level or not inside):
            return
        parts = [f"from {self.dots}_ops import ops as {alias.asname or alias.name}" for alias in own]
        if others:
            names = ", ".join(f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in others)
            parts.append(f"from {self.dots}{module[len(self.package) + 1 :]} import {names}")
        self.replace(node, "; ".join(parts))

    def imported(self, node: ast.Import) -> None:
        parts = []
        for alias in node.names:
            if alias.name in self.modules:
                name = alias.asname or alias.name
                if "." in name:
                    self.left.append((node.lineno, f"`import {alias.name}` and its uses: use `._ops`"))
                    continue
                parts.append(f"from {self.dots}_ops import ops as {name}")
            elif alias.name == self.package or alias.name.startswith(f"{self.package}."):
                parent, _, last = alias.name.removeprefix(self.package).lstrip(".").rpartition(".")
                if alias.asname and last:
                    parts.append(f"from {self.dots}{parent} import {last} as {alias.asname}")
                else:
                    self.left.append((node.lineno, f"`import {alias.name}`: make it and its uses relative"))
                    parts.append(f"import {alias.name}")
            else:
                parts.append(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
        if any(alias.name in self.modules or alias.name.startswith(self.package) for alias in node.names) and parts:
            self.replace(node, "; ".join(parts))

    def absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        base = self.folder[: len(self.folder) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def replace(self, node: ast.stmt | ast.expr, text: str) -> None:
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        self.edits.append(_Edit(start, end, text))

    def result(self, tree: ast.Module) -> Moved:
        raw = self.text.encode()
        if self.needs_ops:
            at = self.starts[_first_place(tree)]
            self.edits.append(_Edit(at, at, f"from {self.dots}_ops import ops as {_OPS}\n"))
        for edit in _apart(self.edits):
            raw = raw[: edit.start] + edit.text.encode() + raw[edit.end :]
        return Moved(raw.decode(), tuple(dict.fromkeys(self.left)))


def _apart(edits: list[_Edit]) -> Iterator[_Edit]:
    """Edits from the last to the first, without those inside of another."""
    before = None
    for edit in sorted(edits, key=lambda item: (-item.end, item.start)):
        if before is None or edit.end <= before:
            yield edit
            before = edit.start


def _first_place(tree: ast.Module) -> int:
    """The number of lines before which no import may stand: the docstring and `__future__`."""
    last = 0
    for statement in tree.body:
        documentation = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not documentation and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
        last = statement.end_lineno or last
    return last
