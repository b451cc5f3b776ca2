"""Explains TOML syntax errors of `tomli`; duplicates and open brackets get their second
place too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import astuple

from kci.diagnostics import Diagnostic, Related, Span, finding

_AT = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_TWICE = re.compile(r"Cannot declare \((.*)\) twice$")
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY = re.compile(rf"[ \t]*({_NAME}(?:[ \t]*\.[ \t]*{_NAME})*)[ \t]*=")
_HEADER = re.compile(r"[ \t]*(\[\[?)[ \t]*([^\]\n#]+?)[ \t]*\]\]?")
_LINES = (
    "a line is `key = value`, `[table]`, or a comment after `#`; a text stands in straight quotes"
)


class _Problem(NamedTuple):
    message: str
    span: Span | None
    hint: str = ""
    others: Sequence[tuple[str, Span]] = ()
    """Texts for further places."""


def syntax_error(text: str, parser_message: str, shown_as: str) -> Diagnostic:
    """Make the KCI004 finding for a text and the parser's message."""
    span = None
    if position := _AT.search(parser_message):
        parser_message = parser_message[: position.start()]
        span = place_after(text.rstrip())  # the end of the text, not an empty last line
        if position[1]:
            span = _span(int(position[1]), int(position[2]) - 1)
    message, span, hint, others = _explain(text, parser_message, span)
    related = [Related(what, shown_as, *astuple(place)) for what, place in others]
    return finding(
        "KCI004",
        f"not valid TOML: {message[:300]}",
        shown_as,
        span=span,
        hint=hint,
        related=related,
    )


def _explain(text: str, parser_message: str, span: Span | None) -> _Problem:
    if span is None:
        return _Problem(
            "a number has too many digits" if "digits" in parser_message else parser_message, None
        )
    lines = text.split("\n")
    line = lines[span.line - 1].rstrip("\r") if span.line <= len(lines) else ""
    for explain in (_declared_twice, _set_twice, _never_closed):
        problem = explain(lines, line, parser_message, span)
        if problem is not None:
            return problem
    return _Problem(parser_message[:1].lower() + parser_message[1:], span, _LINES)


def _declared_twice(
    lines: list[str], _line: str, parser_message: str, span: Span
) -> _Problem | None:
    duplicate = _TWICE.search(parser_message)
    if duplicate is None:
        return None
    name = _plain(duplicate[1].rstrip(",").replace(",", "."))
    places = [(number, match) for number, match in _headers(lines) if _plain(match[2]) == name]
    first = [
        ("first declared here", _match_span(number, match, 2))
        for number, match in places
        if number < span.line
    ]
    for number, match in places:
        if number == span.line:
            span = Span(number, match.start(1) + 1, number, match.end() + 1)
    hint = "put the keys of both under one header, or give one of them another name"
    return _Problem(f"the table `[{name}]` is declared twice", span, hint, first[:1])


def _set_twice(lines: list[str], line: str, parser_message: str, span: Span) -> _Problem | None:
    key_match = _KEY.match(line)
    if parser_message != "Cannot overwrite a value" or key_match is None:
        return None
    key = _plain(key_match[1])
    start = max((number for number, _ in _headers(lines) if number <= span.line), default=0)
    table = [
        (number, match)
        for number in range(start + 1, span.line)
        if (match := _KEY.match(lines[number - 1]))
    ]
    first = [
        ("first set here", _match_span(number, match, 1))
        for number, match in table
        if _plain(match[1]) == key
    ]
    hint = "keep one of the two" if first else "the key, or a table of its name, stands further up"
    return _Problem(
        f"the key `{key}` is set twice", _match_span(span.line, key_match, 1), hint, first[:1]
    )


_BRACKETS = {
    "Unclosed array": ("array", "[", "]"),
    "Unclosed inline table": ("inline table", "{", "}"),
}


def _never_closed(lines: list[str], line: str, parser_message: str, span: Span) -> _Problem | None:
    if parser_message in ("Unterminated string", "Expected \"'''\"", 'Expected \'"""\''):
        return _Problem("a string of several lines is never closed", span, "add the closing quotes")
    if parser_message in ("Illegal character '\\n'", "Illegal character '\\r'"):
        opened = max(line.rfind('"'), line.rfind("'"))
        place = _span(span.line, opened) if opened >= 0 else span
        return _Problem(
            "the string that begins here is never closed", place, "add the closing quote at its end"
        )
    header = _HEADER.match(line)
    # a header after an open array is parsed as an array inside it
    if parser_message == "Invalid value" and header is not None and _alone(line, header):
        parser_message = "Unclosed array"
        span = _span(span.line, header.start(1))
    if parser_message not in _BRACKETS:
        return None
    what, opening, closing = _BRACKETS[parser_message]
    begin = _last_open(lines, span, opening, closing)
    if begin is None:
        return _Problem(f"an {what} is never closed", span, f"add `{closing}`")
    at_end = not "".join([line[span.column - 1 :], *lines[span.line :]]).strip()
    begins = not line[: span.column - 1].strip()
    if at_end or (begins and (_KEY.match(line) or _HEADER.match(line))):
        message = f"the {what} that begins here is never closed"
        return _Problem(
            message, begin, f"add `{closing}` where it ends", [("and is still open here", span)]
        )
    hint = "put a comma between two elements"
    return _Problem(
        f"expected `,` or `{closing}`", span, hint, [(f"the {what} begins here", begin)]
    )


def _headers(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    return (
        (number, match)
        for number, line in enumerate(lines, start=1)
        if (match := _HEADER.match(line))
    )


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("'\"") for part in key.split("."))


def _match_span(line: int, match: re.Match[str], group: int) -> Span:
    return Span(line, match.start(group) + 1, line, match.end(group) + 1)


def _last_open(lines: list[str], span: Span, opening: str, closing: str) -> Span | None:
    # brackets in strings and comments do not count
    opened: list[Span] = []
    before = [
        number
        for number, match in _headers(lines[: span.line - 1])
        if _alone(lines[number - 1], match)
    ]
    start = max(before, default=0)
    for number in range(start, min(span.line, len(lines))):
        line = lines[number]
        last = span.column - 1 if number == span.line - 1 else len(line)
        bare = re.sub(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", lambda match: " " * len(match[0]), line)
        for column, char in enumerate(bare.partition("#")[0][:last]):
            if char == opening:
                opened.append(_span(number + 1, column))
            elif char == closing and opened:
                opened.pop()
    return opened[-1] if opened else None


def _alone(line: str, header: re.Match[str]) -> bool:
    rest = line[header.end() :].strip()
    return not rest or rest.startswith("#")


def _span(line: int, column: int) -> Span:
    return Span(line, column + 1, line, column + 2)


def place_after(text: str) -> Span:
    """Position after a text."""
    return _span(text.count("\n") + 1, len(text) - text.rfind("\n") - 1)
