"""Hints with the nearest names, and counts in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import eq


def count(number: int, what: str, many: str = "") -> str:
    """`1 variant`, `2 variants`; `many` is an irregular plural."""
    return f"{number} {what if number == 1 else many or f'{what}s'}"


def command_line(name: str, *options: str, place: object) -> str:
    """A command of kci about a place, as people type it; a test parses what is made here."""
    end = ["--"] if str(place).startswith("-") else []
    return shlex.join(["kci", name, *options, *end, str(place)])


def about(middle: int, least: int, most: int, what: str) -> str:
    """`3 minutes`, `about 5 minutes (3 to 8)`."""
    return (
        count(most, what) if least == most else f"about {count(middle, what)} ({least} to {most})"
    )


def first_of(names: Sequence[str], most: int) -> str:
    """The first names: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


_COMPARED = 500
"""The names that a word is compared with: thousands would take seconds."""


def suggestion(word: str, names: Sequence[str]) -> str:
    """`did you mean ...?` for a near name, else empty."""
    near = nearest_name(word, names)
    return f"did you mean `{near}`?" if near else ""


def nearest_name(word: str, names: Sequence[str]) -> str:
    """The known name that is near, or an empty text."""
    import difflib

    respelled = word.replace("_", "-").lower()[:100]
    candidates = [name for name in names if name.replace("_", "-") == respelled]
    candidates += [
        name for name in names if len(name) > 2 and sorted(name) == sorted(word[:100])
    ]  # letters swapped
    if not candidates and len(names) > _COMPARED:
        names = sorted(
            names, key=lambda name: sum(takewhile(bool, map(eq, name, word))), reverse=True
        )[:_COMPARED]
    near = candidates or difflib.get_close_matches(word[:100], names, n=1, cutoff=0.7)
    return near[0] if near else ""


def containing(word: str, names: Iterable[str]) -> str:
    """`did you mean ...?` with the names that contain a word or the longest part of a pattern; else
    empty.
    """
    part = max(word.casefold().replace("?", "*").split("*"), key=len)
    matches = [name for name in names if len(part) > 1 and part in name.casefold()]
    words = [f"`{name}`" for name in matches[:3]]
    return f"did you mean {'one of ' if len(words) > 1 else ''}{', '.join(words)}?" if words else ""


def one_of(names: Iterable[str]) -> str:
    """A hint that lists the allowed words."""
    return "one of: " + ", ".join(names)


def nearest(word: str, choices: Iterable[str]) -> str:
    """A suggestion for a near name, else the first 20 allowed words."""
    names = sorted(choices)
    return suggestion(word, names) or one_of(names[:20])
