"""Lists every type error of a document, while msgspec stops at the first; a property test compares
the two.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Union, get_args, get_origin

import msgspec

from kci.config.document import Document, KeyPath
from kci.config.facts import BACKENDS, depends_table
from kci.config.model import KernelDependency, Unsigned
from kci.config.settings import Machine
from kci.config.urls import GitUrl, Upstream
from kci.config.values import (
    SYSTEMS,
    Backend,
    KernelName,
    RunnerKind,
    StableAbi,
    Version,
    quoted,
    shorten,
    suggest_kernel_name,
    toml_string,
)
from kci.diagnostics import Diagnostic, finding, in_file_order
from kci.utils.suggest import nearest_name, one_of, suggestion

MAX_PROBLEMS = 200


def explain(document: Document, data: dict[str, Any], schema: type) -> list[Diagnostic]:
    """List the type errors in file order, at most `MAX_PROBLEMS` and a note about more."""
    problems = list(islice(_Walk(document).check(schema, data, ()), MAX_PROBLEMS + 1))
    if len(problems) > MAX_PROBLEMS:
        message = f"the first {MAX_PROBLEMS} problems: there are more"
        problems[-1] = finding("KCI116", message, document.path)
    return sorted(problems, key=in_file_order)


_TOML_NAME: dict[Any, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    dict: "a table",
    list: "an array",
    tuple: "an array",
    Version: "a version",
    GitUrl: "a git URL",
}


_KINDS = {
    "Backend": "backend",
    "Tier": "tier to build on",
    "Depend": "C++ dependency",
    "System": "system",
    "RunnerKind": "backend that a runner can be for",
    "Grouping": "way to group variants",
    "Forks": "way to treat forks",
}
"""Singular nouns for the enumerations, for messages."""


_ALIASES = {alias: str(backend) for backend, facts in BACKENDS.items() for alias in facts.aliases}


def toml_type(value: object) -> str:
    """TOML's name for the type of a value, with an article."""
    return _TOML_NAME.get(type(value), "a date or time")


