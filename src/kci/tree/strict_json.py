"""JSON as the loader's reader takes it: UTF-8 without a mark, no NaN, no lone surrogates, no key twice, not too deep.

Python's own reader is wider in each of these, so a file could pass here and be refused on every user's machine.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 128
"""How deep serde_json goes."""


def strict_object(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: what is wrong with the text.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise ValueError("it starts with a byte order mark")
    try:
        raw = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError("expected an object")
    _check(raw)
    return raw


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _check(root: object) -> None:
    """Refuse what text and numbers alone do not show: depth, and halves of a surrogate pair."""
    pending: list[tuple[object, int]] = [(root, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError("a text holds half of a surrogate pair")
        elif isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise ValueError("it is nested too deeply")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            pending += [(item, depth + 1) for item in inner]
