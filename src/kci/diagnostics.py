"""Findings: rule id, severity, message, place and hint."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import tomli


class Severity(enum.StrEnum):
    """Only errors make a command fail."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Span(msgspec.Struct, frozen=True):
    """A range in a text file.

    Lines and columns count from 1, columns in characters; the end is exclusive.
    """

    line: int
    column: int
    end_line: int
    end_column: int


class Rule(msgspec.Struct, frozen=True):
    """A rule of `rules/`, for `kci explain` and the pages of docs/rules/."""

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    bad: str = ""
    """A part of a file that breaks the rule, tested."""
    good: str = ""


class Related(msgspec.Struct, frozen=True):
    """A further place of a finding."""

    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int


class Diagnostic(msgspec.Struct, frozen=True):
    """A finding; `path` is empty without a file, and line and column are 0 for a whole file."""

    rule: str
    severity: Severity
    message: str
    hint: str = ""
    path: str = ""
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    related: tuple[Related, ...] = ()

    @property
    def place(self) -> str:
        """`path:line:column`, as far as it is known."""
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path


Findings = Iterator[Diagnostic]
"""The yield of a check."""


def errors_in(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those that make a command fail."""
    return [item for item in diagnostics if item.severity is Severity.ERROR]


def in_file_order(diagnostic: Diagnostic) -> tuple[str, int, int, str, str]:
    """A sort key: file, place, rule, message."""
    return (
        diagnostic.path,
        diagnostic.line,
        diagnostic.column,
        diagnostic.rule,
        diagnostic.message,
    )


def finding(
    rule: str,
    message: str,
    path: str | Path = "",
    *,
    hint: str = "",
    span: Span | None = None,
    related: Iterable[Related] = (),
) -> Diagnostic:
    """A diagnostic with the severity of its rule; KeyError for an unknown rule.

    `path` is as the user would name it.
    """
    place = msgspec.structs.asdict(span) if span is not None else {}
    return Diagnostic(
        rule, rules()[rule].severity, message, hint, str(path), related=tuple(related), **place
    )


def placed(findings: Iterable[Diagnostic], place: str) -> Findings:
    """Yield the findings about a part, which name places in it, with its own place ahead."""
    for item in findings:
        yield msgspec.structs.replace(item, path=f"{place}/{item.path}" if item.path else place)


@cache
def rules() -> dict[str, Rule]:
    """All rules by id, sorted."""
    data: dict[str, Any] = {}
    for file in sorted((Path(__file__).parent / "rules").glob("*.toml")):
        data |= tomli.loads(file.read_text(encoding="utf-8"))
    return {key: msgspec.convert({"id": key, **data[key]}, Rule) for key in sorted(data)}  # noqa: TID251  - of kci's own


def render_text(
    diagnostic: Diagnostic, file_lines: Callable[[str], Sequence[str]] = lambda _path: ()
) -> str:
    """A diagnostic as text: place, severity, rule, message, the line of `file_lines` with a caret,
    and hint.
    """
    place = f"{printable(diagnostic.place)}: " if diagnostic.path else ""
    lines = [
        f"{place}{diagnostic.severity.value}[{diagnostic.rule}]: "
        f"{printable_lines(diagnostic.message)}"
    ]
    spots: list[Diagnostic | Related] = [diagnostic, *diagnostic.related]
    for spot in spots:
        if spot.path and spot.line and len(source := file_lines(spot.path)) >= spot.line:
            lines += _excerpt(spot, source[spot.line - 1])
        elif isinstance(spot, Related):
            lines.append(f"  {spot.path}:{spot.line}:{spot.column}: {spot.message}")
    if diagnostic.hint:
        lines.append(f"  hint: {printable_lines(diagnostic.hint)}")
    return "\n".join(lines)


_EXCERPT_WIDTH = 120


def _excerpt(diagnostic: Diagnostic | Related, source_line: str) -> list[str]:
    start = diagnostic.column - 1
    offset = max(0, start - 40) if len(source_line) > _EXCERPT_WIDTH else 0
    shown = printable(source_line[offset : offset + _EXCERPT_WIDTH])
    end = diagnostic.end_column - 1 if diagnostic.end_line == diagnostic.line else len(source_line)
    width = max(1, min(end - start, len(shown) - (start - offset)))
    gutter = f"{diagnostic.line} | "
    mark = (
        "^" * width if isinstance(diagnostic, Diagnostic) else f"{'-' * width} {diagnostic.message}"
    )
    return [f"  {gutter}{shown}", f"  {' ' * (len(gutter) - 2)}| {' ' * (start - offset)}{mark}"]


def printable(text: str, instead: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """The text with `instead` for each control character, so that hostile input cannot drive a
    terminal.
    """
    return "".join(char if char.isprintable() else instead for char in text)


def printable_lines(text: str) -> str:
    """The same, with line breaks and tabs kept."""
    return re.sub(r"[^\n\t]+", lambda part: printable(part[0]), text)


def render_github(diagnostic: Diagnostic) -> str:
    """A workflow command for an annotation on GitHub, escaped as the runner expects."""
    kind = "notice" if diagnostic.severity is Severity.INFO else diagnostic.severity
    properties = {"title": diagnostic.rule}
    if diagnostic.path:
        properties["file"] = diagnostic.path
    if diagnostic.line:
        properties["line"] = str(diagnostic.line)
        properties["endLine"] = str(diagnostic.end_line or diagnostic.line)
        if diagnostic.end_line in (0, diagnostic.line):
            properties["col"] = str(diagnostic.column)
            properties["endColumn"] = str(diagnostic.end_column)
    head = ",".join(f"{key}={escape_property(value)}" for key, value in properties.items())
    others = "".join(f"\n{item.path}:{item.line}: {item.message}" for item in diagnostic.related)
    text = diagnostic.message + others + (f"\nhint: {diagnostic.hint}" if diagnostic.hint else "")
    return f"::{kind} {head}::{escape_data(text)}"


def escape_data(text: str) -> str:
    """Escape the message of a GitHub workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape a property of a GitHub workflow command."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")
