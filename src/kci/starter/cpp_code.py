"""What C++ and CUDA sources declare: functions with namespaces, parameters and bodies, and what is bound to Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

import msgspec
from tree_sitter import Language, Node, Parser

from kci.starter.cpp_text import block_end, split_arguments, statements, without_comments

_MOST_SOURCE = 1_000_000
"""Bytes of a file that is parsed: a table of numbers has no functions."""
_MOST_NODES = 400_000


class Parameter(msgspec.Struct, frozen=True):
    """One parameter."""

    type: str
    """As it is written, without `const` before a value and without doubled space."""
    name: str


class CppFunction(msgspec.Struct, frozen=True):
    """One declaration or definition."""

    name: str
    """With its namespaces."""
    result: str
    parameters: tuple[Parameter, ...]
    body: str
    """Without comments; empty for a declaration."""
    file: str
    internal: bool
    """Only its own file can call it: `static`, or in a namespace without a name."""
    template: bool


class Binding(msgspec.Struct, frozen=True):
    """One function or class that a pybind11 module gives to Python."""

    name: str
    target: str
    """What is behind `&`, or a lambda without the lines of the preprocessor; empty for a class."""
    arguments: tuple[tuple[str, str], ...]
    """Names of `py::arg`, with their defaults."""
    file: str
    line: int
    kind: str = "function"
    """Or class, enum, other."""
    cast: tuple[str, ...] | None = None
    """The types of the parameters that an overload is chosen by."""
    conditional: str = ""
    """A lambda with lines of the preprocessor, as it is written."""


class Code(msgspec.Struct, frozen=True, eq=False):
    """The code of an extension."""

    functions: dict[str, tuple[CppFunction, ...]]
    """By the last part of their names."""
    enums: frozenset[str]
    """With their namespaces."""
    classes: frozenset[str] = frozenset()


@cache
def _parser() -> Parser:
    import tree_sitter_cpp

    return Parser(Language(tree_sitter_cpp.language()))


def read_code(texts: Mapping[str, str]) -> Code:
    """What the files, by their path, declare outside of functions."""
    functions: dict[str, list[CppFunction]] = {}
    enums: set[str] = set()
    classes: set[str] = set()
    kinds = {"enum_specifier": enums, "class_specifier": classes, "struct_specifier": classes}
    for file, text in texts.items():
        if len(text) > _MOST_SOURCE:
            continue
        raw = _without_macros(without_comments(text)).encode("utf-8", "replace")
        for node, scope, internal, template in _outer(_parser().parse(raw).root_node):
            if (named := kinds.get(node.type)) is not None:
                name = node.child_by_field_name("name")
                if name is not None and (named is enums or node.child_by_field_name("body") is not None):
                    named.add("::".join((*scope, _text(name))))
                continue
            if (found := _function(node, scope, file, internal=internal, template=template)) is not None:
                functions.setdefault(found.name.rpartition("::")[2], []).append(found)
    return Code({name: tuple(found) for name, found in functions.items()}, frozenset(enums), frozenset(classes))


_EXPORT = re.compile(r"\b(?:[A-Z][A-Z0-9]*_(?:API|EXPORT)|__forceinline__|C10_ALWAYS_INLINE|C10_EXPORT|TORCH_API)\b")


def _without_macros(text: str) -> str:
    return _EXPORT.sub(lambda found: " " * len(found[0]), text)


def _outer(root: Node) -> Iterator[tuple[Node, tuple[str, ...], bool, bool]]:
    """Functions, enums and classes outside of functions, with the namespaces that they are in."""
    pending: list[tuple[Node, tuple[str, ...], bool, bool]] = [(root, (), False, False)]
    seen = 0
    while pending and seen < _MOST_NODES:
        node, scope, internal, template = pending.pop()
        seen += 1
        match node.type:
            case "function_definition" | "declaration" | "enum_specifier" | "class_specifier" | "struct_specifier":
                yield node, scope, internal, template
                if node.type == "declaration" and (kind := node.child_by_field_name("type")) is not None:
                    pending.append((kind, scope, internal, template))
            case "namespace_definition":
                name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
                inner = (*scope, *_text(name).split("::")) if name is not None else scope
                if body is not None:
                    pending += [(item, inner, internal or name is None, False) for item in body.children]
            case "template_declaration":
                pending += [(item, scope, internal, True) for item in node.children]
            case "compound_statement":
                continue
            case _ if node.child_count and node.type in _TRANSPARENT:
                pending += [(item, scope, internal, template) for item in node.children]


_TRANSPARENT = frozenset((
    "translation_unit", "linkage_specification", "declaration_list", "preproc_ifdef", "preproc_if", "preproc_else",
    "preproc_elif", "preproc_elifdef", "ERROR",
))  # fmt: skip


def _function(node: Node, scope: tuple[str, ...], file: str, *, internal: bool, template: bool) -> CppFunction | None:
    declarator = node.child_by_field_name("declarator")
    pointer = ""
    while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
        pointer += "*" if declarator.type == "pointer_declarator" else "&"
        inner = declarator.child_by_field_name("declarator")
        declarator = (
            inner if inner is not None else (declarator.named_children[-1] if declarator.named_children else None)
        )
    kind = node.child_by_field_name("type")
    if declarator is None or declarator.type != "function_declarator" or kind is None:
        return None
    name, listed = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("parameters")
    if name is None or listed is None:
        return None
    words = [_text(item) for item in node.children if item.type == "storage_class_specifier"]
    result = _text(kind) + pointer
    if (
        trailing := next((item for item in declarator.children if item.type == "trailing_return_type"), None)
    ) is not None:
        result = _text(trailing).removeprefix("->").strip()
    body = node.child_by_field_name("body")
    return CppFunction(
        name="::".join((*scope, _text(name))),
        result=result,
        parameters=tuple(parameter(_text(item)) for item in listed.named_children if item.type in _PARAMETERS),
        body=_text(body) if body is not None else "",
        file=file,
        internal=internal or "static" in words,
        template=template,
    )


_PARAMETERS = ("parameter_declaration", "optional_parameter_declaration", "variadic_parameter_declaration")


def parameter(text: str) -> Parameter:
    """A parameter as it is written, without its default."""
    text = " ".join(text.partition("=")[0].split())
    if text.endswith("]") and not text.startswith("["):
        text = re.sub(r"(\w+)\s*\[[^][]*\]$", r"*\1", text)  # an array is a pointer
    found = re.fullmatch(r"(.*?[\w>&*\]])\s*(?<![\w:])([A-Za-z_]\w*)", text)
    if found is None or found[1] in ("const", "unsigned", "struct") or found[1].endswith("::"):
        return Parameter(text, "")
    return Parameter(found[1].strip(), found[2])


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


_MODULE = re.compile(
    r"\bPYBIND11_MODULE\s*\(\s*\w+\s*,\s*(\w+)\s*\)\s*\{|\bvoid\s+\w+\s*\(\s*(?:py|pybind11)::module_?\s*&?\s*(\w+)\s*\)\s*\{"
)


def modules(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Where each pybind11 module of a text without comments stands (start, end), with its variable and body."""
    for found in _MODULE.finditer(text):
        end = block_end(text, found.end() - 1)
        if end:
            yield found.start(), end, found[1] or found[2], text[found.end() : end - 1]


