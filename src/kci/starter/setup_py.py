"""Reading a setup.py of `torch.utils.cpp_extension` without running it.

kci understands literals, names that are set to them, `+`, `os.path.join`, `glob.glob`, and a name for one of the two
classes. It reports what a program would have to compute, with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import msgspec

from kci.errors import FindingsError

_KINDS = {"CUDAExtension": "cuda", "CppExtension": "cpu"}
_TOP = "/\0"
"""The directory of the setup.py, as an absolute path, so that joining it again changes nothing."""
_ABSOLUTE = ("abspath", "realpath", "resolve", "absolute")
_SAME = ("Path", "str", "fspath", "as_posix", "list", "sorted")
_ARCHITECTURE = ("-gencode", "--generate-code", "arch=compute", "-arch", "--gpu-architecture")
_LONGEST = 20_000
"""Of a list or text; a program can double one in every line."""
MOST_BYTES = 1_000_000


class Glob(msgspec.Struct, frozen=True):
    """A pattern for files of the project."""

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

    license: str
    extensions: tuple[Extension, ...]
    not_understood: tuple[tuple[int, str], ...]
    """Lines, and what a program would have to compute there."""


class _UnknownError(Exception):
    """A value that a program would have to compute."""


def read_setup(raw: bytes, shown_as: str) -> SetupPy:
    """What a setup.py says about its extensions; FindingsError if it is not Python, or has no extension."""
    if len(raw) > MOST_BYTES:
        raise FindingsError(f"{shown_as} is too large", hint="name the directory of a project with a setup.py")
    try:
        tree = ast.parse(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise FindingsError(
            f"{shown_as}{line}: not valid Python", hint="correct it: kci reads it, and does not run it"
        ) from None
    reader = _Reader()
    try:
        reader.read(tree.body)
    except RecursionError:
        raise FindingsError(f"{shown_as}: expressions are nested too deeply") from None
    if not reader.extensions:
        hint = (
            "kci takes over CUDAExtension(...) and CppExtension(...); begin with `kci init NAME` and copy your sources"
        )
        raise FindingsError(f"{shown_as}: no extension of torch.utils.cpp_extension", hint=hint)
    return SetupPy(reader.license, tuple(reader.extensions), tuple(dict.fromkeys(reader.unknown)))


class _Reader:
    """Follows the statements in their order, into every branch."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"__file__": f"{_TOP}/setup.py"}
        self.kinds = dict(_KINDS)
        self.changed: list[tuple[str, int, str]] = []
        """What was added to a list or table and is not understood: its name, line and text."""
        self.license = ""
        self.extensions: list[Extension] = []
        self.unknown: list[tuple[int, str]] = []

    def read(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.assign(statement)
            match statement:
                case ast.ImportFrom(names=names):
                    self.kinds |= {
                        item.asname: _KINDS[item.name] for item in names if item.asname and item.name in _KINDS
                    }
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Subscript(value=ast.Name(id=name))))):
                    self.changed.append((name, statement.lineno, ast.unparse(statement)))
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=[one])):
                    self.calls(one)
                    if attr == "extend":
                        self.extend(name, one)
                    elif attr == "append":
                        self.extend(name, ast.copy_location(ast.List(elts=[one]), one))
                case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.FunctionDef() | ast.ClassDef():
                    for block in ("body", "handlers", "orelse", "finalbody"):
                        for inner in getattr(statement, block, []):
                            self.read(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])
                case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                    self.calls(value)

    def assign(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key))], value=value
            ):
                if isinstance(before := self.values.get(name), dict):
                    self.values[name] = {**before, key: self.known(value, None, part_of=name)}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() | ast.Attribute() | ast.IfExp() as value) if (
                kinds := [self.kinds[word] for node in ast.walk(value) if (word := _last(node)) in self.kinds]
            ):  # what is a kernel for CUDA in some case is one
                self.kinds[name] = max([*kinds, self.kinds.get(name, "")])
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self.calls(value)
                try:
                    self.values[name] = self.value(value)
                except _UnknownError:
                    self.values.pop(name, None)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                self.extend(name, value)
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name))):
                self.changed.append((name, statement.lineno, ast.unparse(statement)))

    def extend(self, name: str, value: ast.expr) -> None:
        if name in self.values:
            more = _list(self.known(value, [], part_of=name))
            self.values[name] = [*_list(self.values[name]), *more][:_LONGEST]

    def calls(self, value: ast.expr) -> None:
        for node in ast.walk(value):
            if not isinstance(node, ast.Call):
                continue
            called = _last(node.func)
            if called in self.kinds:
                self.extensions.append(self.extension(node, self.kinds[called]))
            elif called == "setup":
                self.license = next((self.text(item.value) for item in node.keywords if item.arg == "license"), "")

    def extension(self, call: ast.Call, backend: str) -> Extension:
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        given |= dict(zip(("name", "sources"), call.args, strict=False))
        flags = self.flags(given.get("extra_compile_args"))
        for name in ("libraries", "library_dirs", "extra_link_args", "extra_objects", "undef_macros"):
            if name in given:
                self.unknown.append((given[name].lineno, f"`{name}`: build.toml has no such key"))
        used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        self.unknown += [(line, f"`{text[:80]}` was not followed") for name, line, text in self.changed if name in used]
        include = [str(item) for item in self.items(given.get("include_dirs"))]
        include += [flag[2:] for item in flags.values() for flag in item if flag.startswith("-I")]
        macros = []
        for pair in _list(self.known(given.get("define_macros"), [])):
            match pair:
                case [str() as name, None]:
                    macros.append(f"-D{name}")
                case [str() as name, str() | int() as set_to]:
                    macros.append(f"-D{name}={set_to}")
        cxx, nvcc = ([flag for flag in flags.get(of, ()) if not flag.startswith("-I")] for of in ("cxx", "nvcc"))
        if architectures := [flag for flag in nvcc if flag.startswith(_ARCHITECTURE)]:
            said = f"`{' '.join(architectures)[:80]}`: the architectures are `cuda-capabilities` of build.toml"
            self.unknown.append((call.lineno, said))
            nvcc = [flag for flag in nvcc if flag not in architectures]
        return Extension(
            backend=backend,
            name=self.text(given.get("name")),
            sources=tuple(self.items(given.get("sources"), keep_globs=True)),
            include=tuple(dict.fromkeys(include)),
            cxx_flags=(*cxx, *macros),
            cuda_flags=(*nvcc, *macros),
            line=call.lineno,
        )

    def flags(self, value: ast.expr | None) -> dict[str, tuple[str, ...]]:
        found = self.known(value, {})
        found = found if isinstance(found, dict) else {"cxx": found}
        return {
            key: tuple(_near(item) for item in _list(flags) if isinstance(item, str))
            for key, flags in found.items()
            if isinstance(key, str) and isinstance(flags, list | str)
        }

    def items(self, value: ast.expr | None, *, keep_globs: bool = False) -> Iterator[str | Glob]:
        """The texts of a list, without elements that a program would have to compute."""
        for part in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            for item in _list(self.known(part, [])):
                if isinstance(item, str):
                    yield _near(item)
                elif keep_globs and isinstance(item, Glob):
                    yield Glob(_near(item.pattern))

    def text(self, value: ast.expr | None) -> str:
        with suppress(_UnknownError):
            return _text(self.value(value)) if value is not None else ""
        return ""

    def known(self, value: ast.expr | None, otherwise: Any, part_of: str = "") -> Any:
        """The value of an expression. Notes what a program would have to compute, here or where `part_of` is used."""
        if value is None:
            return otherwise
        try:
            return self.value(value)
        except _UnknownError:
            said = ast.unparse(value)
            if part_of:
                self.changed.append((part_of, value.lineno, said))
            else:
                self.unknown.append((value.lineno, f"kci does not compute `{said[:80]}`"))
            return otherwise

    def value(self, node: ast.expr) -> Any:
        found = self.evaluated(node)
        if isinstance(found, str | list) and len(found) > _LONGEST:
            raise _UnknownError
        return found

    def evaluated(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                parts = [(part, part.value) if isinstance(part, ast.Starred) else (None, part) for part in elements]
                items = [(star, self.value(part)) for star, part in parts]
                return [item for star, value in items for item in (_list(value) if star else [value])]
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
            case ast.JoinedStr(values=parts):
                plain = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
                return "".join(_text(self.value(part)) for part in plain)
            case ast.ListComp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), iter=each, ifs=[])]):
                return self.each(name, self.value(each), element)
            case ast.Attribute(value=inner, attr="parent"):
                return str(PurePosixPath(_text(self.value(inner))).parent)
            case ast.Call(func=func, args=arguments):
                return self.call(func, arguments)
        raise _UnknownError

    def each(self, name: str, items: Any, element: ast.expr) -> list[Any]:
        before = self.values
        try:
            found = []
            for item in _list(items):
                self.values = {**before, name: item}
                found.append(self.value(element))
            return found
        finally:
            self.values = before

    def call(self, func: ast.expr, arguments: list[ast.expr]) -> Any:
        name = _last(func)
        if isinstance(func, ast.Attribute) and not arguments and name in (*_ABSOLUTE, *_SAME):  # of a path
            arguments = [func.value]
        values = [self.value(argument) for argument in arguments]
        if isinstance(func, ast.Attribute) and name == "glob" and _last(func.value) != "glob":  # of a path, too
            values = [_joined([self.value(func.value), *values])]
        match name, values:
            case "getcwd" | "cwd", []:
                return _TOP
            case "dirname", [path]:
                return str(PurePosixPath(_text(path)).parent)
            case "join", [_, *_]:
                return _joined(values)
            case "glob", [str() as pattern, *_]:
                return [Glob(pattern)]
            case _, [path] if name in _ABSOLUTE:
                return _joined([_TOP, path])
            case _, [path] if name in _SAME:
                return path
        raise _UnknownError


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _joined(parts: list[Any]) -> str | Glob:
    """Parts of a path; an absolute part begins anew."""
    if isinstance(parts[-1], Glob):
        return Glob(str(_joined([*parts[:-1], parts[-1].pattern])))
    joined = str(PurePosixPath(*[_text(part) for part in parts if part]))
    return "" if joined == "." else joined


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _UnknownError
    return value


def _near(text: str) -> str:
    """A text with paths below the setup.py relative to it."""
    return text.replace(f"{_TOP}/", "").replace(_TOP, ".")


def _last(node: ast.AST) -> str:
    """The last word of a name such as `os.path.join`; empty for what is no name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
