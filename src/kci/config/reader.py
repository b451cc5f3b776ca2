"""build.toml to `Build`: which edition a file is, and the strict reading of it.

The rules of detection are the reference's (docs/format.md#editions): `edition = 5` is read as such and nothing else is
tried; any other number is an error; without an edition the file is tried as v4, which is upgraded in memory; older
ones are refused. What the others mean in edition 5: `kci.config.editions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kci.config.document import Document, KeyPath, parse_document, read_document, refuse
from kci.config.model import Build
from kci.diagnostics import Diagnostic, Related, Severity, Span, finding, in_file_order
from kci.errors import FindingsError
from kci.files.dated_data import to_type

FRAMEWORKS = ("torch", "torch-noarch", "tvm-ffi")
BUILD_TOML = "build.toml"
EDITION = 5
"""The edition in whose form every kernel is held, whatever its file is written in."""


class Kernel(msgspec.Struct, frozen=True):
    """A directory with a build.toml that was read without an error."""

    directory: str
    """As the user named it, or relative to what they named; `.` for the working directory."""
    build: Build
    document: Document
    diagnostics: tuple[Diagnostic, ...] = ()
    """Warnings and notes that came up in reading."""
    edition: int = 5
    """The edition that the file is written in: 5 or a later one, or 4 for a file without one."""

    def place(self, path: KeyPath) -> tuple[str, int]:
        """File and line of a key path; line 0 if it is not in the file."""
        return self.document.place(path)


def read_kernel(directory: str | Path) -> Kernel:
    """Read the build.toml of a kernel directory.

    Raises:
        FindingsError: the file is missing, unreadable or invalid; it carries every diagnostic.
    """
    shown = str(directory) or "."
    return interpret(read_document(Path(directory) / BUILD_TOML, shown_file(shown)), shown)


def shown_file(directory: str) -> str:
    """How messages name the build.toml of a kernel directory."""
    return BUILD_TOML if directory == "." else f"{directory.rstrip('/')}/{BUILD_TOML}"


def parse_kernel(raw: bytes, directory: str = ".", shown_as: str = BUILD_TOML) -> Kernel:
    """Read a build.toml from its bytes, for example out of a git revision; see `read_kernel`."""
    return interpret(parse_document(raw, shown_as), directory)


def interpret(document: Document, directory: str) -> Kernel:
    """Turn a parsed TOML file into a kernel.

    Raises:
        FindingsError: it is not a valid build.toml of a supported edition.
    """
    edition = detect_edition(document)
    data, notes = _respell_noarch(document)
    if edition > EDITION:
        from kci.config.editions import as_edition_5

        data, more = as_edition_5(document, data)
        data = {**data, "general": {**data["general"], "edition": EDITION}}
        notes += more
    problems = [note for note in notes if note.severity is Severity.ERROR]
    problems += _framework_problems(document)
    build: Build | None = None
    try:
        build = read_as(document, Build, data)
    except FindingsError as error:
        problems += error.diagnostics
    if edition == 4:
        from kci.config.editions import newer_key_problems, too_old_error

        problems += newer_key_problems(document)
        older = too_old_error(document) if build is None or problems else None
        if older is not None:
            raise older
    if problems or build is None:
        raise refuse(*sorted(problems, key=in_file_order))
    if edition == 4:
        notes.append(
            document.at_key(
                ("general",),
                "KCI107",
                "no `edition`: read as edition 4 and upgraded in memory",
                f"`kci update {directory}` writes edition 5",
            )
        )
    if edition > EDITION:
        message = f"edition {edition} is not released: published readers refuse it, and it may still change"
        hint = f"keep to `edition = {EDITION}` until they take it"
        notes.append(document.at_value(("general", "edition"), "KCI117", message, hint))
    stable = build.torch.stable_abi if build.torch else None
    for backend in stable.by_backend if stable else ():
        if backend not in build.general.backends:
            message = f"stable ABI entry for {backend}, which is not in `general.backends`: ignored"
            notes.append(document.at_key(("torch", "stable-abi", str(backend)), "KCI112", message))
    return Kernel(directory, build, document, tuple(notes), edition)


_Table = TypeVar("_Table", bound=msgspec.Struct)


def read_as(document: Document, shape: type[_Table], data: dict[str, Any] | None = None, *, rule: str = "") -> _Table:
    """A parsed file as what it should be.

    Args:
        document: the file.
        shape: the type of the whole file.
        data: its content, where something in it was respelled.
        rule: what to report instead of the rules about single values.

    Raises:
        FindingsError: it is not; the error carries every problem.
    """
    data = document.data if data is None else data
    try:
        return to_type(data, shape)
    except (msgspec.ValidationError, RecursionError):
        from kci.config.mismatch import explain

        found = explain(document, data, shape)
        if not found:  # the two readers disagree, which a property test rules out; say so rather than pass
            message = f"the file does not have the structure of a {document.path.rpartition('/')[2]}"
            found = [finding("KCI103", message, path=document.path)]
        if rule:
            spans = [Span(item.line, item.column, item.end_line, item.end_column) for item in found]
            told = zip(found, spans, strict=True)
            found = [finding(rule, item.message, hint=item.hint, path=item.path, span=span) for item, span in told]
        raise refuse(*found) from None


def detect_edition(document: Document) -> int:
    """The edition that a file names, 4 for a file without one (which may still turn out to be older).

    Raises:
        FindingsError: an edition that kci does not know.
    """
    general = document.data.get("general")
    if not isinstance(general, dict) or "edition" not in general:
        return 4
    edition = general["edition"]
    if edition == EDITION and type(edition) is int:
        return EDITION
    if isinstance(edition, bool) or not isinstance(edition, int) or not 0 <= edition < 2**32:
        from kci.config.mismatch import toml_type

        written = document.source(("general", "edition"))[:40]
        shown = written if written and isinstance(edition, int) else toml_type(edition)
        message = f"invalid `general.edition`: expected the integer 5, got {shown}"
        raise refuse(document.at_value(("general", "edition"), "KCI105", message, "write `edition = 5`"))
    from kci.config.editions import KNOWN_EDITIONS

    if edition in KNOWN_EDITIONS:
        return edition
    hint = f"the newest edition that this kci knows is {KNOWN_EDITIONS[-1]}; is there a newer kci?"
    if edition < EDITION:
        hint = "version 4 files have no `edition` at all; write `edition = 5`"
    raise refuse(document.at_value(("general", "edition"), "KCI105", f"unsupported build edition {edition}", hint))


_NOARCH_KEYS = {"cuda-capabilities": "cuda_capabilities", "rocm-archs": "rocm_archs"}


def _respell_noarch(document: Document) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Accept the kebab-case keys of `[torch-noarch]` that the reference documents (docs/format.md#key-spelling)."""
    table = document.data.get("torch-noarch")
    if not isinstance(table, dict) or not _NOARCH_KEYS.keys() & table.keys():
        return document.data, []
    notes, respelled = [], {}
    for key, value in table.items():
        snake = _NOARCH_KEYS.get(key, key)
        if snake != key and snake in table:
            message = f"`{key}` and `{snake}` are the same key; keep `{snake}`"
            notes.append(document.at_key(("torch-noarch", key), "KCI110", message))
        elif snake != key:
            message = f"the reference builder does not read `{key}` under `[torch-noarch]`"
            notes.append(document.at_key(("torch-noarch", key), "KCI111", message, f"write `{snake}`"))
        respelled[snake] = value
    return {**document.data, "torch-noarch": respelled}, notes


def _framework_problems(document: Document) -> list[Diagnostic]:
    present = [name for name in document.data if name in FRAMEWORKS]
    if not present:
        message = "no framework table: one of `[torch]`, `[torch-noarch]` and `[tvm-ffi]` is required"
        hint = "an empty `[torch-noarch]` is enough for a kernel of Python only"
        return [finding("KCI106", message, hint=hint, path=document.path)]
    if len(present) == 1:
        return []
    first = document.key_span((present[0],))
    related = (Related("the first framework is here", document.path, *msgspec.structs.astuple(first)),) if first else ()
    return [
        msgspec.structs.replace(
            document.at_key(
                (name,),
                "KCI106",
                f"`[{name}]` cannot be combined with `[{present[0]}]`; a kernel has one framework",
                "remove one of the two tables",
            ),
            related=related,
        )
        for name in present[1:]
    ]
