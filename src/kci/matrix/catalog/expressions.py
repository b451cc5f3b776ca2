"""Expressions that select rows or variants: `cuda>=13.0 and torch==newest`.

    expression = and-part { "or" and-part }
    and-part   = part { "and" part }
    part       = "not" part | "(" expression ")" | field operator value
    operator   = "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    value      = word | quoted text | "newest" | "oldest"

A subject maps fields to text. A missing field makes each comparison false but `!=`
(docs/filters.md).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import eq, ge, gt, le, lt, ne

from kci.config.facts import VERSIONED
from kci.config.values import Version, quoted
from kci.diagnostics import printable
from kci.errors import UsageError
from kci.utils.suggest import one_of, suggestion

_MAX_LENGTH, _MAX_DEPTH = 2000, 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<op>==|!=|<=|>=|<|>|~|=)|(?P<paren>[()])|(?P<word>[\w.*?+\[\]-]+|'[^']*'|"[^"]*")"""
    r"|(?P<end>\Z)|(?P<other>.))",
    re.ASCII | re.DOTALL,
)


Subject = Mapping[str, str]
Test = Callable[[Subject], bool]
Ends = Callable[[str, str, str], Version]
"""The newest or oldest version of a field, among the subjects of a group."""
Part = Callable[[Subject, Ends], bool]
"""A part of an expression: tests a subject."""

VERSIONS = ("compute", "stable-abi", "torch", "tvm-ffi", *VERSIONED)
"""The fields whose values compare as versions."""


class WhereError(ValueError):
    """An invalid expression, with its column (from 0) and a hint."""

    def __init__(self, message: str, column: int, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint


class Where:
    """A parsed expression."""

    def __init__(self, text: str, part: Part) -> None:
        self.text = text
        self._part = part

    def over(self, subjects: Sequence[Subject]) -> Test:
        """The test of one subject; `newest` and `oldest` refer to `subjects`."""

        @cache
        def end(field: str, which: str, group: str) -> Version:
            same = (item for item in subjects if field in item and _group(field, item) == group)
            return (max if which == "newest" else min)(
                map(Version.parse, (item[field] for item in same))
            )

        return lambda subject: self._part(subject, end)


def parse_where(text: str, fields: Mapping[str, Sequence[str]]) -> Where:
    """Parse an expression; `fields` have their allowed values, empty for any.

    WhereError if it is invalid.
    """
    if len(text) > _MAX_LENGTH:
        raise WhereError(f"the expression is longer than {_MAX_LENGTH} characters", _MAX_LENGTH)
    parser = _Parser(text, fields)
    part = parser.expression(0)
    if parser.kind != "end":
        hint = "join comparisons with `and` or `or`" if parser.kind == "word" else ""
        raise parser.error(f"nothing can follow here, got {parser.shown}", hint)
    return Where(text, part)


class _Parser:
    def __init__(self, text: str, fields: Mapping[str, Sequence[str]]) -> None:
        self.tokens, self.fields = _TOKEN.finditer(text), fields
        self.advance()

    def advance(self) -> None:
        token = next(self.tokens)
        self.kind = token.lastgroup
        self.got, self.start = token[token.lastindex or 0], token.start(token.lastindex or 0)
        if self.kind == "other":
            raise self.error(f"unexpected {quoted(self.got)}")

    def error(self, message: str, hint: str = "") -> WhereError:
        return WhereError(message, self.start, hint)

    @property
    def shown(self) -> str:
        return f"`{self.got}`" if self.got else "the end"

    def expression(self, depth: int) -> Part:
        alternatives = [[self.part(depth)]]
        while (word := self.got) in ("or", "and"):
            self.advance()
            alternatives += [[]] if word == "or" else []
            alternatives[-1].append(self.part(depth))
        return lambda subject, ends: any(
            all(part(subject, ends) for part in parts) for parts in alternatives
        )

    def part(self, depth: int) -> Part:
        if depth > _MAX_DEPTH:
            raise self.error("the expression is nested too deeply")
        if self.got == "not":
            self.advance()
            negated = self.part(depth + 1)
            return lambda subject, ends: not negated(subject, ends)
        if self.got != "(":
            return self.comparison()
        self.advance()
        inside = self.expression(depth + 1)
        if self.got != ")":
            raise self.error(f"expected `)`, got {self.shown}")
        self.advance()
        return inside

    def comparison(self) -> Part:
        field = self.got
        if self.kind != "word" or field not in self.fields:
            raise self.error(f"expected a field, got {self.shown}", _near(field, self.fields))
        self.advance()
        operator = self.got
        if self.kind != "op" or operator == "=":
            raise self.error(
                f"expected an operator after `{field}`, got {self.shown}",
                "one of: == != < <= > >= ~",
            )
        if field not in VERSIONS and operator not in ("==", "!=", "~"):
            raise self.error(
                f"`{field}` has no order, so `{operator}` cannot be used", "use == != or ~"
            )
        self.advance()
        if self.kind != "word" or self.got in ("and", "or", "not"):
            raise self.error(f"expected a value after `{operator}`, got {self.shown}")
        value = self.got.strip("'\"") if self.got[0] in "'\"" else self.got
        test = self.compare(field, operator, value)
        self.advance()
        return test

    def compare(self, field: str, operator: str, value: str) -> Part:
        if operator == "~":
            return lambda subject, _: (
                field in subject and fnmatch.fnmatchcase(subject[field], value)
            )
        if field not in VERSIONS:
            if self.fields[field] and value not in self.fields[field]:
                raise self.error(
                    f"{quoted(value)} is not a {field}", _near(value, self.fields[field])
                )
            return lambda subject, _: (subject.get(field) == value) is (operator == "==")
        if value in ("newest", "oldest"):
            return lambda subject, ends: _holds(
                subject.get(field), operator, lambda: ends(field, value, _group(field, subject))
            )
        try:
            version = Version.parse(value)
        except ValueError as error:
            hint = (
                "a glob is compared with ~"
                if set("*?[") & set(value)
                else "or `newest`, or `oldest`"
            )
            raise self.error(str(error), hint) from None
        return lambda subject, _: _holds(subject.get(field), operator, lambda: version)


def _near(word: str, candidates: Mapping[str, Sequence[str]] | Sequence[str]) -> str:
    return suggestion(word, list(candidates)) or one_of(candidates)


def expression(text: str, fields: Mapping[str, Sequence[str]]) -> Where:
    """Parse the expression of a command line; UsageError shows the place of an error."""
    try:
        return parse_where(text, fields)
    except WhereError as error:
        excerpt = f"\n  {printable(text)}\n  {' ' * error.column}^"
        raise UsageError(
            f"--where: {error.message}{excerpt if len(text) <= 200 else ''}", hint=error.hint
        ) from None


_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def _holds(text: str | None, operator: str, bound: Callable[[], Version]) -> bool:
    return (
        operator == "!=" if text is None else bool(_COMPARE[operator](Version.parse(text), bound()))
    )


def _group(field: str, subject: Subject) -> str:
    return subject.get("backend", "") if field == "compute" else ""