class _Walk:
    def __init__(self, document: Document) -> None:
        self.document = document

    def wrong_type(self, expected: str, value: object, path: KeyPath, hint: str = "") -> Diagnostic:
        hint = hint or self.other_spelling(expected, value, path)
        return self.document.at_value(
            path, "KCI103", f"`{path_text(path)}` must be {expected}, not {toml_type(value)}", hint
        )

    def other_spelling(self, expected: str, value: object, path: KeyPath) -> str:
        text = str(value).strip() if isinstance(value, str | int | float) else ""
        match expected:
            case "a string" if path[-1] == "repo-id":
                return 'such as "owner/name"'
            case "a string" if text and not isinstance(value, bool):
                return f"write it as {toml_string(self.document.source(path) or text)}"
            case "an integer" if re.fullmatch(r"[0-9]{1,18}(\.0)?", text, re.ASCII):
                return f"write it as {int(text.partition('.')[0])}"
            case "a boolean" if text.lower() in ("true", "false"):
                return f"write it as {text.lower()}"
            case "an array" if isinstance(value, str) and len(value) > 200:
                return "write it in brackets"
            case "an array" if isinstance(value, str):  # commas suggest a list
                parts = filter(None, re.split(r"[,\s]+", value)) if "," in value else [value]
                return f"write it as [{', '.join(map(toml_string, parts))}]"
        return ""

    def check(self, expected: Any, value: Any, path: KeyPath) -> Iterator[Diagnostic]:
        origin, arguments = get_origin(expected), get_args(expected)
        if origin in (Union, types.UnionType):
            yield from self.check_union(
                [part for part in arguments if part is not types.NoneType], value, path
            )
        elif origin is tuple and isinstance(value, list):
            for index, element in enumerate(value):
                yield from self.check(arguments[0], element, (*path, index))
        elif origin is dict and isinstance(value, dict):
            kind, inner = arguments
            for key, element in value.items():
                if issubclass(kind, enum.StrEnum) and key not in list(kind):
                    yield self.unknown_name(key, path, kind)
                else:
                    yield from self.check(inner, element, (*path, key))
        elif origin in (tuple, dict):
            of_tables = isinstance(value, dict) and hasattr(arguments[0], "__struct_fields__")
            name = ".".join(part for part in path if isinstance(part, str))
            hint = f"begin each with `[[{shorten(name)}]]`" if of_tables else ""
            yield self.wrong_type(_TOML_NAME[origin], value, path, hint)
        else:
            yield from self.check_plain(expected, value, path)

    def check_plain(self, expected: Any, value: Any, path: KeyPath) -> Iterator[Diagnostic]:
        if expected == Unsigned:
            if type(value) is not int:
                yield self.wrong_type("an integer", value, path)
            elif not 0 <= value <= 2**63 - 1:
                what = "must not be negative" if value < 0 else "is too large"
                yield self.document.at_value(path, "KCI104", f"`{path_text(path)}` {what}")
        elif expected in _SEVERAL:
            yield from self.check_union(get_args(_SEVERAL[expected]), value, path)
        elif expected in _NEAR:
            yield from self.check_parsed(expected, value, path)
        elif issubclass(expected, enum.StrEnum):
            kind = _KINDS.get(expected.__name__, "possible value")
            yield from self.check_choice(value, path, [*map(str, expected)], kind)
        elif issubclass(expected, msgspec.Struct):
            yield from self.check_struct(expected, value, path)
        elif type(value) is not expected and (expected, type(value)) != (float, int):
            name = "a number" if expected is float else _TOML_NAME[expected]
            yield self.wrong_type(name, value, path)

    def check_union(self, parts: Sequence[Any], value: Any, path: KeyPath) -> Iterator[Diagnostic]:
        *several, plain = sorted(parts, key=_TOML_NAME.__contains__)
        if not several:
            yield from self.check(plain, value, path)
        elif plain in _TOML_NAME:  # one value, or several of them
            origin = get_origin(several[0])
            if isinstance(value, list if origin is tuple else dict):
                yield from self.check(several[0], value, path)
            elif isinstance(value, bool if plain is bool else str):
                yield from self.check(plain, value, path)
            else:
                both = f"{_TOML_NAME[plain]} or {_TOML_NAME[origin]}"
                yield self.wrong_type(both, value, path, _EXAMPLES.get(plain, ""))
        elif not isinstance(value, dict):
            yield self.wrong_type("a table", value, path)
        else:
            tags = {str(part.__struct_config__.tag): part for part in parts}
            tag = value.get("backend")
            if tag in list(tags):
                yield from self.check_struct(tags[tag], value, path)
            elif "backend" in value:
                kind = "backend for a component"
                yield from self.check_choice(tag, (*path, "backend"), list(tags), kind)
            else:
                message = f"`{path_text(path)}` lacks the key `backend`"
                yield self.document.at_key(path, "KCI102", message, one_of(tags))
                known = sorted({key for part in parts for key in part.__struct_encode_fields__})
                for key in value:
                    if key not in known:
                        yield self.unknown_key(key, path, known, value)

    def check_parsed(self, expected_type: Any, value: Any, path: KeyPath) -> Iterator[Diagnostic]:
        text = value if isinstance(value, str) else self.document.source(path)
        near = _NEAR[expected_type](text)
        if expected_type is Version and near.endswith(".0") and path[:2] == ("torch", "stable-abi"):
            near = ""  # that is KCI144
        hint = f'write "{near}"' if near else _EXAMPLES[expected_type]
        if not isinstance(value, str):
            yield self.wrong_type("a string", value, path, hint.replace("write ", "write it as "))
            return
        try:
            expected_type.parse(value)
        except ValueError as error:
            yield self.document.at_value(path, "KCI104", f"`{path_text(path)}`: {error}", hint)

    def check_struct(
        self, struct: type[msgspec.Struct], value: Any, path: KeyPath
    ) -> Iterator[Diagnostic]:
        if not isinstance(value, dict):
            yield self.wrong_type("a table", value, path)
            return
        fields = _fields(struct)
        known = sorted({*fields, *filter(None, [struct.__struct_config__.tag_field])})
        alternatives = {nearest_name(key, known) for key in value if key not in known}
        for key, field in fields.items():
            if (
                key not in value and field.required and key not in alternatives
            ):  # else that key is reported
                place = f"`{path_text(path)}` lacks" if path else "the file lacks"
                yield self.document.at_key(
                    path, "KCI102", f"{place} the key `{key}`", _ADD.get(key, f"add `{key}`")
                )
        for key, element in value.items():
            if key in fields:
                yield from self.check(fields[key].type, element, (*path, key))
            elif key not in known:
                yield self.unknown_key(key, path, known, value)
        if struct is KernelDependency and ("version" in value) == ("revision" in value):
            yield self.document.at_value(
                path, "KCI104", "a kernel dependency needs exactly one of `version` and `revision`"
            )

    def unknown_key(
        self, key: str, path: KeyPath, known: list[str], siblings: Container[str]
    ) -> Diagnostic:
        where = f"`[{path_text(path)}]`" if path else f"a {self.document.path.rpartition('/')[2]}"
        hint = suggestion(key, [name for name in known if name not in siblings]) or one_of(known)
        if key in _BACKEND_KEYS and path[:1] == ("kernel",):
            hint = f'it is a key of components with `backend = "{_BACKEND_KEYS[key]}"`'
        return self.document.at_key(
            (*path, key), "KCI101", f"`{shorten(key)}` is not a key of {where}", hint
        )

    def unknown_name(self, key: str, path: KeyPath, names: type[enum.StrEnum]) -> Diagnostic:
        lacking = key in Machine.__struct_encode_fields__
        table, known, rule = ".".join(map(str, path)), [str(member) for member in names], "KCI321"
        if names is RunnerKind and (lacking or key in SYSTEMS):
            message = f"`{table}.{key}` does not name a backend"
            hint = (
                f"write `[{table}.any.{'x86_64-linux' if lacking else key}]`, or a backend in "
                "place of `any`"
            )
        elif lacking:
            message = f"`{key}` is in `[{table}]`, which does not name a system"
            hint = f"write it in `[{table}.x86_64-linux]`, or in the table of its system"
        else:
            rule = "KCI101" if path[0] == "torch" else "KCI320"
            message = f"`{key[:60]}` is not a {_KINDS[names.__name__]}"
            hint = suggestion(key, known) or one_of(known)
        return self.document.at_key((*path, key), rule, message, hint)

    def check_choice(
        self, value: Any, path: KeyPath, known: list[str], kind: str
    ) -> Iterator[Diagnostic]:
        if not isinstance(value, str):
            yield self.wrong_type("a string", value, path, one_of(known))
        elif value not in known:
            hint = suggestion(_ALIASES.get(value.lower(), value), known) or one_of(known)
            if kind == "C++ dependency" and value in depends_table().general:
                hint = "it is a package of Python: name it in `python-depends` of `[general]`"
            yield self.document.at_value(
                path, "KCI104", f"{quoted(shorten(value))} is not a {kind}", hint
            )