_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)
_NOTHING = re.compile(r"\s*(?:$|[{}]|using\b|\w+\s*\.\s*doc\s*\(\s*\)\s*=)")
"""The beginning of a statement that binds nothing."""


def bindings(file: str, text: str, code: Code) -> list[Binding]:
    """What the pybind11 modules of a file define; a statement that is no definition is one of the kind `other`."""
    plain = without_comments(text)
    found: list[Binding] = []
    for _, end, variable, body in modules(plain):
        line = plain.count("\n", 0, end - 1 - len(body)) + 1
        blank = _PREPROCESSOR.sub(lambda one: re.sub(r"[^\n]", " ", one[0]), body)
        for start, statement in statements(blank):
            call = re.fullmatch(rf"\s*([\w:]+)\s*\(\s*{variable}\s*\)\s*", statement)
            if not _NOTHING.match(statement) and not (call and functions_named(code, call[1])):
                raw = body[start : start + len(statement)]
                found += _bound(statement, raw, file, line + blank.count("\n", 0, start))
    return found


def _bound(statement: str, raw: str, file: str, line: int) -> Iterator[Binding]:
    """What one statement binds; `raw` is the same with the lines of the preprocessor."""
    if owner := re.search(r"\b(?:py|pybind11)::(class|enum)_\s*<", statement):
        name = re.search(r'"(\w+)"', statement[owner.end() :])
        where = line + statement.count("\n", 0, owner.start())
        yield Binding(name[1] if name else "?", "", (), file, where, owner[1])
        return
    done = 0
    for item in re.finditer(r"\.\s*def(_\w+)?\s*\(", statement):
        close = block_end(statement, item.end() - 1) if item.start() >= done else 0
        parts = split_arguments(statement[item.end() : close - 1]) if close else []
        named = re.fullmatch(r'"(\w+)"', parts[0]) if len(parts) > 1 else None
        if named is None:
            continue
        done, where = close, line + statement.count("\n", 0, item.start())
        if item[1]:
            yield Binding(named[1], "", (), file, where, "other")
            continue
        arguments = [
            (said[1] or said[2], " ".join((said[3] or "").split()))
            for said in map(_ARGUMENT.fullmatch, parts[2:])
            if said
        ]
        target, cast = _target(parts[1])
        at = statement.index(parts[1], item.end())
        written = raw[at : at + len(parts[1])]
        conditional = written if target.startswith("[") and written != parts[1] else ""
        yield Binding(named[1], target, tuple(arguments), file, where, cast=cast, conditional=conditional)
    if not done:
        where = line + statement.count("\n", 0, len(statement) - len(statement.lstrip()))
        yield Binding(" ".join(statement.split())[:60].replace("`", "'"), "", (), file, where, "other")


