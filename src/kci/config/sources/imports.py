"""The import graph of a package.

An import in a function, an unknown condition or a `try` only perhaps runs.
"""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import PurePosixPath

from kci.config.values import Version
from kci.diagnostics import Span
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped


class PythonTable(Dated):
    """`python-versions.toml`."""

    loader: Version
    """Oldest Python that runs the loader."""
    modules: frozenset[str]
    """Standard library modules of that Python and all later ones."""


python_table = shipped("config/sources/data/python-versions.toml", PythonTable)


class Reach(enum.IntEnum):
    """The time at which a module is imported."""

    NEVER = 0
    """By nothing in the package; a user may import it."""
    PERHAPS = 1
    LOADED = 2
    """Always, with the package."""


class ImportSite(Frozen):
    """An import of one module."""

    module: str
    """As written, without leading dots."""
    names: tuple[str, ...]
    """Imported names; empty for `import module`."""
    level: int
    """Number of leading dots."""
    reach: Reach
    """For a file that is loaded."""
    guarded: bool
    """True if the file catches ImportError."""
    span: Span

    @property
    def imported(self) -> list[str]:
        """The full names that it imports."""
        return [f"{self.module}.{name}" for name in self.names] or [self.module]


class PackageModule(Frozen):
    """A Python file of a package."""

    path: str
    """Relative to the package."""
    sites: tuple[ImportSite, ...]
    names: frozenset[str]
    """Names in it, whether bound or used."""
    registered: frozenset[str] = frozenset()
    """Names that the file adds to `sys.modules`."""

    @property
    def name(self) -> str:
        """Dotted, relative to the package; empty for the package's `__init__.py`."""
        return module_name(self.path)


def module_name(path: str) -> str:
    """Convert a path: `layers/norm.py` is `layers.norm`, `layers/__init__.py` is `layers`,
    `x.abi3.so` is `x`.
    """
    pure = PurePosixPath(path)
    parts = (*pure.parent.parts, pure.name.partition(".")[0])
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module(path: str, tree: ast.Module) -> PackageModule:
    """Extract a file's imports."""
    sites = tuple(_sites(tree.body, Reach.LOADED, guarded=False))
    fields = ("id", "name", "asname", "attr")
    names = (str(getattr(node, field, "")) for node in ast.walk(tree) for field in fields)
    first = frozenset(name.partition(".")[0] for name in names)
    return PackageModule(path, sites, first, _registered(tree))


_DYNAMIC = frozenset(
    ("*", "__dict__", "__getattr__", "exec", "globals", "locals", "modules", "setattr", "vars")
)
"""Names with which a module may bind others."""


class ImportGraph:
    """The modules of a package, and when each is loaded."""

    def __init__(self, modules: Iterable[PackageModule], others: Iterable[str] = ()) -> None:
        """`others` are native or generated modules."""
        self.modules: Mapping[str, PackageModule] = {module.name: module for module in modules}
        self._known = {parent for name in (*self.modules, *others) for parent in with_parents(name)}
        self.reach = self._reached()
        loaded = (
            module for module in self.modules.values() if self.reach[module.name] is Reach.LOADED
        )
        self.registered = frozenset(name for module in loaded for name in module.registered)

    def _reached(self) -> dict[str, Reach]:
        reach = dict.fromkeys(self.modules, Reach.NEVER)
        pending = [("", Reach.LOADED)]
        while pending:
            name, reached = pending.pop()
            if name not in reach or reach[name] >= reached:
                continue
            reach[name] = reached
            module = self.modules[name]
            for site in module.sites:
                for target in self._targets(module, site):
                    pending += [
                        (parent, min(reached, site.reach)) for parent in with_parents(target)
                    ]
        return reach

    def _targets(self, module: PackageModule, site: ImportSite) -> list[str]:
        base = resolve(module, site)
        if base is None:
            return []
        return [base, *(name for item in site.names if (name := _join(base, item)) in self._known)]

    def import_problem(self, module: PackageModule, site: ImportSite) -> str:
        """The reason why a relative import fails; empty if it may work."""
        if (base := resolve(module, site)) is None:
            return f"{'.' * site.level}{site.module} is beyond the package"
        if base not in self._known:
            return f"there is no module {base}"
        owner = self.modules.get(base)
        if owner is None or _DYNAMIC & {*owner.names, *site.names}:
            return ""
        bound = frozenset[str]() if owner is module and not site.module else owner.names
        lacking = (name for name in site.names if not re.fullmatch("__.*__", name))
        absent = (name for name in lacking if name not in bound)
        name = next((name for name in absent if _join(base, name) not in self._known), "")
        return name and f"{base or 'the package'} has no {name}"


