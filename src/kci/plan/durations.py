"""How long variants took in earlier runs.

The file is JSON: `{"schema": 1, "durations": [{"kernel": "relu", "variant": "torch213-…", "seconds": 61.5}]}`.
`kci merge --durations FILE` writes it from the legs that it merges; entries of other variants stay.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.diagnostics import finding
from kci.errors import FindingsError
from kci.matrix.names import parse_variant_name

SCHEMA = 1
MAX_BYTES = 16 * 1024 * 1024
_MOST_SECONDS = 5 * 24 * 3600
"""No job runs longer than GitHub lets a self-hosted runner work."""


class Duration(msgspec.Struct, frozen=True, order=True):
    """What building one variant took."""

    kernel: str
    variant: str
    seconds: Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]


class _File(msgspec.Struct, frozen=True):
    schema: int
    durations: tuple[Duration, ...]


class Durations:
    """Looks durations up: a variant's own, else the median of its kernel's variants for the same backend."""

    def __init__(self, entries: Iterable[Duration] = ()) -> None:
        exact: dict[tuple[str, str], list[float]] = {}
        alike: dict[tuple[str, str], list[float]] = {}
        for entry in entries:
            exact.setdefault((entry.kernel, entry.variant), []).append(entry.seconds)
            try:
                backend = parse_variant_name(entry.variant).backend
            except ValueError:
                continue
            alike.setdefault((entry.kernel, backend), []).append(entry.seconds)
        self._exact = {key: statistics.median(values) for key, values in exact.items()}
        self._alike = {key: statistics.median(values) for key, values in alike.items()}

    def minutes(self, kernel: str, variant: str, backend: str) -> tuple[int, bool] | None:
        """Whole minutes, rounded up, and whether they are the variant's own; None if nothing is known."""
        seconds = self._exact.get((kernel, variant))
        own = seconds is not None
        if seconds is None:
            seconds = self._alike.get((kernel, backend))
        return None if seconds is None else (max(1, -int(-seconds // 60)), own)


NO_DURATIONS = Durations()


def read_durations(path: Path) -> tuple[Duration, ...]:
    """Read a file of recorded durations.

    Raises:
        FindingsError: it cannot be read, or is none (KCI311).
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES // 1024 // 1024} MiB")
        read = msgspec.json.decode(raw, type=_File)
        if read.schema != SCHEMA:
            raise ValueError(f"schema {read.schema} is not known; this kci reads schema {SCHEMA}")
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror}", path) from error
    except (ValueError, RecursionError) as error:
        raise _refused(f"{path} is not a file of recorded durations: {error}", path) from error
    return read.durations


def encode(earlier: Iterable[Duration], latest: Iterable[Duration]) -> bytes:
    """The bytes of a file with the earlier durations and, in place of those of the same variant, the latest."""
    entries = {(entry.kernel, entry.variant): entry for entry in (*earlier, *latest)}
    text = msgspec.json.encode(_File(SCHEMA, tuple(sorted(entries.values()))))
    return msgspec.json.format(text, indent=2) + b"\n"


def _refused(message: str, path: Path) -> FindingsError:
    hint = "remove the file; the plan then uses kci's estimates"
    return FindingsError(message, hint=hint, diagnostics=[finding("KCI311", message, hint=hint, path=str(path))])
