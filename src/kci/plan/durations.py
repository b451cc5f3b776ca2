"""How long a variant takes: what earlier runs recorded.

The record is JSON: `{"schema": 1, "durations": [{"kernel": "relu", "variant": "torch213-…", "seconds": 61.5}]}`.
`kci merge --durations FILE` writes it from the legs that it merges; entries of other variants stay.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.errors import rule_error
from kci.files.bounded_json import read_json, require_schema

SCHEMA = 1
Seconds = Annotated[float, Meta(ge=0, le=5 * 24 * 3600)]
"""No job runs longer than GitHub lets a self-hosted runner work."""


class Duration(msgspec.Struct, frozen=True, order=True):
    """What building one variant took."""

    kernel: str
    variant: str
    seconds: Seconds


class _File(msgspec.Struct, frozen=True):
    schema: int
    durations: tuple[Duration, ...]


def recorded_minutes(entries: Iterable[Duration]) -> dict[tuple[str, str], int]:
    """What each variant took, by kernel and name: the median in whole minutes, rounded up."""
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        found.setdefault((entry.kernel, entry.variant), []).append(entry.seconds)
    return {key: max(1, math.ceil(statistics.median(seconds) / 60)) for key, seconds in found.items()}


def read_durations(path: Path) -> tuple[Duration, ...]:
    """Read a file of recorded durations; FindingsError (KCI311) if it cannot be read, or holds something else."""
    try:
        read = read_json(path, _File)
        require_schema(read.schema, SCHEMA)
        return read.durations
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not a file of recorded durations: {error}"
    raise rule_error("KCI311", message, hint="remove the file; the plan then uses kci's estimates", path=str(path))


def encode(earlier: Iterable[Duration], latest: Iterable[Duration]) -> bytes:
    """The bytes of a file with the earlier durations and, in place of those of the same variant, the latest."""
    entries = {(entry.kernel, entry.variant): entry for entry in (*earlier, *latest)}
    text = msgspec.json.encode(_File(SCHEMA, tuple(sorted(entries.values()))))
    return msgspec.json.format(text, indent=2) + b"\n"
