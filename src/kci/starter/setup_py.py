"""Reading a setup.py of `torch.utils.cpp_extension` without running it.

What is written down is understood: literals, names that are set to them, `+`, `os.path.join`, `glob.glob`. What a
program would have to compute is not, and is reported with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import msgspec

from kci.errors import FindingsError

_KINDS = {"CUDAExtension": "cuda", "CppExtension": "cpu"}
_HERE = ("os.path.dirname", "os.path.abspath", "os.path.realpath", "Path", "pathlib.Path", "str", "os.getcwd")
"""What leads to the directory of the setup.py, or to the same path."""
_JOIN = ("os.path.join", "osp.join", "path.join", "join")
_GLOB = ("glob.glob", "glob")
_SOURCES = 2000
MOST_BYTES = 1_000_000


class Glob(msgspec.Struct, frozen=True):
    """A pattern for files, which only the directory can answer."""

    pattern: str


class Extension(msgspec.Struct, frozen=True):
    """One `CUDAExtension(...)` or `CppExtension(...)`."""

    backend: str
    name: str
    sources: tuple[str | Glob, ...]
    include: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    cuda_flags: tuple[str, ...]
    line: int


class SetupPy(msgspec.Struct, frozen=True):
    """What a setup.py says."""

    name: str
    license: str
    extensions: tuple[Extension, ...]
    not_understood: tuple[tuple[int, str], ...]
    """Lines, and what on them would have to be computed."""


class _UnknownError(Exception):
    """A value that is not written down."""


def read_setup(raw: bytes, shown_as: str) -> SetupPy:
    """What a setup.py says about its extensions.

    Raises:
        FindingsError: it is not Python, or has no extension.
    """
    if len(raw) > MOST_BYTES:
        raise FindingsError(f"{shown_as} is too large", hint="it has to be a setup.py")
    try:
        tree = ast.parse(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise FindingsError(f"{shown_as}{line}: not valid Python", hint="kci reads it, and does not run it") from None
    reader = _Reader()
    try:
        reader.read(tree.body)
    except RecursionError:
        raise FindingsError(f"{shown_as}: nested too deeply to be read") from None
    if not reader.extensions:
        hint = (
            "kci takes over CUDAExtension(...) and CppExtension(...); begin with `kci init NAME` and copy your sources"
        )
        raise FindingsError(f"{shown_as}: no extension of torch.utils.cpp_extension", hint=hint)
    return SetupPy(reader.name, reader.license, tuple(reader.extensions), tuple(dict.fromkeys(reader.unknown)))


class _Reader:
    """Follows the statements in their order, into every branch."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"__file__": ""}
        self.name = ""
        self.license = ""
        self.extensions: list[Extension] = []
        self.unknown: list[tuple[int, str]] = []

    def read(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.calls(value)
                    self.set(name, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.calls(value)
                    self.set(name, value)
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                    self.extend(name, value)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=[one])):
                    self.calls(one)
                    if attr == "extend":
                        self.extend(name, one)
                    elif attr == "append" and name in self.values:
                        self.extend(name, ast.copy_location(ast.List(elts=[one]), one))
                case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.FunctionDef() | ast.ClassDef():
                    for block in ("body", "handlers", "orelse", "finalbody"):
                        for inner in getattr(statement, block, []):
                            self.read(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])
                case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                    self.calls(value)

    def set(self, name: str, value: ast.expr) -> None:
        try:
            self.values[name] = self.value(value)
        except _UnknownError:
            self.values.pop(name, None)

    def extend(self, name: str, value: ast.expr) -> None:
        try:
            self.values[name] = [*_list(self.values[name]), *_list(self.value(value))]
        except (_UnknownError, KeyError):
            if name in self.values:
                self.miss(value)

    def calls(self, value: ast.expr) -> None:
        """Take extensions and the arguments of `setup` out of an expression."""
        for node in ast.walk(value):
            if not isinstance(node, ast.Call):
                continue
            called = _dotted(node.func).rpartition(".")[2]
            if called in _KINDS:
                self.extensions.append(self.extension(node, _KINDS[called]))
            elif called == "setup":
                for keyword in node.keywords:
                    if keyword.arg in ("name", "license"):
                        setattr(self, keyword.arg, self.text(keyword.value))

    def extension(self, call: ast.Call, backend: str) -> Extension:
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        given |= dict(zip(("name", "sources"), call.args, strict=False))
        flags = self.flags(given.get("extra_compile_args"))
        for name in ("libraries", "library_dirs", "extra_link_args", "extra_objects", "define_macros"):
            if name in given:
                self.unknown.append((given[name].lineno, f"`{name}`: build.toml has no such key"))
        return Extension(
            backend=backend,
            name=self.text(given["name"]) if "name" in given else "",
            sources=tuple(self.items(given.get("sources"), keep_globs=True)),
            include=tuple(str(item) for item in self.items(given.get("include_dirs"))),
            cxx_flags=flags.get("cxx", ()),
            cuda_flags=flags.get("nvcc", ()),
            line=call.lineno,
        )

    def flags(self, value: ast.expr | None) -> dict[str, tuple[str, ...]]:
        if value is None:
            return {}
        try:
            found = self.value(value)
        except _UnknownError:
            self.miss(value)
            return {}
        found = found if isinstance(found, dict) else {"cxx": found}
        return {
            key: tuple(item for item in _list(flags) if isinstance(item, str))
            for key, flags in found.items()
            if isinstance(key, str) and isinstance(flags, list | str)
        }

    def items(self, value: ast.expr | None, *, keep_globs: bool = False) -> Iterator[str | Glob]:
        """The texts of a list; an element that would have to be computed is noted and left out."""
        if value is None:
            return
        parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        for part in parts[:_SOURCES]:
            try:
                for item in _list(self.value(part))[:_SOURCES]:
                    if isinstance(item, str) or (keep_globs and isinstance(item, Glob)):
                        yield item
            except _UnknownError:
                self.miss(part)

    def text(self, value: ast.expr) -> str:
        try:
            found = self.value(value)
        except _UnknownError:
            found = None
        return found if isinstance(found, str) else ""

    def miss(self, value: ast.expr) -> None:
        self.unknown.append((value.lineno, f"`{ast.unparse(value)[:80]}` would have to be computed"))

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for.

        Raises:
            _UnknownError: it would have to be computed.
        """
        match node:
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [item for element in elements for item in self.element(element)]
            case ast.Dict(keys=keys, values=values) if all(keys):
                return {
                    self.value(key): self.value(value)
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant)
                }
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                one, other = self.value(left), self.value(right)
                if isinstance(one, str) and isinstance(other, str):
                    return one + other
                return [*_list(one), *_list(other)]
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _joined([self.value(left), self.value(right)])
            case ast.Attribute(value=inner, attr="parent"):
                return self.value(inner)
            case ast.Call(func=func, args=arguments):
                return self.call(_dotted(func), arguments)
        raise _UnknownError

    def element(self, node: ast.expr) -> list[Any]:
        return _list(self.value(node.value)) if isinstance(node, ast.Starred) else [self.value(node)]

    def call(self, name: str, arguments: list[ast.expr]) -> Any:
        if name in _HERE and len(arguments) <= 1:
            return self.value(arguments[0]) if arguments else ""
        if name in _JOIN:
            return _joined([self.value(argument) for argument in arguments])
        if name in _GLOB and arguments:
            pattern = self.value(arguments[0])
            if isinstance(pattern, str):
                return [Glob(pattern)]
        raise _UnknownError


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _joined(parts: list[Any]) -> str:
    if not all(isinstance(part, str) for part in parts):
        raise _UnknownError
    joined = str(PurePosixPath(*[part for part in parts if part]))
    return "" if joined == "." else joined


def _dotted(node: ast.expr) -> str:
    """`os.path.join` as text; empty for what is no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=attr):
            return f"{_dotted(inner)}.{attr}"
    return ""