_ARGUMENT = re.compile(
    r'(?:(?:py|pybind11)::arg\s*\(\s*"(\w+)"\s*\)|"(\w+)"_a)\s*(?:\.\s*no\w+\s*\([^()]*\)\s*)*(?:=(.*))?', re.S
)


def _target(text: str) -> tuple[str, tuple[str, ...] | None]:
    """The name of a function, out of the casts and wrappers around it, and the types that it is chosen by."""
    if text.startswith("["):
        return text, None
    if found := re.fullmatch(r"(?:torch::wrap_pybind_function(?:_no_gil)?|TORCH_FN)\s*\((.*)\)", text, re.S):
        return _target(found[1].strip())
    for pattern in _CASTS:
        if found := re.fullmatch(pattern, text, re.S):
            name, _ = _target(found[2].strip().removeprefix("(").removesuffix(")").strip())
            return name, tuple(split_arguments(found[1]))
    return text.removeprefix("&").strip(), None


_CASTS = (
    r"(?:py|pybind11)::overload_cast\s*<(.*)>\s*(\(.*\))",
    r"(?:static_cast\s*<|\()[^()]*\(\s*\*\s*\)\s*\((.*)\)\s*[>)]\s*(\([^()]*\)|&?\s*[\w:<>, ]+)",
)


def enum_named(code: Code, name: str, scope: str) -> str:
    """The full name of the enum that a name means in a namespace; empty if it means none, or one of several."""
    plain = name.removeprefix("::")
    if full := _seen_from(code.enums, plain, scope):
        return full
    found = [item for item in code.enums if item.endswith(f"::{plain}")]
    return found[0] if len(found) == 1 else ""


def own_class(code: Code, text: str, scope: str) -> str:
    """The first word of a type that means a class of these sources where it stands; empty if none does."""
    words = re.findall(r"(?<![\w:])\w+(?![\w:])", text)
    return next((word for word in words if _seen_from(code.classes, word, scope)), "")


def _seen_from(names: frozenset[str], name: str, scope: str) -> str:
    parts = scope.split("::") if scope else []
    inner = ("::".join([*parts[:many], name]) for many in range(len(parts), -1, -1))
    return next((full for full in inner if full in names), "")


def functions_named(code: Code, name: str) -> tuple[CppFunction, ...]:
    """Those that a name in the sources may mean, with the definitions first."""
    plain = re.sub(r"<.*>$", "", name).removeprefix("::")
    last = plain.rpartition("::")[2]
    found = [item for item in code.functions.get(last, ()) if item.name == plain or item.name.endswith(f"::{plain}")]
    return tuple(sorted(found, key=lambda item: not item.body))
