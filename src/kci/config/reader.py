"""Reads build.toml: detects the edition, upgrades 4 and 6 in memory, refuses older ones
(docs/format.md#editions).
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from kci.config.document import Document, parse_document, read_document, refuse
from kci.config.facts import BACKENDS, HOST
from kci.config.model import GENERAL_BACKENDS, Build
from kci.config.values import Backend, shorten
from kci.diagnostics import Diagnostic, Related, Severity, finding, in_file_order
from kci.errors import FindingsError
from kci.utils.frozen import Frozen
from kci.utils.shipped import to_type
from kci.utils.suggest import command_line, one_of, suggestion


def newer_keys(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """List the keys that need `edition = 5`."""
    paths: list[tuple[str, ...]] = [("general", "kernel-depends")]
    for name in GENERAL_BACKENDS:
        newer = BACKENDS[name].general_since_5
        paths.append(("general", name) if newer else ("general", name, "kernel-depends"))
    found = [path for path in paths if path[-1] in reduce(_table, path[:-1], data)]
    if isinstance(_table(data, "torch").get("stable-abi"), dict):
        found.append(("torch", "stable-abi"))
    return found


def old_version_error(document: Document) -> FindingsError | None:
    """The error that refuses a file of version 1 to 3; None for later formats."""
    data, older = document.data, _is_older(document.data)
    if not (older or is_version_3(data)):
        return None
    missing = (part for key, part in _REQUIRED.items() if key not in data["general"])
    steps = [f"add {', '.join(missing)} to `[general]`"]
    if not {*FRAMEWORKS} & data.keys():
        steps.append("add `[torch]`, `[tvm-ffi]`, or `[torch-noarch]` for Python only")
    if older:
        steps.append(
            "give each component `backend`, `depends` and `src`, and remove `universal` and "
            "`language`"
        )
    message = "a file of version 1, 2 or 3, which kci does not read"
    return refuse(document.at_key(("general",), "KCI108", message, "; ".join(steps)))


def is_version_3(data: dict[str, Any]) -> bool:
    """True for a valid file of version 3.

    The reference ignores a malformed `[torch]` here; kci reports it.
    """
    general = data.get("general")
    if (
        not isinstance(general, dict)
        or "source" in general
        or "torch-noarch" in data
        or newer_keys(data)
    ):
        return False
    if {"stable-abi", "cxx-flags"} & _table(data, "torch").keys() or (
        "torch" in data and "tvm-ffi" in data
    ):
        return False
    whole = {**data, "general": {"version": 1, "license": "", **general}}
    if "torch" not in data and "tvm-ffi" not in data:
        whole["torch-noarch"] = {}
    try:
        to_type(whole, Build)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _is_older(data: dict[str, Any]) -> bool:
    general = data.get("general")
    if not isinstance(general, dict) or "backends" in general:
        return False
    old = _OLD_KEYS & general.keys() or "universal" in _table(data, "torch")
    parts = _table(data, "kernel").values()
    return bool(old) or any(isinstance(part, dict) and "language" in part for part in parts)


_OLD_KEYS = {"universal", "cuda-minver", "cuda-maxver"}
_REQUIRED = {
    "name": '`name = "..."`',
    "version": "`version = 1`",
    "edition": "`edition = 5`",
    "license": '`license = "..."`',
    "backends": '`backends = ["..."]`',
}


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


KNOWN_EDITIONS = (5, 6)

_CPP = {f"cpp-{backend}": str(backend) for backend in Backend if BACKENDS[backend].components}
_RUST = "rust-cpu"


def to_edition_5(
    document: Document, data: dict[str, Any]
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Convert the data of an edition-6 file to edition 5; faulty components become diagnostics and
    are left out.
    """
    problems: list[Diagnostic] = []
    read = {**data, "general": {**data["general"], "edition": EDITION}}
    languages = _CPP
    if isinstance(data.get("tvm-ffi"), dict):
        read["tvm-ffi"] = {"src": [], **data["tvm-ffi"]}
        languages = {**_CPP, _RUST: str(HOST)}
    if isinstance(data.get("kernel"), dict):
        read["kernel"] = dict(data["kernel"])
    for label, part in _table(data, "kernel").items():
        if not isinstance(part, dict):
            continue
        kept = dict(part)
        language = str(kept.pop("language", ""))
        rule, message, hint = "KCI104", "", suggestion(language, [*languages]) or one_of(languages)
        if language not in languages or "backend" in part:
            message = f"`kernel.{shorten(label)}` must have a `language`, and no `backend`"
            if language in languages:
                hint = "remove `backend`"
            elif language == _RUST:
                hint = f"`{_RUST}` is for a kernel with `[tvm-ffi]` only"
        elif language == _RUST and "cargo-manifest" not in part:
            rule, message = "KCI102", f"`kernel.{shorten(label)}` lacks the key `cargo-manifest`"
            hint = "such as Cargo.toml"
        if message:
            problems.append(document.at_value(("kernel", label, "language"), rule, message, hint))
            del read["kernel"][label]
            continue
        if language == _RUST and isinstance(part.get("src"), list):
            kept["src"] = [*part["src"], kept.pop("cargo-manifest")]
        read["kernel"][label] = {"backend": languages[language], **kept}
    return read, problems


