"""Reading JSON from outside: bounded in size, and refused in one way whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from kci.files.typed_data import json_to_type

MAX_BYTES = 16 * 1024 * 1024
"""More than any file that kci writes for itself."""

_Shape = TypeVar("_Shape")


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit // 1024} KiB")
    return data


def decode_json(data: bytes | str, shape: type[_Shape]) -> _Shape:
    """JSON of a shape.

    Args:
        data: the text.
        shape: what msgspec is to make of it.

    Raises:
        ValueError: it is not JSON, not of that shape, or nested more deeply than any program can mean.
    """
    try:
        return json_to_type(data, shape)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, shape: type[_Shape], limit: int = MAX_BYTES) -> _Shape:
    """The JSON of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or see `decode_json`.
    """
    return decode_json(read_bounded(path, limit), shape)


def require_schema(number: int, known: int) -> None:
    """Refuse a document of another schema number.

    Raises:
        ValueError: it is not the known one.
    """
    if number != known:
        raise ValueError(f"schema {number} is not known; this kci reads schema {known}")
