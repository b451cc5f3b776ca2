"""How long a variant takes: what earlier runs recorded.

The record is JSON: `{"schema": 1, "durations": [{"kernel": "relu", "variant": "torch213-…", "seconds": 61.5}]}`.
`kci merge --durations FILE` writes it from the legs that it merges; entries of other variants stay.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kci.errors import rule_error
from kci.files.bounded_json import read_json, require_schema
from kci.matrix.names import parse_variant_name

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


class Durations:
    """Looks durations up: what a variant took itself, else what its work would take by what other variants took."""

    def __init__(
        self, entries: Iterable[Duration] = (), estimates: Mapping[tuple[str, str], float] | None = None
    ) -> None:
        """With the seconds that the work of variants takes by itself, records of some say something about others."""
        self.entries = tuple(entries)
        estimates = estimates or {}
        exact, alike, of_kernel, of_backend = (defaultdict[Any, list[float]](list) for _ in range(4))
        for entry in self.entries:
            exact[entry.kernel, entry.variant].append(entry.seconds)
            try:
                backend = parse_variant_name(entry.variant).backend
            except ValueError:
                continue
            alike[entry.kernel, backend].append(entry.seconds)
            if estimate := estimates.get((entry.kernel, entry.variant)):
                of_kernel[entry.kernel, backend].append(entry.seconds / estimate)
        for (_, backend), ratios in of_kernel.items():
            of_backend[backend].append(statistics.median(ratios))  # every kernel counts once
        self._exact, self._alike, self._of_kernel, self._of_backend = (
            {key: statistics.median(values) for key, values in found.items()}
            for found in (exact, alike, of_kernel, of_backend)
        )

    def knows(self, kernel: str, backend: str) -> bool:
        """Whether a variant of a kernel for a backend was recorded."""
        return (kernel, backend) in self._alike

    def minutes(
        self, kernel: str, variant: str, backend: str, estimate: float | None = None
    ) -> tuple[int, bool] | None:
        """Whole minutes, rounded up, and whether they are the variant's own; None if nothing is known.

        `estimate` is the seconds that its work takes by itself; None if it is unknown.
        """
        own = (kernel, variant) in self._exact
        seconds = self._exact.get((kernel, variant))
        if seconds is None and estimate is not None:
            factor = self._of_kernel.get((kernel, backend)) or self._of_backend.get(backend)
            seconds = None if factor is None else factor * estimate
        if seconds is None:
            seconds = self._alike.get((kernel, backend), estimate)
        return None if seconds is None else (max(1, -int(-seconds // 60)), own)


NO_DURATIONS = Durations()


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
