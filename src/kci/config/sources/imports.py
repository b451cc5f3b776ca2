"""The import graph of a Python package, and which Python has what it imports.

A module is loaded with the package, perhaps or later, or not at all. Only what the text says for certain counts as
loaded: an import in a function, below a condition that is unknown here, or in a `try` that catches its failure may or
may not run. What each Python's standard library holds is data, not what this Python has.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

import msgspec

from kci.config.values import Version
from kci.diagnostics import Span
from kci.utils.shipped import Dated, shipped


class PythonTable(Dated, frozen=True):
    """`python-versions.toml`."""

    loader: Version
    """The oldest Python that can run the loader."""
    modules: frozenset[str]
    """The standard libraries of it and of all later ones."""


python_table = shipped("config/sources/data/python-versions.toml", PythonTable)
"""The data that ships with kci."""


class Reach(enum.IntEnum):
    """When something is imported."""

    NEVER = 0
    """Nothing in the package imports it; a user may."""
    PERHAPS = 1
    LOADED = 2
    """With the package, always."""


class ImportSite(msgspec.Struct, frozen=True):
    """One imported module in a file."""

    module: str
    """The module as written, without the leading dots."""
    names: tuple[str, ...]
    """What is imported from it; empty for `import module`."""
    level: int
    """Leading dots."""
    reach: Reach
    """When it runs, given that its file is loaded."""
    guarded: bool
    """True if the file catches that the import fails."""
    span: Span


class PackageModule(msgspec.Struct, frozen=True):
    """A Python file of a package."""

    name: str
    """Dotted, relative to the package; empty for its own `__init__.py`."""
    package: bool
    """True if it is an `__init__.py`."""
    sites: tuple[ImportSite, ...]
    bound: frozenset[str] | None
    """The names at its top level; None where they cannot be known."""
    registered: frozenset[str] = frozenset()
    """The names under which it puts modules into `sys.modules`, where other code then finds them."""


def module_name(path: str) -> str:
    """`layers/__init__.py` is `layers`, `layers/norm.py` is `layers.norm`, `x.abi3.so` is `x`."""
    pure = PurePosixPath(path)
    parts = (*pure.parent.parts, pure.name.partition(".")[0])
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module(path: str, tree: ast.Module) -> PackageModule:
    """What the import graph needs to know of a file."""
    sites = tuple(_sites(tree.body, Reach.LOADED, guarded=False))
    package = path.rpartition("/")[2] == "__init__.py"
    return PackageModule(module_name(path), package, sites, _bound(tree, package=package), _registered(tree))


class ImportGraph:
    """The modules of a package and when each is loaded."""

    def __init__(self, modules: Iterable[PackageModule], others: Iterable[str] = ()) -> None:
        """Find out when each module is loaded; `others` are modules that are native or generated."""
        self.modules: Mapping[str, PackageModule] = {module.name: module for module in modules}
        self._known = {parent for name in (*self.modules, *others) for parent in with_parents(name)}
        self.reach = self._reached()
        loaded = (module for module in self.modules.values() if self.reach[module.name] is Reach.LOADED)
        self.registered = frozenset(name for module in loaded for name in module.registered)
        """The names of modules that the package itself makes known to Python when it is loaded."""

    def _reached(self) -> dict[str, Reach]:
        reach = dict.fromkeys(self.modules, Reach.NEVER)
        pending = [("", Reach.LOADED)]
        while pending:
            name, found = pending.pop()
            if name not in reach or reach[name] >= found:
                continue
            reach[name] = found
            module = self.modules[name]
            for site in module.sites:
                for target in self._targets(module, site):
                    pending += [(parent, min(found, site.reach)) for parent in with_parents(target)]
        return reach

    def _targets(self, module: PackageModule, site: ImportSite) -> list[str]:
        base = resolve(module, site)
        if base is None:
            return []
        return [base, *(name for item in site.names if (name := _join(base, item)) in self._known)]

    def missing(self, module: PackageModule, site: ImportSite) -> str | None:
        """What a relative import asks for and the package does not have, or None."""
        if not site.level:
            return None
        base = resolve(module, site)
        if base is None:
            return f"{'.' * site.level}{site.module} is beyond the package"
        if base not in self._known:
            return f"there is no module {base}"
        owner = self.modules.get(base)
        if owner is None or owner.bound is None or site.names == ("*",):
            return None
        lacking = [item for item in site.names if item not in owner.bound and _join(base, item) not in self._known]
        lacking = [item for item in lacking if not (item.startswith("__") and item.endswith("__"))]
        return f"{base or 'the package'} has no {', '.join(lacking)}" if lacking else None


def resolve(module: PackageModule, site: ImportSite) -> str | None:
    """The module of the package that a relative import names; None where it leads out or is not relative."""
    if not site.level:
        return None
    parts = module.name.split(".") if module.name else []
    up = site.level - (1 if module.package else 0)
    if up > len(parts):
        return None
    base = parts[: len(parts) - up] + (site.module.split(".") if site.module else [])
    return ".".join(base[:-1] if base[-1:] == ["__init__"] else base)


def _join(base: str, name: str) -> str:
    return f"{base}.{name}" if base else name


def with_parents(name: str) -> list[str]:
    """`a.b` is in ``, `a` and `a.b`."""
    parts = name.split(".") if name else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


def _sites(body: Iterable[ast.stmt], reach: Reach, *, guarded: bool) -> Iterator[ImportSite]:
    """The imports below some statements, given when those run and whether a failure is caught."""
    for node in body:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield ImportSite(alias.name, (), 0, reach, guarded, span_of(node))
            case ast.ImportFrom(module=module, names=names, level=level):
                imported = tuple(alias.name for alias in names)
                yield ImportSite(module or "", imported, level, reach, guarded, span_of(node))
            case _:
                for inner, holds, caught in _blocks(node):
                    if holds is not False:
                        within = reach if holds else min(reach, Reach.PERHAPS)
                        yield from _sites(inner, within, guarded=guarded or caught)


_Block = tuple[list[ast.stmt], bool | None, bool]
"""Statements inside another; whether they run with it (None: perhaps); whether a failed import in them is caught."""


def _blocks(node: ast.stmt) -> list[_Block]:
    match node:
        case ast.If(test=test, body=then, orelse=other):
            holds = _holds(test)
            return [(then, holds, False), (other, None if holds is None else not holds, False)]
        case ast.Try(body=tried, handlers=handlers, orelse=other, finalbody=final):
            kinds = (handler.type for handler in handlers)
            caught = any(_of_imports(kind.elts if isinstance(kind, ast.Tuple) else [kind]) for kind in kinds)
            certain = None if caught else True
            later: list[_Block] = [(handler.body, None, False) for handler in handlers]
            return [(tried, certain, caught), *later, (other, certain, False), (final, True, False)]
        case ast.With(items=items, body=inner):
            calls = (item.context_expr for item in items if isinstance(item.context_expr, ast.Call))
            caught = any(last_name(call.func) == "suppress" and _of_imports(call.args) for call in calls)
            return [(inner, None if caught else True, caught)]
        case ast.ClassDef(body=inner):
            return [(inner, True, False)]
        case ast.FunctionDef(body=inner) | ast.AsyncFunctionDef(body=inner):
            return [(inner, None, False)]
        case ast.For(body=inner, orelse=other) | ast.While(body=inner, orelse=other):
            return [([*inner, *other], None, False)]
        case ast.Match(cases=cases):
            return [(case.body, None, False) for case in cases]
        case _:
            return []


def _holds(test: ast.expr) -> bool | None:
    """True if a condition holds when a kernel is loaded, as far as its text says."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            holds = _holds(inner)
            return None if holds is None else not holds
        case ast.Compare(
            left=ast.Attribute(attr="version_info"), ops=[ast.GtE() | ast.Gt()], comparators=[ast.Tuple(elts=parts)]
        ):
            numbers = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, int)]
            return True if numbers and tuple(numbers) <= python_table().loader else None
        case _:
            return None