FRAMEWORKS = ("torch", "torch-noarch", "tvm-ffi")
BUILD_TOML = "build.toml"
EDITION = 5
"""The edition of `Kernel.build`, whatever the file's edition."""


class Kernel(Frozen):
    """A kernel directory with a valid build.toml."""

    directory: str
    """As the user wrote it; `.` for the working directory."""
    build: Build
    document: Document
    diagnostics: tuple[Diagnostic, ...] = ()
    """Warnings and notes."""
    edition: int = 5
    """Edition of the file; 4 if it has none."""


def read_kernel(directory: str | Path) -> Kernel:
    """Read the build.toml of a directory. Raises FindingsError with every diagnostic."""
    shown = str(directory) or "."
    return interpret(read_document(Path(directory) / BUILD_TOML, build_toml_path(shown)), shown)


def build_toml_path(directory: str) -> str:
    """Path of a kernel's build.toml in messages."""
    return BUILD_TOML if directory == "." else f"{directory.rstrip('/')}/{BUILD_TOML}"


def parse_kernel(raw: bytes, directory: str = ".", shown_as: str = BUILD_TOML) -> Kernel:
    """Read a build.toml from bytes, for example of a git revision; errors as `read_kernel`."""
    return interpret(parse_document(raw, shown_as), directory)


def interpret(document: Document, directory: str) -> Kernel:
    """Validate a parsed build.toml. Raises FindingsError with every diagnostic."""
    edition = detect_edition(document)
    data, notes = _respell_noarch(document)
    if edition > EDITION:
        data, more = to_edition_5(document, data)
        notes += more
    problems = [note for note in notes if note.severity is Severity.ERROR]
    problems += _framework_problems(document)
    try:
        build = read_as(document, Build, data)
    except FindingsError as error:
        problems += error.diagnostics
    if edition == 4:
        message = "`{}` exists from edition 5 on, and this file has no `edition`"
        problems += [
            document.at_key(
                path, "KCI105", message.format(".".join(path)), "add `edition = 5` to `[general]`"
            )
            for path in newer_keys(document.data)
        ]
        if problems and (older := old_version_error(document)):
            raise older
    if problems:
        raise refuse(*sorted(problems, key=in_file_order))
    if edition == 4:
        message = "no `edition`: read as edition 4 and upgraded in memory"
        hint = f"`{command_line('update', place=directory)}` writes edition 5"
        notes.append(document.at_key(("general",), "KCI107", message, hint))
    if edition > EDITION:
        message = (
            f"edition {edition} is not released: published readers refuse it, and it may still "
            "change"
        )
        hint = f"keep to `edition = {EDITION}` until they take it"
        notes.append(document.at_value(("general", "edition"), "KCI117", message, hint))
    return Kernel(directory, build, document, tuple(notes), edition)


