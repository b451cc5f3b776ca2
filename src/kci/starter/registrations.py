"""Where operators are registered: in the namespace of the build, whichever way the sources do it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from kci.starter.cpp_code import Code
from kci.starter.cpp_text import block_end, conditions, split_arguments, without_comments
from kci.starter.operators import Operator, with_operators

_REGISTRY = re.compile(
    r"^[ \t]*(?:static\s+)?(?:auto|torch::RegisterOperators|c10::RegisterOperators)\s+\w+\s*=?\s*"
    r"(?:torch|c10)::RegisterOperators",
    re.M,
)
_OPERATOR = re.compile(r"\s*(?:\.\s*op\s*)?\(")
_LIBRARY = re.compile(r"\b((?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT|_IMPL)?)\s*\(\s*(\w+)\s*,")


def with_own_namespace(file: str, text: str) -> tuple[str, list[Operator], set[str]]:
    """A source whose operators are in the namespace of the build, and the namespaces that it named."""
    plain = without_comments(text)
    made: list[Operator] = []
    namespaces: set[str] = set()
    edits: list[tuple[int, int, str]] = []
    for found in _REGISTRY.finditer(plain):
        calls, end = [], found.end()
        while end and (call := _OPERATOR.match(plain, end)) is not None:
            end = block_end(plain, call.end() - 1)
            given = split_arguments(plain[call.end() : end - 1])
            said = re.fullmatch(r'"(\w+)::([^"]+)"', given[0]) if len(given) == 2 else None
            if said and re.fullmatch(r"&?\s*[\w:]+|\[.*", given[1], re.S):
                calls.append((said[1], said[2], given[1]))
            elif given:
                end = 0
        end = plain.find(";", end) if end and calls else -1
        line = plain.count("\n", 0, found.start()) + 1
        if end < 0:
            made.append(
                Operator("RegisterOperators", file, line, left="write it as TORCH_LIBRARY: kci does not follow it")
            )
            continue
        lines = [f'  ops.def("{schema}", {target});' for _, schema, target in calls]
        namespaces |= {space for space, _, _ in calls}
        made += [Operator(re.split(r"[.(]", schema)[0], file, line) for _, schema, _ in calls]
        edits.append(
            (found.start(), end + 1, "TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, ops) {\n" + "\n".join(lines) + "\n}")
        )
    for found in _LIBRARY.finditer(plain):
        opened = plain.find("{", found.end())
        body = plain[opened : block_end(plain, opened) or opened]
        line = plain.count("\n", 0, opened) + 1
        if not found[1].endswith("_IMPL"):
            names = {
                one[1]: line + body.count("\n", 0, one.start())
                for one in re.finditer(r'\.\s*def\s*\(\s*(?:TORCH_SELECTIVE_SCHEMA\s*\(\s*)?"(?:\w+::)?(\w+)', body)
            }
            made += [Operator(name, file, where) for name, where in names.items()]
        if found[2] in ("TORCH_EXTENSION_NAME", "aten", "NAME", "ns", "_"):
            continue
        namespaces.add(found[2])
        macro = f"{found[1]}_FRAGMENT" if found[1].endswith("TORCH_LIBRARY") else found[1]
        edits.append((found.start(), found.end(), f"{macro}(TORCH_EXTENSION_NAME,"))
        for inner in re.finditer(rf'"{found[2]}::(?=\w)', body):
            edits.append((opened + inner.start(), opened + inner.end(), '"'))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text, made, namespaces


_SHORT = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((\w+)\)[ \t]+(\w+)\.def\(#\2,[ \t]*&\2\);?[ \t]*$", re.M)


def _written_out(text: str) -> str:
    """A source in which a macro that binds the function of a name is written out."""
    for found in _SHORT.finditer(text):
        text = re.sub(
            rf"\b{found[1]}\(\s*(\w+)\s*\)\s*;?(?=[ \t]*(?:\n|//))",
            rf'{found[3]}.def("\1", &\1);',
            text.replace(found[0], ""),
        )
    return text


def operators_of(
    texts: Mapping[str, str], compiled: list[str], code: Code
) -> tuple[dict[str, str], list[Operator], set[str]]:
    """The sources with operators in the namespace of the build, what became of each function, the old namespaces."""
    changed: dict[str, str] = {}
    made: list[Operator] = []
    namespaces: set[str] = set()
    for file, original in texts.items():
        text = _written_out(original) if file in compiled else original
        new, registered, spaces = with_own_namespace(file, text) if file in compiled else (text, [], set())
        made += [replace(item, within=conditions(text, item.line)) for item in registered]
        before = new
        new, functions = with_operators(file, new, code) if file in compiled else (new, [])
        made += [replace(item, within=conditions(before, item.line)) for item in functions]
        namespaces |= spaces
        if new != original:
            changed[file] = new
    return changed, made, namespaces
