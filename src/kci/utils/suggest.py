"""Hints with the nearest names, and counts in words."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence


def count(number: int, what: str, many: str = "") -> str:
    """`1 variant`, `2 variants`; `many` is an irregular plural."""
    return f"{number} {what if number == 1 else many or f'{what}s'}"


def between(least: int, most: int, what: str) -> str:
    """`3 minutes`, `3 to 8 minutes`."""
    return count(most, what) if least == most else f"{least} to {count(most, what)}"


def first_of(names: Sequence[str], most: int) -> str:
    """The first names: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


_COMPARED = 500
"""The names that a word is compared with: thousands would take seconds."""


def suggestion(word: str, known: Sequence[str]) -> str:
    """`did you mean ...?` for a near name, else empty."""
    near = nearest_name(word, known)
    return f"did you mean `{near}`?" if near else ""


def nearest_name(word: str, known: Sequence[str]) -> str:
    """The known name that is near, or an empty text."""
    import difflib

    respelled = word.replace("_", "-").lower()[:100]
    candidates = [name for name in known if name.replace("_", "-") == respelled]
    candidates += [name for name in known if len(name) > 2 and sorted(name) == sorted(word[:100])]  # letters swapped
    if not candidates and len(known) > _COMPARED:
        known = sorted(known, key=lambda name: _alike(name, word), reverse=True)[:_COMPARED]
    near = candidates or difflib.get_close_matches(word[:100], known, n=1, cutoff=0.7)
    return near[0] if near else ""


def containing(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` with the names that contain a word or the longest part of a pattern; else empty."""
    part = max(word.casefold().replace("?", "*").split("*"), key=len)
    matches = [name for name in known if len(part) > 1 and part in name.casefold()]
    words = [f"`{name}`" for name in matches[:3]]
    return f"did you mean {'one of ' if len(words) > 1 else ''}{', '.join(words)}?" if words else ""


def one_of(known: Iterable[str]) -> str:
    """A hint that lists the allowed words."""
    return "one of: " + ", ".join(known)


def nearest(word: str, known: Iterable[str]) -> str:
    """A suggestion for a near name, else the first 20 allowed words."""
    names = sorted(known)
    return suggestion(word, names) or one_of(names[:20])


def _alike(name: str, word: str) -> int:
    return sum(itertools.takewhile(bool, map(operator.eq, name, word)))