def resolve(module: PackageModule, site: ImportSite) -> str | None:
    """The absolute name of a relative import in the package; None if it leads out or is
    absolute.
    """
    parts = [*filter(None, module.name.split("."))]
    stays = len(parts) - site.level + (PurePosixPath(module.path).stem == "__init__")
    if not site.level or stays < 0:
        return None
    base = [*parts[:stays], *filter(None, site.module.split("."))]
    return ".".join(base[:-1] if base[-1:] == ["__init__"] else base)


def _join(base: str, name: str) -> str:
    return f"{base}.{name}" if base else name


def with_parents(name: str) -> list[str]:
    """List a module and its parents: `a.b` gives ``, `a` and `a.b`."""
    return ["", *accumulate(name.split("."), _join)]


def _sites(body: Iterable[ast.stmt], reach: Reach, *, guarded: bool) -> Iterator[ImportSite]:
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (
                    ImportSite(alias.name, (), 0, reach, guarded, node_span(node))
                    for alias in names
                )
            case ast.ImportFrom(module=module, names=names, level=level):
                imported = tuple(alias.name for alias in names)
                yield ImportSite(module or "", imported, level, reach, guarded, node_span(node))
            case _:
                for inner, runs, caught in _blocks(node):
                    if within := min(reach, runs):
                        yield from _sites(inner, within, guarded=guarded or caught)


_Block = tuple[list[ast.stmt], Reach, bool]
"""Statements, if they run, if a failed import in them is caught."""


def _blocks(node: ast.stmt) -> list[_Block]:
    match node:
        case ast.If(test=test, body=then, orelse=other):
            holds = _holds(test)
            return [(then, holds, False), (other, _negated(holds), False)]
        case ast.Try(body=tried, handlers=handlers, orelse=other, finalbody=final):
            kinds = (handler.type for handler in handlers)
            caught = any(
                _catches_import(kind.elts if isinstance(kind, ast.Tuple) else [kind])
                for kind in kinds
            )
            runs = Reach.PERHAPS if caught else Reach.LOADED
            later: list[_Block] = [(handler.body, Reach.PERHAPS, False) for handler in handlers]
            last = [(other, runs, False), (final, Reach.LOADED, False)]
            return [(tried, runs, caught), *later, *last]
        case ast.With(items=items, body=inner):
            calls = (item.context_expr for item in items if isinstance(item.context_expr, ast.Call))
            caught = any(
                last_name(call.func) == "suppress" and _catches_import(call.args) for call in calls
            )
            return [(inner, Reach.PERHAPS if caught else Reach.LOADED, caught)]
        case ast.ClassDef(body=inner):
            return [(inner, Reach.LOADED, False)]
        case _:  # a function, loop or match
            parts = (node, *getattr(node, "cases", ()))
            bodies = (getattr(part, name, []) for part in parts for name in ("body", "orelse"))
            return [(body, Reach.PERHAPS, False) for body in bodies]


def _negated(holds: Reach) -> Reach:
    return Reach(Reach.LOADED - holds)


def _holds(test: ast.expr) -> Reach:
    match test:
        case ast.Constant(value=value):
            return Reach.LOADED if value else Reach.NEVER
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return Reach.NEVER
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _negated(_holds(inner))
        case _:
            return Reach.PERHAPS


_IMPORT_FAILURES = frozenset(
    (
        "ImportError",
        "ModuleNotFoundError",
        "Exception",
        "BaseException",
        "RuntimeError",
        "OSError",
        "AttributeError",
    )
)


def _catches_import(kinds: Iterable[ast.expr | None]) -> bool:
    return any(kind is None or last_name(kind) in _IMPORT_FAILURES for kind in kinds)


def _registered(tree: ast.Module) -> frozenset[str]:
    # the texts of statements about `sys.modules`
    registered: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.Expr):
            nodes = list(ast.walk(statement))
            if any(isinstance(node, ast.Attribute) and node.attr == "modules" for node in nodes):
                texts = (node.value for node in nodes if isinstance(node, ast.Constant))
                registered.update(text for text in texts if isinstance(text, str))
    return frozenset(registered)


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name: `register_fake` of `torch.library.register_fake`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def node_span(node: ast.expr | ast.stmt) -> Span:
    """Position of a node, on its first line only."""
    end_line = node.end_lineno or node.lineno
    end_column = (node.end_col_offset or 0) + 1 if end_line == node.lineno else node.col_offset + 2
    return Span(node.lineno, node.col_offset + 1, node.lineno, end_column)
