"""Python files: they parse, import only what is there wherever a kernel is loaded, and register ops under the prefix.

The rule about ops is the reference's (docs/format.md#source-rules): it looks at top-level definitions only, so that it
can be checked without running anything.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kci.config.depends_table import depends_table
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, Span, finding
from kci.matrix.names import Kind
from kci.verify.subject import VariantDir

OLDEST_PYTHON = (3, 10)
_MAX_BYTES = 4 * 1024 * 1024

_REGISTRATIONS = frozenset(
    ("custom_op", "register_fake", "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op")
)
_PREFIX = "add_op_namespace_prefix"

_ALWAYS = ("torch",)
_WITH_TORCH = ("triton",)
"""Listed as a dependency nowhere: torch's wheels for GPUs on Linux install it, and Python kernels are written in it."""


class Package(msgspec.Struct, frozen=True):
    """The Python package that files belong to."""

    name: str
    """Its Python name; importing that is importing itself."""
    allowed: frozenset[str]
    """Top-level modules that may be imported besides the standard library."""


def package_of(name: str, depends: Iterable[tuple[str, str]], *, tvm_ffi: bool = False) -> Package:
    """The package of a kernel.

    Args:
        name: the kernel's name.
        depends: `python-depends` names, each with the backend it is for.
        tvm_ffi: whether the framework is tvm-ffi, whose own module is there then.
    """
    found = {*_ALWAYS, *_WITH_TORCH}
    for depend, backend in depends:
        package = depends_table().lookup(depend, backend)
        found.update(package.imports if package else ())
    return Package(python_name(name), frozenset(found | ({"tvm_ffi"} if tvm_ffi else set())))


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about a variant's Python files."""
    if variant.metadata is None:
        return
    backend = variant.metadata.backend.type.value
    tvm_ffi = variant.name is not None and variant.name.kind is Kind.TVM_FFI
    package = package_of(
        variant.metadata.name, [(name, backend) for name in variant.metadata.python_depends], tvm_ffi=tvm_ffi
    )
    for item in variant.regular(".py"):
        yield from check_file(item.path, variant.at(item.name), package)


def check_file(path: Path, shown: str, package: Package) -> Iterator[Diagnostic]:
    """The rules about one Python file."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        yield finding("KCI700", f"cannot read it: {error.strerror}", path=shown)
        return
    if len(text) > _MAX_BYTES:
        yield finding("KCI770", f"it is larger than {_MAX_BYTES} bytes", path=shown)
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is not ours to report
            tree = ast.parse(text, feature_version=OLDEST_PYTHON)
    except SyntaxError as error:
        yield finding("KCI770", f"it does not parse: {error.msg}", path=shown, span=_line(error.lineno or 1))
    except (ValueError, RecursionError, MemoryError) as error:
        yield finding("KCI770", f"it does not parse: {error}", path=shown)
    else:
        yield from _imports(tree, shown, package)
        yield from _registrations(tree, shown)


def _line(line: int) -> Span:
    return Span(line, 1, line, 2)


def _span(node: ast.expr | ast.stmt) -> Span:
    end_line = node.end_lineno or node.lineno
    end_column = (node.end_col_offset or 0) + 1 if end_line == node.lineno else node.col_offset + 2
    return Span(node.lineno, node.col_offset + 1, node.lineno, end_column)


def _imports(tree: ast.Module, shown: str, package: Package) -> Iterator[Diagnostic]:
    """Every import, with whether it runs when the kernel is loaded and nothing catches its failure."""
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, at_load = pending.pop()
        if isinstance(node, ast.If) and _type_checking(node.test):
            pending += [(child, at_load) for child in node.orelse]
            continue
        guarded = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try)
        pending += [(child, at_load and not guarded) for child in ast.iter_child_nodes(node)]
        for module in _imported(node):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or (top in package.allowed and top != package.name):
                continue
            assert isinstance(node, ast.stmt)  # noqa: S101  - imports are statements
            hint = f"import relatively: `from .{module.partition('.')[2]} import ...`" if top == package.name else ""
            rule = "KCI771" if at_load else "KCI773"
            yield finding(rule, f"it imports {module}, which is not declared", hint=hint, path=shown, span=_span(node))


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case _:
            return []


def _type_checking(test: ast.expr) -> bool:
    return _last_name(test) == "TYPE_CHECKING"


def _registrations(tree: ast.Module, shown: str) -> Iterator[Diagnostic]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or not decorator.args:
                continue
            name = _last_name(decorator.func)
            if name not in _REGISTRATIONS:
                continue
            first = decorator.args[0]
            if isinstance(first, ast.Call) and _last_name(first.func) == _PREFIX:
                continue
            message = f"{name} of {node.name} takes its op name without {_PREFIX}"
            hint = f"from ._ops import {_PREFIX}, then @{name}({_PREFIX}(...))"
            yield finding("KCI772", message, hint=hint, path=shown, span=_span(decorator))


def _last_name(node: ast.expr) -> str:
    """`torch.library.register_fake` is `register_fake`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
