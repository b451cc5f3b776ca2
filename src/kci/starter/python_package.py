"""The Python files of a package, as those of a kernel: relative imports, and the operators of the build."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kci.config.depends_table import depends_table
from kci.sources.imports import last_name, python_span, read_module
from kci.sources.op_rules import PREFIX, fixed_names
from kci.sources.package_rules import Package, package_of
from kci.starter.late_imports import used_late

_OPS = "_kernel_ops"
OWN_OPS = "_own_ops"
"""What a package's own module `_ops` is called, because the build generates one of that name."""
_OF_TORCH = ("aten", "prim", "prims", "quantized", "torchvision")


class Moved(msgspec.Struct, frozen=True):
    """A Python file in its new place."""

    text: str
    left: tuple[tuple[int, str], ...]
    """Lines of the old file, and what a person has to do there."""


class _Edit(msgspec.Struct, frozen=True):
    start: int
    end: int
    text: str


class PythonFiles(msgspec.Struct, frozen=True):
    """What the Python files of a package are moved by."""

    package: str
    """What the package was called."""
    modules: Mapping[str, object]
    """The extensions by the full names they were imported by, such as `pkg._C`."""
    namespaces: frozenset[str]
    """The namespaces of torch.ops that the extensions and the files registered."""
    there: Package
    """What a kernel may import when it is loaded."""
    renamed: bool
    """Whether there is a module `_ops`, which becomes `OWN_OPS`."""


def python_files(
    texts: Mapping[str, str],
    package: str,
    modules: Mapping[str, object],
    namespaces: Iterable[str],
    backends: Iterable[str],
) -> tuple[PythonFiles, dict[str, list[str]]]:
    """What all files of a package, by their paths in it, say together; and the `python-depends`, by backend."""
    registered, imported = set(namespaces), set()
    for text in texts.values():
        if (tree := _parsed(text)) is None:
            continue
        names = (_text_of(argument, text) for _, argument, _ in fixed_names(tree, list(ast.walk(tree))))
        registered |= {found[1] for name in names if (found := re.match(r"\w?[\"'](\w+)::", name))}
        imported |= {site.module.partition(".")[0] for site in read_module("", tree).sites if not site.level}
    table = depends_table()
    offered = {"": table.general, **{name: table.backends.get(name, {}) for name in backends}}
    depends = {
        backend: needed
        for backend, names in offered.items()
        if (needed := [name for name, known in sorted(names.items()) if imported & set(known.imports)])
    }
    pairs = [(name, backend) for backend, names in depends.items() for name in names]
    there = package_of(package, pairs, backends)
    known = frozenset(registered - set(_OF_TORCH))
    return PythonFiles(package, modules, known, there, renamed="_ops.py" in texts), depends


def moved(text: str, path: str, files: PythonFiles) -> Moved:
    """One file of a package, with its path in that; a file that is not Python stays as it is."""
    tree = _parsed(text)
    if tree is None:
        return Moved(text, ((1, "it is not valid Python: imports were not made relative"),))
    file = _MovedFile(text, path, files)
    file.loading = _loading(tree)
    for statement in tree.body:
        file.top(statement, tree)
    file.registered(tree)
    return file.result(tree)


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():  # of a backslash in a text; Python says it of the user's files, not of kci's
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _text_of(node: ast.expr, text: str) -> str:
    return ast.get_source_segment(text, node) or ""


