"""Reads build.toml: detects the edition, upgrades 4 and 6 in memory, refuses older ones
(docs/format.md#editions).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from kci.config.document import Document, KeyPath, parse_document, read_document, refuse
from kci.config.facts import BACKENDS, HOST
from kci.config.model import GENERAL_BACKENDS, Build
from kci.config.values import Backend, quoted
from kci.diagnostics import Diagnostic, Related, Severity, finding, in_file_order
from kci.errors import FindingsError
from kci.utils.frozen import Frozen
from kci.utils.shipped import to_type
from kci.utils.suggest import command_line, one_of, suggestion


def newer_keys(data: dict[str, Any]) -> list[KeyPath]:
    """List the keys that need `edition = 5`."""
    general = _table(data, "general")
    newer = (
        "kernel-depends",
        *(backend for backend in GENERAL_BACKENDS if BACKENDS[backend].general_since_5),
    )
    older = [backend for backend in GENERAL_BACKENDS if backend not in newer]
    return [
        *(("general", key) for key in newer if key in general),
        *(
            ("general", key, "kernel-depends")
            for key in older
            if "kernel-depends" in _table(general, key)
        ),
        *(
            [("torch", "stable-abi")]
            if isinstance(_table(data, "torch").get("stable-abi"), dict)
            else []
        ),
    ]


def newer_key_problems(document: Document) -> list[Diagnostic]:
    """One error per key of `newer_keys`, for a file without an edition."""
    message = "`{}` exists from edition 5 on, and this file has no `edition`"
    hint = "add `edition = 5` to `[general]`"
    paths = newer_keys(document.data)
    return [
        document.at_key(path, "KCI105", message.format(".".join(map(str, path))), hint)
        for path in paths
    ]


def old_version_error(document: Document) -> FindingsError | None:
    """The error that refuses a file of version 1 to 3; None for later formats."""
    if not (is_version_3(document.data) or _is_older(document.data)):
        return None
    message = "a file of version 1, 2 or 3, which kci does not read"
    return refuse(
        document.at_key(("general",), "KCI108", message, "; ".join(_upgrade_steps(document.data)))
    )


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
_REQUIRED_KEYS = {
    "name": '"..."',
    "version": "1",
    "edition": "5",
    "license": '"..."',
    "backends": '["..."]',
}


def _upgrade_steps(data: dict[str, Any]) -> list[str]:
    missing_keys = [
        f"`{key} = {value}`" for key, value in _REQUIRED_KEYS.items() if key not in data["general"]
    ]
    steps = [f"add {', '.join(missing_keys)} to `[general]`"]
    if not {*FRAMEWORKS} & data.keys():
        steps.append("add `[torch]`, `[tvm-ffi]`, or `[torch-noarch]` for Python only")
    if _is_older(data):
        steps.append(
            "give each component `backend`, `depends` and `src`, and remove `universal` and "
            "`language`"
        )
    return steps


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


KNOWN_EDITIONS = (5, 6)

CPP = {f"cpp-{backend}": str(backend) for backend in Backend if BACKENDS[backend].components}
RUST = "rust-cpu"
_RUST_KEYS = ("cargo-manifest", "depends", "src")


def to_edition_5(
    document: Document, data: dict[str, Any]
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Convert the data of an edition-6 file to edition 5; faulty components become diagnostics and
    are left out.
    """
    problems: list[Diagnostic] = []
    read = dict(data)
    if isinstance(read.get("tvm-ffi"), dict):
        read["tvm-ffi"] = {"src": [], **read["tvm-ffi"]}
    if isinstance(read.get("kernel"), dict):
        read["kernel"] = {}
        for label, part in data["kernel"].items():
            if not isinstance(part, dict):
                read["kernel"][label] = part
            elif problem := _problem(document, data, label, part):
                problems.append(problem)
            else:
                read["kernel"][label] = _component(part)
    return read, problems


