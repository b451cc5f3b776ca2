"""Rewrites a build.toml to edition 5 in place: comments, order, quoting and line ends stay."""

from __future__ import annotations

import difflib
import re
import shutil
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from msgspec.structs import replace

from kci.config.document import BOM, Document, KeyPath, parse_document, refuse
from kci.config.model import Build
from kci.config.reader import BUILD_TOML, EDITION, NOARCH_KEYS, interpret, parse_kernel
from kci.diagnostics import Span, finding
from kci.errors import FindingsError
from kci.utils.frozen import Frozen


class Update(Frozen):
    """The rewrite of one file by `kci update`."""

    path: str
    before: bytes
    after: bytes
    changes: tuple[str, ...]
    """A phrase per change; empty if the file is up to date."""

    def diff(self) -> str:
        """The unified diff; empty if the file is up to date."""
        if not self.changes:
            return ""
        name = self.path.lstrip("/")
        lines = difflib.unified_diff(
            _lines(self.before), _lines(self.after), f"a/{name}", f"b/{name}"
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


def _lines(raw: bytes) -> list[str]:
    # only a newline ends a line of a diff; `splitlines` knows more
    return [line for line in re.split(r"(?<=\n)", raw.decode("utf-8")) if line]


def plan_update(raw: bytes, directory: str = ".", shown_as: str = BUILD_TOML) -> Update:
    """Plan the rewrite of a build.toml.

    Raises FindingsError if it is invalid or older than edition 4.
    """
    document = parse_document(raw, shown_as)
    kernel = interpret(document, directory)
    edits = Edits(document)
    if kernel.edition == 4:
        edits.add_edition()
        _spread_stable_abi(edits, kernel.build)
    _respell_noarch(edits)
    after = edits.apply(raw.startswith(BOM))
    if edits.changes:
        _verify(after, kernel.build, shown_as, max(EDITION, kernel.edition))
    return Update(shown_as, raw, after, tuple(edits.changes))


def _spread_stable_abi(edits: Edits, build: Build) -> None:
    if build.torch is None or build.torch.stable_abi is None:
        return
    _, value = edits.spans(("torch", "stable-abi"))
    version = edits.text_at(value)
    entries = ", ".join(
        f"{backend} = {version}" for backend in dict.fromkeys(build.general.backends)
    )
    edits.replace(value, f"{{ {entries} }}" if entries else "{}", "`stable-abi` per backend")


def _respell_noarch(edits: Edits) -> None:
    for name in NOARCH_KEYS:
        if name in edits.document.data.get("torch-noarch", {}):
            span, _ = edits.spans(("torch-noarch", name))
            key, snake = edits.text_at(span), name.replace("-", "_")
            edits.replace(
                span, key.replace(name, snake) if name in key else snake, f"`{snake}` in snake_case"
            )


def _verify(after: bytes, build: Build, shown_as: str, target: int) -> None:
    # a result with another meaning is a bug of kci
    with suppress(FindingsError):
        kernel = parse_kernel(after, shown_as=shown_as)
        if kernel.edition == target and _meaning(kernel.build) == _meaning(build):
            return
    raise _not_updatable(shown_as)


def _not_updatable(shown_as: str) -> FindingsError:
    hint = "write the edition by hand, and report this file as a bug of kci"
    return refuse(
        finding(
            "KCI114", "the file is written in a way that kci cannot update", shown_as, hint=hint
        )
    )


def _meaning(build: Build) -> str:
    # whatever the form of the stable ABI
    torch = build.torch and replace(build.torch, stable_abi=None)
    return repr((replace(build, torch=torch), *map(build.stable_abi, build.general.backends)))


class Edits:
    """Collected edits of a document's text."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.lines = document.text.split("\n")
        self.starts = [*accumulate((len(line) + 1 for line in self.lines), initial=0)]
        self.changes: list[str] = []
        self.edits: list[tuple[int, int, str]] = []

    def spans(self, path: KeyPath) -> tuple[Span, Span]:
        """Positions of key and value. Raises FindingsError (KCI114) without a syntax tree node."""
        spans = self.document.spans(path)
        if spans is None:
            raise _not_updatable(self.document.path)
        return spans

    def offsets(self, span: Span) -> tuple[int, int]:
        """Start and end in characters."""
        return self.starts[span.line - 1] + span.column - 1, self.starts[
            span.end_line - 1
        ] + span.end_column - 1

    def text_at(self, span: Span) -> str:
        start, end = self.offsets(span)
        return self.document.text[start:end]

    def replace(self, span: Span, text: str, change: str) -> None:
        self.edits.append((*self.offsets(span), text))
        self.changes.append(change)

    def add_edition(self) -> None:
        """Add the edition in the style of the version key: own line, dotted, or inline table."""
        key, value = self.spans(("general", "version"))
        text = self.document.text
        line_start, (key_start, key_end) = self.starts[key.line - 1], self.offsets(key)
        value_start, value_end = self.offsets(value)
        line_end = self.starts[value.end_line] - 1
        rest = text[value_end:line_end].strip(" \t\r")
        at, new = value_end, f", edition = {EDITION}"
        if not rest or rest.startswith("#"):
            prefix, old_key, equals = (
                text[line_start:key_start],
                text[key_start:key_end],
                text[key_end:value_start],
            )
            new_key = old_key.replace("version", "edition") if "version" in old_key else "edition"
            aligned = _align(equals, len(new_key) - len(old_key))
            at = line_end - 1 if text[line_end - 1 : line_end] == "\r" else line_end
            last = self.lines[
                min(value.end_line, len(self.lines) - 1) - 1
            ]  # of the lines that have a line end
            ending = "\r\n" if last.endswith("\r") else "\n"
            new = f"{ending}{prefix}{new_key}{aligned}{EDITION}"
        self.edits.append((at, at, new))
        self.changes.append(f"`edition = {EDITION}`")

    def apply(self, with_bom: bool) -> bytes:
        """The edited document as bytes."""
        text = self.document.text
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return (BOM if with_bom else b"") + text.encode("utf-8")


def _align(equals: str, wider: int) -> str:
    match = re.fullmatch(r"( +)(=.*)", equals, re.DOTALL)
    return " " * max(1, len(match[1]) - wider) + match[2] if match and len(match[1]) > 1 else equals


def write_update(path: Path, update: Update) -> None:
    """Replace a file atomically; a symbolic link stays.

    Raises FindingsError (KCI115), also if the file has changed.
    """
    from kci.utils.atomic import replacing

    try:
        target = path.resolve(strict=True)
        with replacing(target) as replacement:
            replacement.staging.write_bytes(update.after)
            shutil.copymode(target, replacement.staging)
            if target.read_bytes() != update.before:
                raise FindingsError("the file changed while it was being updated")
            replacement.commit()
    except (OSError, FindingsError) as error:
        message = (
            error.message
            if isinstance(error, FindingsError)
            else f"cannot be written: {error.strerror or error}"
        )
        hint = "the file is unchanged; fix the cause and run `kci update` again"
        raise refuse(finding("KCI115", message, update.path, hint=hint)) from None