def _near_version(text: str) -> str:
    # the only version in a text such as `>=12.6` or `v2.11`
    numbers = re.findall(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", text[:100], re.ASCII)
    if len(numbers) != 1:
        return ""
    major, *minor = numbers[0].split(".")
    if not minor and re.search(r"[a-z*]", text[:100].removeprefix("v"), re.IGNORECASE):
        return ""  # `2.x` is ambiguous
    return f"{major}.{minor[0] if minor else 0}"


def _near_url(text: str) -> str:
    written = f"https://{text}"
    return written if re.fullmatch(r"[\w.-]+\.[a-z]{2,}/[\w./-]+", text[:300], re.ASCII) else ""


_NEAR: dict[type, Callable[[str], str]] = {
    Version: _near_version,
    KernelName: suggest_kernel_name,
    GitUrl: _near_url,
}
"""Suggestions for values of a type."""

_EXAMPLES: dict[type, str] = {
    Version: 'such as "2.12"',
    KernelName: 'such as "rms-norm"',
    GitUrl: 'such as "https://github.com/owner/name"',
}


_BACKEND_KEYS = {
    key: str(backend)
    for backend, facts in BACKENDS.items()
    for key in (facts.archs, facts.flags, facts.minver)
    if key
}
"""Keys of components of one backend."""

_ADD = {
    "license": 'add `license = "Apache-2.0"`, or another license',
    "version": "add `version = 1`",
    "backends": 'add `backends = ["cuda"]`, or other backends',
    "depends": 'add `depends = ["torch"]`, or `depends = []`',
    "general": "add `[general]` with `name`, `version`, `license` and `backends`",
}
"""Hints for missing keys, where an example helps."""


_SEVERAL: dict[type, Any] = {
    StableAbi: Version | dict[Backend, Version],
    Upstream: GitUrl | tuple[GitUrl, ...],
}
"""Types that one value can stand for, or several."""


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


def path_text(path: KeyPath) -> str:
    """Format a key path: `kernel.norm.src[0]`."""
    text = ""
    for part in path:
        text += (
            f"[{part}]" if isinstance(part, int) else f".{shorten(part)}" if text else shorten(part)
        )
    return text
