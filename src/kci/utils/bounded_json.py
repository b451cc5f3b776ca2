"""The only reader of JSON, bounded in size and depth; ruff bans the others (`tool.ruff` in
pyproject.toml).
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from kci.errors import rule_error
from kci.utils.frozen import Frozen
from kci.utils.shipped import ONE_AT_A_TIME

MAX_BYTES = 16 * 1024 * 1024

MAX_DEPTH = 128
"""The limit of serde_json."""

_Shape = TypeVar("_Shape")


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read at most `limit` bytes; ValueError for more, OSError for a pipe or device other than the
    shell's.
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
    """OSError for a missing file, and for a pipe or device, which could block for ever."""
    mode = path.stat().st_mode
    if not (
        stat.S_ISREG(mode)
        or stat.S_ISDIR(mode)
        or str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    ):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def decode_json(data: bytes | str, shape: type[_Shape]) -> _Shape:
    """Decode JSON as a msgspec type; ValueError for anything else."""
    try:
        with ONE_AT_A_TIME:
            return msgspec.json.decode(data, type=shape)  # noqa: TID251
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, shape: type[_Shape], limit: int = MAX_BYTES) -> _Shape:
    """Decode a JSON file; OSError, or ValueError for its size or content."""
    return decode_json(read_bounded(path, limit), shape)


@contextmanager
def reading(path: Path, what: str, hint: str = "", rule: str = "KCI611") -> Iterator[None]:
    """Raise FindingsError for a file that cannot be read, or is not `what`."""
    try:
        yield
    except OSError as error:
        raise rule_error(rule, f"cannot read {path}: {error.strerror}", path, hint=hint) from error
    except ValueError as error:
        raise rule_error(rule, f"{path} is not {what}: {error}", path, hint=hint) from error


def read_record(path: Path, shape: type[_Shape], limit: int = MAX_BYTES) -> _Shape:
    """Decode an untrusted JSON file; raises as `read_json`, and ValueError for a link, pipe or
    device.
    """
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        handle = os.open(path, os.O_RDONLY | sum(flags))
    except OSError as error:
        if path.is_symlink():
            raise ValueError("it is a link, not a plain file") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a plain file")
    with os.fdopen(handle, "rb") as file:
        return decode_json(_bounded(file, limit), shape)


def require_schema(number: int, known: int) -> None:
    """ValueError if a document has another schema number."""
    if number != known:
        raise ValueError(f"schema {number} is not known; this kci reads schema {known}")


class VersionedRecord(Frozen, kw_only=True):
    """A record as a JSON file, which says the number of its schema."""

    schema: int = 1

    def __post_init__(self) -> None:
        require_schema(self.schema, 1)


def strict_object(data: bytes) -> dict[str, Any]:
    """A JSON object as the loader accepts it; ValueError also for a BOM, NaN, repeated key or lone
    surrogate.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise ValueError("it starts with a byte order mark")
    try:
        raw = json.loads(  # noqa: TID251
            text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite
        )
        too_deep = _depth(raw) >= MAX_DEPTH
    except RecursionError:
        too_deep = True
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if too_deep:
        raise ValueError("it is nested too deeply")
    if not isinstance(raw, dict):
        raise ValueError("expected an object")
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair") from None
    return raw


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for key, value in pairs:
        if key in items:
            raise ValueError(f"the key {key!r} is there twice")
        items[key] = value
    return items


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _depth(value: object) -> int:
    inner = [*value.values()] if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0) if isinstance(inner, list) else 0