_Table = TypeVar("_Table", bound=msgspec.Struct)


def read_as(
    document: Document, shape: type[_Table], data: dict[str, Any] | None = None, *, rule: str = ""
) -> _Table:
    """Convert a file to a struct; `rule` replaces the rules about values.

    Raises FindingsError with every problem.
    """
    data = document.data if data is None else data
    try:
        return to_type(data, shape)
    except (msgspec.ValidationError, RecursionError):
        from kci.config.type_errors import explain

        # without findings, msgspec and `explain` disagree, a bug
        what = f"the file does not have the structure of a {document.path.rpartition('/')[2]}"
        findings = explain(document, data, shape) or [finding("KCI103", what, document.path)]
        if rule:
            findings = [
                replace(item, rule=rule, severity=finding(rule, "").severity) for item in findings
            ]
        raise refuse(*findings) from None


def detect_edition(document: Document) -> int:
    """The edition key of a file; 4 without one. Raises FindingsError for an unknown edition."""
    general = _table(document.data, "general")
    if "edition" not in general:
        return 4
    edition = general["edition"]
    if type(edition) is int and edition in KNOWN_EDITIONS:
        return edition
    from kci.config.type_errors import toml_type

    place, whole = ("general", "edition"), isinstance(edition, int)
    hint = f"write `edition = {EDITION}`; files of version 4 have none"
    if whole and edition > KNOWN_EDITIONS[-1]:
        hint = (
            f"the newest edition that this kci knows is {KNOWN_EDITIONS[-1]}; is there a newer kci?"
        )
    shown = document.source(place)[:40] if whole else toml_type(edition)
    message = f"`general.edition` must be {EDITION}, not {shown}"
    raise refuse(document.at_value(place, "KCI105", message, hint))


NOARCH_KEYS = ("cuda-capabilities", "rocm-archs")
"""Of `[torch-noarch]`, where the reference reads them in snake_case only."""


def _respell_noarch(document: Document) -> tuple[dict[str, Any], list[Diagnostic]]:
    # the reference documents kebab-case keys and reads snake_case ones
    # (docs/format.md#key-spelling)
    table = document.data.get("torch-noarch")
    if not isinstance(table, dict):
        return document.data, []
    notes, respelled = [], {}
    for key, value in table.items():
        snake = key.replace("-", "_") if key in NOARCH_KEYS else key
        if snake != key:
            rule, message = "KCI111", f"the reference builder does not read `{key}` here"
            if snake in table:
                rule, message = "KCI110", f"`{key}` and `{snake}` are the same key"
            notes.append(document.at_key(("torch-noarch", key), rule, message, f"write `{snake}`"))
        respelled[snake] = value
    return {**document.data, "torch-noarch": respelled}, notes


def _framework_problems(document: Document) -> list[Diagnostic]:
    present = [name for name in document.data if name in FRAMEWORKS]
    if not present:
        message = (
            "no framework table: one of `[torch]`, `[torch-noarch]` and `[tvm-ffi]` is required"
        )
        hint = "an empty `[torch-noarch]` is enough for a kernel of Python only"
        return [finding("KCI106", message, document.path, hint=hint)]
    if len(present) == 1:
        return []
    first = document.key_span((present[0],))
    related = first and [Related("the first framework is here", document.path, *astuple(first))]
    return [
        finding(
            "KCI106",
            f"`[{name}]` cannot be combined with `[{present[0]}]`; a kernel has one framework",
            document.path,
            hint="remove one of the two tables",
            span=document.key_span((name,)),
            related=related or (),
        )
        for name in present[1:]
    ]
