"""The one reader of JSON: bounded in size and depth, and refused in one way whatever is wrong with it.

`tool.ruff` in pyproject.toml bans every other one.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from kci.utils.shipped import ONE_AT_A_TIME

MAX_BYTES = 16 * 1024 * 1024
"""More than any file that kci writes for itself."""

MAX_DEPTH = 128
"""How deep serde_json goes."""

_Shape = TypeVar("_Shape")


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        OSError: it cannot be read, or is a pipe or a device that could be read for ever; a shell's own pipe may be.
        ValueError: it is larger.
    """
    require_plain(path)
    with path.open("rb") as file:
        return _bounded(file, limit)


def _bounded(file: IO[bytes], limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit // 1024} KiB")
    return data


def require_plain(path: Path) -> None:
    """Refuse what a program could wait for without end. Raises OSError: it is not there, or is a pipe or a device."""
    mode = path.stat().st_mode
    if not (
        stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    ):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def open_plain(path: Path) -> IO[bytes]:
    """A file that somebody else has put there, to be read: a link may lead anywhere, and a pipe waits for ever.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no plain file.
    """
    wanted = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        handle = os.open(path, os.O_RDONLY | sum(wanted))
    except OSError as error:
        if path.is_symlink():
            raise ValueError("it is a link, not a plain file") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a plain file")
    return os.fdopen(handle, "rb")


def read_plain(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a file that somebody else has put there.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no plain file (see `open_plain`), or too large.
    """
    with open_plain(path) as file:
        return _bounded(file, limit)


def decode_json(data: bytes | str, shape: type[_Shape]) -> _Shape:
    """JSON of a shape that msgspec knows.

    Raises:
        ValueError: it is not JSON, not of that shape, or nested more deeply than any program can mean.
    """
    try:
        with ONE_AT_A_TIME:
            return msgspec.json.decode(data, type=shape)  # noqa: TID251
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, shape: type[_Shape], limit: int = MAX_BYTES) -> _Shape:
    """The JSON of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or see `decode_json`.
    """
    return decode_json(read_bounded(path, limit), shape)


def read_record(path: Path, shape: type[_Shape], limit: int = MAX_BYTES) -> _Shape:
    """The JSON of a file that somebody else has put there.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no plain file (see `open_plain`), too large, or see `decode_json`.
    """
    return decode_json(read_plain(path, limit), shape)


def require_schema(number: int, known: int) -> None:
    """Refuse a document of another schema number. Raises ValueError: it is not the known one."""
    if number != known:
        raise ValueError(f"schema {number} is not known; this kci reads schema {known}")


def strict_object(data: bytes) -> dict[str, Any]:
    """A JSON object as the loader's reader takes it: no mark, no NaN, no key twice, no half of a surrogate pair.

    Python's own reader is wider in each of these, so a file could pass here and be refused on every user's machine.

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
        raw = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)  # noqa: TID251
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
    # depth, and halves of a surrogate pair: what the parser's hooks do not see
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
