"""Explains TOML syntax errors of `tomli`; duplicates and open brackets get their second place too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from kci.diagnostics import Diagnostic, Related, Span, finding

_AT = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_TWICE = re.compile(r"Cannot declare \((.*)\) twice$")
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY = re.compile(rf"[ \t]*({_NAME}(?:[ \t]*\.[ \t]*{_NAME})*)[ \t]*=")
_HEADER = re.compile(r"[ \t]*(\[\[?)[ \t]*([^\]\n#]+?)[ \t]*\]\]?")
_LINES = "a line is `key = value`, `[table]`, or a comment after `#`; a text stands in straight quotes"


class _Problem(msgspec.Struct):
    message: str
    span: Span | None
    hint: str = ""
    related: tuple[Related, ...] = ()


def syntax_error(text: str, parser_message: str, shown_as: str) -> Diagnostic:
    """Make the KCI004 finding for a text and the parser's message."""
    span = None
    if position := _AT.search(parser_message):
        parser_message = parser_message[: position.start()]
        span = place_after(text.rstrip())  # the end of the text, not an empty last line
        if position[1]:
            span = Span(int(position[1]), int(position[2]), int(position[1]), int(position[2]) + 1)
    problem = _explain(text, parser_message, span, shown_as)
    diagnostic = finding(
        "KCI004", f"not valid TOML: {problem.message[:300]}", path=shown_as, span=problem.span, hint=problem.hint
    )
    return msgspec.structs.replace(diagnostic, related=problem.related)


def _explain(text: str, parser_message: str, span: Span | None, path: str) -> _Problem:
    if span is None:
        return _Problem("a number has too many digits" if "digits" in parser_message else parser_message, None)
    lines = text.split("\n")
    line = lines[span.line - 1].rstrip("\r") if span.line <= len(lines) else ""
    for explain in (_declared_twice, _set_twice, _never_closed):
        problem = explain(lines, line, parser_message, span, path)
        if problem is not None:
            return problem
    return _Problem(parser_message[:1].lower() + parser_message[1:], span, _LINES)


def _declared_twice(lines: list[str], _line: str, parser_message: str, span: Span, path: str) -> _Problem | None:
    duplicate = _TWICE.search(parser_message)
    if duplicate is None:
        return None
    name = ".".join(part.strip().strip("'\"") for part in duplicate[1].split(",") if part.strip())
    places = [(number, match) for number, match in _headers(lines) if _plain(match[2]) == name]
    here = next(((number, match) for number, match in places if number == span.line), None)
    if here is not None:
        span = Span(span.line, here[1].start(1) + 1, span.line, here[1].end() + 1)
    related = _related("first declared here", path, [(number, match) for number, match in places if number < span.line])
    hint = "put the keys of both under one header, or give one of them another name"
    return _Problem(f"the table `[{name}]` is declared twice", span, hint, related)


def _set_twice(lines: list[str], line: str, parser_message: str, span: Span, path: str) -> _Problem | None:

    if parser_message != "Cannot overwrite a value":
        return None
    key_match = _KEY.match(line)
    if key_match is None:
        return None
    key = _plain(key_match[1])
    start = max((number for number, _ in _headers(lines) if number <= span.line), default=0)
    table = [(number, match) for number in range(start + 1, span.line) if (match := _KEY.match(lines[number - 1]))]
    earlier = [(number, match) for number, match in table if _plain(match[1]) == key]
    own = Span(span.line, key_match.start(1) + 1, span.line, key_match.end(1) + 1)
    hint = "keep one of the two" if earlier else "the key, or a table of its name, stands further up"
    return _Problem(f"the key `{key}` is set twice", own, hint, _related("first set here", path, earlier))


def _never_closed(lines: list[str], line: str, parser_message: str, span: Span, path: str) -> _Problem | None:
    if parser_message in ("Unterminated string", "Expected \"'''\"", 'Expected \'"""\''):
        return _Problem("a string of several lines is never closed", span, "add the closing quotes")
    if parser_message in ("Illegal character '\\n'", "Illegal character '\\r'"):
        opened = max(line.rfind('"'), line.rfind("'"))
        place = _span(span.line, opened) if opened >= 0 else span
        return _Problem("the string that begins here is never closed", place, "add the closing quote at its end")
    header = _HEADER.match(line)
    # a header after an open array is parsed as an array inside it
    if parser_message == "Invalid value" and header is not None and _alone(line, header):
        parser_message = "Unclosed array"
        span = _span(span.line, header.start(1))
    if parser_message not in ("Unclosed array", "Unclosed inline table"):
        return None
    begin = _last_open(lines, span, "[" if parser_message == "Unclosed array" else "{")
    what, closing = ("array", "]") if parser_message == "Unclosed array" else ("inline table", "}")
    at_end = not "".join([line[span.column - 1 :], *lines[span.line :]]).strip()
    if begin is None:
        return _Problem(f"an {what} is never closed", span, f"add `{closing}`")
    related = (Related(f"the {what} begins here", path, *msgspec.structs.astuple(begin)),)
    begins = not line[: span.column - 1].strip()
    if at_end or (begins and (_KEY.match(line) or _HEADER.match(line))):
        ends = (Related("and is still open here", path, *msgspec.structs.astuple(span)),)
        return _Problem(f"the {what} that begins here is never closed", begin, f"add `{closing}` where it ends", ends)
    return _Problem(f"expected `,` or `{closing}`", span, "put a comma between two elements", related)


def _headers(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for number, line in enumerate(lines, start=1):
        match = _HEADER.match(line)
        if match is not None:
            yield number, match


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("'\"") for part in key.split("."))


def _related(message: str, path: str, places: Sequence[tuple[int, re.Match[str]]]) -> tuple[Related, ...]:
    if not places:
        return ()
    number, match = places[0]
    group = 2 if match.re is _HEADER else 1
    return (Related(message, path, number, match.start(group) + 1, number, match.end(group) + 1),)


def _last_open(lines: list[str], span: Span, bracket: str) -> Span | None:
    # brackets in strings and comments do not count
    opened: list[Span] = []
    closing = {"[": "]", "{": "}"}[bracket]
    before = [number for number, match in _headers(lines[: span.line - 1]) if _alone(lines[number - 1], match)]
    start = max(before, default=0)
    for number in range(start, min(span.line, len(lines))):
        line = lines[number]
        last = span.column - 1 if number == span.line - 1 else len(line)
        bare = re.sub(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", lambda match: " " * len(match[0]), line)
        for column, char in enumerate(bare.partition("#")[0][:last]):
            if char == bracket:
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
    line = text.count("\n") + 1
    column = len(text) - text.rfind("\n")
    return Span(line, column, line, column + 1)
