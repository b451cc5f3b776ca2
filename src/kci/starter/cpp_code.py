"""What C++ and CUDA sources declare: functions with namespaces, parameters and bodies, and what is bound to Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

import msgspec
from tree_sitter import Language, Node, Parser

from kci.starter.cpp_text import block_end, split_arguments, without_comments

_MOST_SOURCE = 1_000_000
"""Bytes of a file that is parsed: a table of numbers has no functions."""
_MOST_NODES = 400_000


class Parameter(msgspec.Struct, frozen=True):
    """One parameter."""

    type: str
    """As it is written, without `const` before a value and without doubled space."""
    name: str
    default: str = ""


class CppFunction(msgspec.Struct, frozen=True):
    """One declaration or definition."""

    name: str
    """With its namespaces."""
    result: str
    parameters: tuple[Parameter, ...]
    body: str
    """Without comments; empty for a declaration."""
    file: str
    line: int
    internal: bool
    """Only its own file can call it: `static`, or in a namespace without a name."""
    template: bool


class Binding(msgspec.Struct, frozen=True):
    """One function or class that a pybind11 module gives to Python."""

    name: str
    target: str
    """What is behind `&`, or a lambda; empty for a class."""
    arguments: tuple[tuple[str, str], ...]
    """Names of `py::arg`, with their defaults."""
    file: str
    line: int
    kind: str = "function"
    """Or class, enum, other."""


class Code(msgspec.Struct, frozen=True):
    """The code of an extension."""

    functions: dict[str, tuple[CppFunction, ...]]
    """By the last part of their names."""
    enums: frozenset[str]


@cache
def _parser() -> Parser:
    import tree_sitter_cpp

    return Parser(Language(tree_sitter_cpp.language()))


def read_code(texts: Mapping[str, str]) -> Code:
    """What the files, by their path, declare outside of functions."""
    functions: dict[str, list[CppFunction]] = {}
    enums: set[str] = set()
    for file, text in texts.items():
        if len(text) > _MOST_SOURCE:
            continue
        raw = _without_macros(without_comments(text)).encode("utf-8", "replace")
        for node, scope, internal, template in _outer(_parser().parse(raw).root_node):
            if node.type == "enum_specifier":
                if name := node.child_by_field_name("name"):
                    enums.add(_text(name))
                continue
            if (found := _function(node, scope, file, internal=internal, template=template)) is not None:
                functions.setdefault(found.name.rpartition("::")[2], []).append(found)
    return Code({name: tuple(found) for name, found in functions.items()}, frozenset(enums))


_EXPORT = re.compile(r"\b(?:[A-Z][A-Z0-9]*_(?:API|EXPORT)|__forceinline__|C10_ALWAYS_INLINE|C10_EXPORT|TORCH_API)\b")


def _without_macros(text: str) -> str:
    return _EXPORT.sub(lambda found: " " * len(found[0]), text)


def _outer(root: Node) -> Iterator[tuple[Node, tuple[str, ...], bool, bool]]:
    """Functions and enums outside of functions, with the namespaces that they are in."""
    pending: list[tuple[Node, tuple[str, ...], bool, bool]] = [(root, (), False, False)]
    seen = 0
    while pending and seen < _MOST_NODES:
        node, scope, internal, template = pending.pop()
        seen += 1
        match node.type:
            case "function_definition" | "declaration" | "enum_specifier":
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
            case "class_specifier" | "struct_specifier" | "compound_statement":
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
        parameters=tuple(_parameter(item) for item in listed.named_children if item.type in _PARAMETERS),
        body=_text(body) if body is not None else "",
        file=file,
        line=node.start_point[0] + 1,
        internal=internal or "static" in words,
        template=template,
    )


_PARAMETERS = ("parameter_declaration", "optional_parameter_declaration", "variadic_parameter_declaration")


def _parameter(node: Node) -> Parameter:
    default = node.child_by_field_name("default_value")
    return parameter(_text(node), _text(default) if default is not None else "")


def parameter(text: str, default: str = "") -> Parameter:
    """A parameter as it is written."""
    if default:
        text = text[: text.rfind("=", 0, len(text) - len(default) + 1)]
    text = " ".join(text.split())
    found = re.fullmatch(r"(.*?[\w>&*\]])\s*(?<![\w:])([A-Za-z_]\w*)\s*(?:\[\s*\])?", text)
    if found is None or found[1] in ("const", "unsigned", "struct") or found[1].endswith("::"):
        return Parameter(text, "", default)
    return Parameter(found[1].strip(), found[2], default)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


_MODULE = re.compile(
    r"\bPYBIND11_MODULE\s*\(\s*\w+\s*,\s*(\w+)\s*\)\s*\{|\bvoid\s+\w+\s*\(\s*(?:py|pybind11)::module_?\s*&\s*(\w+)\s*\)\s*\{"
)
_DEFINED = re.compile(r"(?<![\w:>])([\w:]+(?:<[^;{}]*?>)?(?:\([^;{}()]*\))?)\s*((?:\.\s*)def\w*\s*\()")


def modules(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Where each pybind11 module of a text without comments stands (start, end), with its variable and body."""
    for found in _MODULE.finditer(text):
        end = block_end(text, found.end() - 1)
        if end:
            yield found.start(), end, found[1] or found[2], text[found.end() : end - 1]