_IMPORT_FAILURES = frozenset(
    ("ImportError", "ModuleNotFoundError", "Exception", "BaseException", "RuntimeError", "OSError", "AttributeError")
)


def _of_imports(kinds: Iterable[ast.expr | None]) -> bool:
    """True if a failed import is among some exceptions; None stands for all of them."""
    return any(kind is None or last_name(kind) in _IMPORT_FAILURES for kind in kinds)


def _bound(tree: ast.Module, *, package: bool) -> frozenset[str] | None:
    """The names that a module binds at its top level, in whichever branch; None if it binds some in other ways."""
    found: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
                continue
            case ast.ImportFrom(module=None, level=1, names=names) if package:
                # It imports from itself: that gives only names that something else gives, but for new ones.
                found |= {alias.asname for alias in names if alias.asname not in (None, alias.name)}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any(alias.name == "*" for alias in names):
                    return None
                found |= {alias.asname or alias.name.partition(".")[0] for alias in names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Name(id="globals" | "vars" | "exec" | "setattr" | "locals"):
                return None
            case ast.Attribute(attr="modules" | "__dict__"):
                return None
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.Lambda():
                continue
        pending += ast.iter_child_nodes(node)
    return None if "__getattr__" in found else frozenset(found)


def _registered(tree: ast.Module) -> frozenset[str]:
    """The names in `sys.modules["name"] = ...` and `sys.modules.setdefault("name", ...)` at the top level."""
    found: set[str] = set()
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(value=str(name)))]
            ):
                found.add(name)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="modules"), attr="setdefault"),
                    args=[ast.Constant(value=str(name)), _],
                )
            ):
                found.add(name)
    return frozenset(found)


def last_name(node: ast.expr) -> str:
    """`torch.library.register_fake` is `register_fake`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def span_of(node: ast.expr | ast.stmt) -> Span:
    """The first line of a node, from its beginning."""
    end_line = node.end_lineno or node.lineno
    end_column = (node.end_col_offset or 0) + 1 if end_line == node.lineno else node.col_offset + 2
    return Span(node.lineno, node.col_offset + 1, node.lineno, end_column)