def _problem(
    document: Document, data: dict[str, Any], label: str, part: dict[str, Any]
) -> Diagnostic | None:
    def at(rule: str, key: str, message: str, hint: str = "") -> Diagnostic:
        return document.at_value(("kernel", label, key), rule, message, hint)

    language = part.get("language")
    known = [*CPP, RUST]
    if "language" not in part:
        if "backend" in part:
            return None
        return at("KCI102", "language", f"`kernel.{label}` lacks the key `language`", one_of(known))
    if "backend" in part:
        return at(
            "KCI101",
            "backend",
            f"`kernel.{label}` has `language`, which says the backend",
            "remove `backend`",
        )
    if language not in known:
        hint = suggestion(str(language), known) or one_of(known)
        return at(
            "KCI104",
            "language",
            f"{quoted(str(language)[:40])} is not a language for a component",
            hint,
        )
    if language != RUST:
        return None
    if "tvm-ffi" not in data:
        return at("KCI104", "language", f"`{RUST}` is for a kernel with `[tvm-ffi]` only")
    for key in part:
        if key not in ("language", *_RUST_KEYS):
            return at(
                "KCI101",
                key,
                f"`{key[:60]}` is not a key of a `{RUST}` component",
                one_of(_RUST_KEYS),
            )
    if not isinstance(part.get("cargo-manifest"), str):
        return at(
            "KCI102",
            "cargo-manifest",
            f"`kernel.{label}` lacks the key `cargo-manifest`",
            "such as Cargo.toml",
        )
    return None


def _component(part: dict[str, Any]) -> dict[str, Any]:
    kept = dict(part)
    language = kept.pop("language", None)
    if language == RUST:
        manifest = kept.pop("cargo-manifest")
        if isinstance(kept.get("src"), list):
            kept["src"] = [*kept["src"], manifest]
    return {"backend": CPP.get(language, str(HOST)), **kept}


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
        data = {**data, "general": {**data["general"], "edition": EDITION}}
        notes += more
    problems = [note for note in notes if note.severity is Severity.ERROR]
    problems += _framework_problems(document)
    try:
        build = read_as(document, Build, data)
    except FindingsError as error:
        problems += error.diagnostics
    if edition == 4:
        problems += newer_key_problems(document)
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

        findings = explain(document, data, shape)
        if not findings:  # msgspec and `explain` disagree, a bug: report it
            message = (
                f"the file does not have the structure of a {document.path.rpartition('/')[2]}"
            )
            findings = [finding("KCI103", message, document.path)]
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
    if type(edition) is not int or not 0 <= edition < 2**32:
        from kci.config.type_errors import toml_type

        written = document.source(("general", "edition"))[:40]
        shown = written if written and isinstance(edition, int) else toml_type(edition)
        message = f"invalid `general.edition`: expected the integer 5, got {shown}"
        raise refuse(
            document.at_value(("general", "edition"), "KCI105", message, "write `edition = 5`")
        )

    hint = f"the newest edition that this kci knows is {KNOWN_EDITIONS[-1]}; is there a newer kci?"
    if edition < EDITION:
        hint = "version 4 files have no `edition` at all; write `edition = 5`"
    raise refuse(
        document.at_value(
            ("general", "edition"), "KCI105", f"unsupported build edition {edition}", hint
        )
    )


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
        if snake != key and snake in table:
            message = f"`{key}` and `{snake}` are the same key; keep `{snake}`"
            notes.append(document.at_key(("torch-noarch", key), "KCI110", message))
        elif snake != key:
            message = f"the reference builder does not read `{key}` under `[torch-noarch]`"
            notes.append(
                document.at_key(("torch-noarch", key), "KCI111", message, f"write `{snake}`")
            )
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
    related = (
        [Related("the first framework is here", document.path, *astuple(first))] if first else []
    )
    message = f"`[{{}}]` cannot be combined with `[{present[0]}]`; a kernel has one framework"
    hint, spans = (
        "remove one of the two tables",
        {name: document.key_span((name,)) for name in present[1:]},
    )
    return [
        finding(
            "KCI106", message.format(name), document.path, hint=hint, span=span, related=related
        )
        for name, span in spans.items()
    ]