def bindings(file: str, text: str) -> list[Binding]:
    """What the pybind11 modules of a file define."""
    plain = without_comments(text)
    found: list[Binding] = []
    for start, end, _, _ in modules(plain):
        at = plain.index("{", start) + 1
        line = plain.count("\n", 0, at) + 1
        owner = ""
        for item in re.finditer(r"\.\s*def(?:_\w+)?\s*\(|\b(?:py|pybind11)::(class_|enum_)\s*<|;", plain[at:end]):
            where = line + plain.count("\n", at, at + item.start())
            if item[0] == ";":
                owner = ""
            elif item[1]:
                name = re.search(r'"(\w+)"', plain[at + item.end() : end])
                owner = "class" if item[1] == "class_" else "enum"
                found.append(Binding(name[1] if name else "?", "", (), file, where, owner))
            elif not owner:
                close = block_end(plain, at + item.end() - 1)
                if close and (one := _binding(plain[at + item.end() : close - 1], item[0], file, where)) is not None:
                    found.append(one)
    return found


def _binding(inside: str, called: str, file: str, line: int) -> Binding | None:
    parts = split_arguments(inside)
    name = re.fullmatch(r'\s*"(\w+)"\s*', parts[0]) if parts else None
    if name is None or len(parts) < 2:
        return None
    if not re.fullmatch(r"\.\s*def\s*\(", called):
        return Binding(name[1], "", (), file, line, "other")
    arguments = []
    for part in parts[2:]:
        said = re.fullmatch(
            r'\s*(?:(?:py|pybind11)::arg\s*\(\s*"(\w+)"\s*\)|"(\w+)"_a)\s*(?:\.\s*none\s*\([^()]*\)\s*)?(?:=(.*))?',
            part,
            re.S,
        )
        if said:
            arguments.append((said[1] or said[2], " ".join((said[3] or "").split())))
    return Binding(name[1], _target(parts[1].strip()), tuple(arguments), file, line)


def _target(text: str) -> str:
    """The name of a function, out of the casts and wrappers around it."""
    if text.startswith("["):
        return text
    if found := re.fullmatch(
        r"(?:torch::wrap_pybind_function(?:_no_gil)?|TORCH_FN|(?:py|pybind11)::overload_cast\s*<.*>)\s*\((.*)\)",
        text,
        re.S,
    ):
        return _target(found[1].strip())
    if found := re.fullmatch(r"static_cast\s*<.*>\s*\((.*)\)|\(.*\(\s*\*\s*\).*\)\s*(&\s*[\w:<>, ]+)", text, re.S):
        return _target((found[1] or found[2]).strip())
    return text.removeprefix("&").strip()


def functions_named(code: Code, name: str) -> tuple[CppFunction, ...]:
    """Those that a name in the sources may mean, with the definitions first."""
    plain = re.sub(r"<.*>$", "", name).removeprefix("::")
    last = plain.rpartition("::")[2]
    found = [item for item in code.functions.get(last, ()) if item.name == plain or item.name.endswith(f"::{plain}")]
    return tuple(sorted(found, key=lambda item: not item.body))
