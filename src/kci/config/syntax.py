"""Explains TOML syntax errors of `tomli`; duplicates and open brackets get their second
place too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import astuple

from kci.diagnostics import Diagnostic, Related, Span, finding

_AT = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_TWICE = re.compile(r"Cannot declare \((.*)\) twice$")
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY = re.compile(rf"[ \t]*({_NAME}(?:[ \t]*\.[ \t]*{_NAME})*)[ \t]*=")
_HEADER = re.compile(r"[ \t]*(\[\[?)[ \t]*([^\]\n#]+?)[ \t]*\]\]?(?P<alone>(?=\s*(?:#.*)?$))?")
_NO_BRACKETS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|#.*")
_LINES = (
    "a line is `key = value`, `[table]`, or a comment after `#`; a text stands in straight quotes"
)


class _Problem(NamedTuple):
    message: str
    span: Span | None
    hint: str = ""
    other: tuple[str, Span] | None = None
    """The text for a further place."""


def syntax_error(text: str, parser_message: str, shown_as: str) -> Diagnostic:
    """Make the KCI004 finding for a text and the parser's message."""
    many = "a number has too many digits"
    problem = _Problem(many if "digits" in parser_message else parser_message, None)
    if position := _AT.search(parser_message):
        span = place_after(text.rstrip())  # the end of the text, not an empty last line
        if position[1]:
            span = _span(int(position[1]), int(position[2]) - 1)
        problem = _explain(text.split("\n"), parser_message[: position.start()], span)
    other = problem.other and [Related(problem.other[0], shown_as, *astuple(problem.other[1]))]
    return finding(
        "KCI004",
        f"not valid TOML: {problem.message[:300]}",
        shown_as,
        span=problem.span,
        hint=problem.hint,
        related=other or (),
    )


def _explain(lines: list[str], parser_message: str, span: Span) -> _Problem:
    for explain in (_declared_twice, _set_twice, _string_open, _bracket_open):
        problem = explain(lines, parser_message, span)
        if problem is not None:
            return problem
    return _Problem(parser_message[:1].lower() + parser_message[1:], span, _LINES)


def _declared_twice(lines: list[str], parser_message: str, span: Span) -> _Problem | None:
    duplicate = _TWICE.search(parser_message)
    if duplicate is None:
        return None
    name, first = _plain(duplicate[1].rstrip(",").replace(",", ".")), None
    for number, match in _matches(_HEADER, lines[: span.line]):
        if _plain(match[2]) == name and number < span.line:
            first = first or ("first declared here", _match_span(number, match, 2))
        elif _plain(match[2]) == name:
            span = Span(number, match.start(1) + 1, number, match.end() + 1)
    hint = "put the keys of both under one header, or give one of them another name"
    return _Problem(f"the table `[{name}]` is declared twice", span, hint, first)


def _set_twice(lines: list[str], parser_message: str, span: Span) -> _Problem | None:
    match = _KEY.match(lines[span.line - 1])
    if parser_message != "Cannot overwrite a value" or match is None:
        return None
    key, own = _plain(match[1]), _match_span(span.line, match, 1)
    start = max((number for number, _ in _matches(_HEADER, lines[: span.line])), default=0)
    for number, earlier in _matches(_KEY, lines[: span.line - 1]):
        if number > start and _plain(earlier[1]) == key:
            first = "first set here", _match_span(number, earlier, 1)
            return _Problem(f"the key `{key}` is set twice", own, "keep one of the two", first)
    hint = "the key, or a table of its name, stands further up"
    return _Problem(f"the key `{key}` is set twice", own, hint)


def _string_open(lines: list[str], parser_message: str, span: Span) -> _Problem | None:
    if parser_message in ("Unterminated string", "Expected \"'''\"", 'Expected \'"""\''):
        return _Problem("a string of several lines is never closed", span, "add the closing quotes")
    if parser_message not in ("Illegal character '\\n'", "Illegal character '\\r'"):
        return None
    line = lines[span.line - 1]
    opened = max(line.rfind('"'), line.rfind("'"))
    place = _span(span.line, opened) if opened >= 0 else span
    return _Problem(
        "the string that begins here is never closed", place, "add the closing quote at its end"
    )


_BRACKETS = {
    "Unclosed array": ("array", "[", "]"),
    "Unclosed inline table": ("inline table", "{", "}"),
}


def _bracket_open(lines: list[str], parser_message: str, span: Span) -> _Problem | None:
    line = lines[span.line - 1]
    header = _HEADER.match(line)
    # a header after an open array is parsed as an array inside it
    if parser_message == "Invalid value" and header and header["alone"] is not None:
        parser_message, span = "Unclosed array", _span(span.line, header.start(1))
    if parser_message not in _BRACKETS:
        return None
    what, opening, closing = _BRACKETS[parser_message]
    before, rest = line[: span.column - 1], line[span.column - 1 :]
    begin = _last_open([*lines[: span.line - 1], before], opening, closing)
    if begin is None:
        return _Problem(f"an {what} is never closed", span, f"add `{closing}`")
    at_end = not "".join([rest, *lines[span.line :]]).strip()
    if at_end or (not before.strip() and (_KEY.match(line) or header)):
        message = f"the {what} that begins here is never closed"
        hint, other = f"add `{closing}` where it ends", ("and is still open here", span)
        return _Problem(message, begin, hint, other)
    hint = "put a comma between two elements"
    return _Problem(f"expected `,` or `{closing}`", span, hint, (f"the {what} begins here", begin))


def _last_open(lines: list[str], opening: str, closing: str) -> Span | None:
    # brackets in strings and comments do not count, nor what stands before the last header
    headers = _matches(_HEADER, lines[:-1])
    start = max((number for number, match in headers if match["alone"] is not None), default=0)
    opened: list[Span] = []
    for number, line in enumerate(lines[start:], start=start + 1):
        bare = _NO_BRACKETS.sub(lambda match: " " * len(match[0]), line)
        for column, char in enumerate(bare):
            if char == opening:
                opened.append(_span(number, column))
            elif char == closing and opened:
                opened.pop()
    return opened[-1] if opened else None


def _matches(pattern: re.Pattern[str], lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    found = enumerate(map(pattern.match, lines), start=1)
    return ((number, match) for number, match in found if match)


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("'\"") for part in key.split("."))


def _match_span(line: int, match: re.Match[str], group: int) -> Span:
    return Span(line, match.start(group) + 1, line, match.end(group) + 1)


def _span(line: int, column: int) -> Span:
    return Span(line, column + 1, line, column + 2)


def place_after(text: str) -> Span:
    """Position after a text."""
    return _span(text.count("\n") + 1, len(text) - text.rfind("\n") - 1)