class _MovedFile:
    def __init__(self, text: str, path: str, files: PythonFiles) -> None:
        self.text, self.path, self.package, self.modules, self.files = text, path, files.package, files.modules, files
        self.folder = [files.package, *path.split("/")[:-1]]
        self.dots = "." * len(self.folder)
        lines = text.encode().split(b"\n")
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.edits: list[_Edit] = []
        self.left: list[tuple[int, str]] = []
        self.needed: set[str] = set()
        self.loading: list[ast.stmt] = []

    def top(self, statement: ast.stmt, tree: ast.Module) -> None:
        """A statement of the module; one that loads a library goes as a whole, because the build loads it."""
        if statement in self.loading:
            self.replace(statement, "pass  # the build of the kernel loads its library")
            if not _only_loads(statement, self.loading, tree):
                self.left.append(
                    (statement.lineno, "it loaded a library, which the build does now: look at what else it did")
                )
            return
        if isinstance(statement, ast.Import | ast.ImportFrom) and self.foreign(statement):
            self.late(statement, tree)
            return
        for node in ast.walk(statement):
            match node:
                case ast.ImportFrom():
                    self.imported_from(node)
                case ast.Import():
                    self.imported(node, tree)
                case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="ops"), attr=name) if (
                    name in self.files.namespaces
                ):
                    self.needed.add(f"ops as {_OPS}")
                    self.replace(node, _OPS)
                case ast.Attribute(attr="load_library"):
                    self.left.append((node.lineno, "it loads a library: the build does that"))
                case ast.Call(func=ast.Attribute(attr="load" | "load_inline", value=ast.Name(id="cpp_extension"))):
                    self.left.append((node.lineno, "it compiles when it is imported: the kernel is built already"))
                case _:
                    pass

    def foreign(self, statement: ast.Import | ast.ImportFrom) -> bool:
        """Whether a statement imports only what is not there wherever the kernel is loaded."""
        if isinstance(statement, ast.ImportFrom):
            names = [] if statement.level else [statement.module or ""]
        else:
            names = [item.name for item in statement.names]
        known = (self.package, *python_span().first)
        return bool(names) and not any(
            name in self.modules or name.partition(".")[0] in known or self.files.there.allows(name) for name in names
        )

    def late(self, statement: ast.Import | ast.ImportFrom, tree: ast.Module) -> None:
        """Import it in the functions that use it."""
        said = ast.unparse(statement)
        used = used_late(tree, statement)
        if isinstance(used, str):
            self.left.append((statement.lineno, f"`{said[:100]}`: a kernel cannot declare it, and {used}"))
            return
        if not used.bodies and not used.annotations and self.path == "__init__.py":
            return
        beside = [item for item in tree.body if item is not statement and item.lineno == statement.lineno]
        self.replace(statement, "pass" if beside or len(tree.body) == 1 else "")
        for body in used.bodies:
            self.first_in(body, said)
        for annotation in used.annotations:
            self.replace(annotation, repr(_text_of(annotation, self.text)))

    def first_in(self, body: tuple[ast.stmt, ...], said: str) -> None:
        """Put a statement into a body, behind its docstring."""
        docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
        first = body[int(docstring)]
        line = min([first.lineno, *(item.lineno for item in getattr(first, "decorator_list", ()))])
        start = self.starts[line - 1]
        before = self.text.encode()[start : start + first.col_offset]
        if before.strip():
            at = start + first.col_offset
            self.edits.append(_Edit(at, at, f"{said}; "))
        else:
            at = start + len(before)
            self.edits.append(_Edit(at, at, f"{said}\n{before.decode()}"))

    def registered(self, tree: ast.Module) -> None:
        """Ops whose namespace stands in the file get that of the build."""
        handled = set[ast.expr]()
        for call, argument, _ in fixed_names(tree, list(ast.walk(tree))):
            handled.add(argument)
            found = re.fullmatch(r"""(f?)(["'])([^"']*?)::([^"']*)\2""", _text_of(argument, self.text))
            if found is None or found[3] in _OF_TORCH:
                self.left.append((call.lineno, f"its op's name comes from elsewhere: give it through {PREFIX}"))
                continue
            self.needed.add(PREFIX)
            self.replace(argument, f"{PREFIX}({found[1] if '{' in found[4] else ''}{found[2]}{found[4]}{found[2]})")
        inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in handled | inner:
                named = re.fullmatch(r"(\w+)::(\w+)", node.value)
                if named and named[1] in self.files.namespaces:  # whoever looks it up by its name
                    self.needed.add(PREFIX)
                    self.replace(node, f'{PREFIX}("{named[2]}")')

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
        taken = module == f"{self.package}._ops" and self.files.renamed
        if not own and not taken and (node.level or not inside):
            return
        module = f"{self.package}.{OWN_OPS}" if taken else module
        parts = [f"from {self.dots}_ops import ops as {alias.asname or alias.name}" for alias in own]
        if others:
            names = ", ".join(f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in others)
            parts.append(f"from {self.dots}{module[len(self.package) + 1 :]} import {names}")
        self.replace(node, "; ".join(parts))

    def imported(self, node: ast.Import, tree: ast.Module) -> None:
        parts = []
        for alias in node.names:
            inside = alias.name == self.package or alias.name.startswith(f"{self.package}.")
            if alias.name in self.modules:
                name = alias.asname or alias.name
                if "." in name:
                    self.left.append((node.lineno, f"`import {alias.name}` and its uses: use `._ops`"))
                    continue
                parts.append(f"from {self.dots}_ops import ops as {name}")
            elif inside:
                parts.append(self.own(alias, tree))
            else:
                parts.append(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
        if any(alias.name in self.modules or alias.name.startswith(self.package) for alias in node.names) and parts:
            self.replace(node, "; ".join(parts))

    def own(self, alias: ast.alias, tree: ast.Module) -> str:
        """An import of the package or of one of its modules; of a module without a name of its own, its uses too."""
        parent, _, last = alias.name.removeprefix(self.package).lstrip(".").rpartition(".")
        if not last:
            level = repr(self.dots)
            return f"import importlib; {alias.asname or alias.name} = importlib.import_module({level}, __package__)"
        name = alias.asname or f"_{alias.name.replace('.', '_')}"
        if alias.asname is None:
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and _dotted(node) == alias.name:
                    self.replace(node, name)
        return f"from {self.dots}{parent} import {last}" + (f" as {name}" if name != last else "")

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
        if self.needed:
            at = self.starts[_first_place(tree)]
            self.edits.append(_Edit(at, at, f"from {self.dots}_ops import {', '.join(sorted(self.needed))}\n"))
        for edit in _apart(self.edits):
            raw = raw[: edit.start] + edit.text.encode() + raw[edit.end :]
        if _parsed(raw.decode()) is None:
            return Moved(self.text, ((1, "kci could not make its imports relative"),))
        return Moved(raw.decode(), tuple(dict.fromkeys(self.left)))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


_LOADING = frozenset((
    "load_library", "find_spec", "PathFinder", "ImportError", "join", "dirname", "abspath", "realpath", "exists",
    "Path", "resolve", "next", "glob", "iterdir", "str",
))  # fmt: skip


def _loading(tree: ast.Module) -> list[ast.stmt]:
    """The statements at the top of a file that load a library, and those whose names only these use."""
    others = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    candidates = [item for item in tree.body if not isinstance(item, others)]
    loads = [
        item
        for item in candidates
        if any(isinstance(node, ast.Attribute) and node.attr == "load_library" for node in ast.walk(item))
    ]
    for item in reversed(candidates):
        used = {node.id for one in loads for node in ast.walk(one) if isinstance(node, ast.Name)}
        if item not in loads and _given(item) & used and _only_loads(item, [item, *loads], tree):
            loads.append(item)
    return loads


def _given(statement: ast.stmt) -> set[str]:
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {node.id for node in names if not isinstance(node.ctx, ast.Load)}


def _only_loads(statement: ast.stmt, loading: list[ast.stmt], tree: ast.Module) -> bool:
    """Whether a statement does nothing but find and load a library, and gives names only to others that do."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    inside = {id(node) for item in loading for node in ast.walk(item)}
    given = _given(statement)
    later = any(isinstance(node, ast.Name) and node.id in given and id(node) not in inside for node in ast.walk(tree))
    return not later and all(last_name(call.func) in _LOADING for call in calls)


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
