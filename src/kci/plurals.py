"""How many of something, in words."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, what: str, many: str = "") -> str:
    """`1 variant`, `2 variants`. `many` is the plural of `what`, unless it only adds an s."""
    return f"{number} {what if number == 1 else many or f'{what}s'}"


def between(least: int, most: int, what: str) -> str:
    """`3 minutes`, `3 to 8 minutes`."""
    return count(most, what) if least == most else f"{least} to {count(most, what)}"


def first_of(names: Sequence[str], most: int) -> str:
    """The first names: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
