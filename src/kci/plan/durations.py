"""The recorded build times of variants, which replace estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from kci.plan.plan import Key
from kci.utils.bounded_json import encode_file, read_json, reading, require_schema
from kci.utils.frozen import Frozen

SCHEMA = 1
Seconds = Annotated[float, Meta(ge=0, le=5 * 24 * 3600)]
"""At most five days, in which GitHub ends a job."""


class Duration(Frozen, order=True):
    """The measured build time of a variant."""

    kernel: str
    variant: str
    seconds: Seconds


class _File(Frozen):
    schema: int
    durations: tuple[Duration, ...]


def recorded_minutes(entries: Iterable[Duration]) -> dict[Key, int]:
    """The median build minutes of each variant, rounded up."""
    by_variant: dict[Key, list[float]] = {}
    for entry in entries:
        by_variant.setdefault((entry.kernel, entry.variant), []).append(entry.seconds)
    return {
        key: max(1, math.ceil(statistics.median(seconds) / 60))
        for key, seconds in by_variant.items()
    }


def read_durations(path: Path) -> tuple[Duration, ...]:
    """Read a file of `Duration`s; FindingsError (KCI611) for any other file."""
    with reading(
        path, "a file of recorded durations", "remove the file; the plan then uses kci's estimates"
    ):
        read = read_json(path, _File)
        require_schema(read.schema, SCHEMA)
    return read.durations


def encode(earlier: Iterable[Duration], latest: Iterable[Duration]) -> bytes:
    """The bytes of a durations file in which the latest replace earlier ones."""
    entries = {(entry.kernel, entry.variant): entry for entry in (*earlier, *latest)}
    return encode_file(_File(SCHEMA, tuple(sorted(entries.values()))))
