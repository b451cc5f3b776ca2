"""The comparisons that a filter expression is made of; `kci.catalog.where` parses them.

A subject is a mapping of field to text. A field that it lacks makes every comparison false, and `!=`, which is the
opposite of `==`, true.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence

from kci.config.values import Version

Subject = Mapping[str, str]
Test = Callable[[Subject], bool]
Part = Callable[[Sequence[Subject]], Test]
"""A part of an expression: given all that is chosen from (for newest and oldest), a test of one."""

VERSIONS = ("compute", "cuda", "rocm", "stable-abi", "torch", "tvm-ffi", "xpu")
"""The fields whose values compare as versions."""


class WhereError(ValueError):
    """An expression that cannot be read: what is wrong, where (a column, from 0), and what would help."""

    def __init__(self, message: str, column: int, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint


def glob(field: str, pattern: str) -> Part:
    """`field ~ pattern`."""
    return lambda _: lambda subject: field in subject and fnmatch.fnmatchcase(subject[field], pattern)


def equal(field: str, value: str, wanted: bool) -> Part:
    """`field == value`, or `!=` where `wanted` is false."""
    return lambda _: lambda subject: (subject.get(field) == value) is wanted


def version(field: str, operator: str, value: Version) -> Part:
    """A comparison of versions."""
    return lambda _: lambda subject: _holds(subject.get(field), operator, value)


def _holds(text: str | None, operator: str, wanted: Version) -> bool:
    if text is None:
        return operator == "!="
    found = Version.parse(text)
    below, same = found < wanted, found == wanted
    return {"==": same, "!=": not same, "<": below, "<=": below or same, ">": not below and not same, ">=": not below}[
        operator
    ]


def extreme(field: str, operator: str, which: str) -> Part:
    """A comparison with the newest or oldest; compute versions of different backends have no common order."""
    return lambda subjects: _extreme(field, operator, which, subjects)


def _extreme(field: str, operator: str, which: str, subjects: Sequence[Subject]) -> Test:
    best: dict[str, Version] = {}
    for subject in subjects:
        if field in subject:
            group, version = _group(field, subject), Version.parse(subject[field])
            best[group] = (max if which == "newest" else min)(best.get(group, version), version)
    return lambda subject: _holds(subject.get(field), operator, best.get(_group(field, subject), Version()))


def _group(field: str, subject: Subject) -> str:
    return subject.get("backend", "") if field == "compute" else ""


def joined(how: Callable[[list[bool]], bool], parts: list[Part]) -> Part:
    """`and` for `all`, `or` for `any`."""

    def over(subjects: Sequence[Subject]) -> Test:
        tests = [part(subjects) for part in parts]
        return lambda subject: how([test(subject) for test in tests])

    return parts[0] if len(parts) == 1 else over


def negated(part: Part) -> Part:
    """`not`."""

    def over(subjects: Sequence[Subject]) -> Test:
        test = part(subjects)
        return lambda subject: not test(subject)

    return over
