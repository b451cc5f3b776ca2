"""How long variants took in earlier runs.

The file is JSON: `{"schema": 1, "durations": [{"kernel": "relu", "variant": "torch213-…", "seconds": 61.5}]}`.
`kci merge --durations FILE` writes it from the legs that it merges; entries of other variants stay.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.diagnostics import finding
from kci.errors import FindingsError
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
        """Sort entries.

        Args:
            entries: what was recorded.
            estimates: what the work of variants, by kernel and name, takes in seconds by itself; with them, what was
                recorded of one variant or kernel says something about others.
        """
        self._entries = tuple(entries)
        estimates = estimates or {}
        exact: dict[tuple[str, str], list[float]] = {}
        alike: dict[tuple[str, str], list[float]] = {}
        of_kernel: dict[tuple[str, str], list[float]] = {}
        of_backend: dict[str, list[float]] = {}
        for entry in self._entries:
            exact.setdefault((entry.kernel, entry.variant), []).append(entry.seconds)
            try:
                backend = parse_variant_name(entry.variant).backend
            except ValueError:
                continue
            alike.setdefault((entry.kernel, backend), []).append(entry.seconds)
            if estimate := estimates.get((entry.kernel, entry.variant)):
                of_kernel.setdefault((entry.kernel, backend), []).append(entry.seconds / estimate)
        for (_, backend), ratios in of_kernel.items():
            of_backend.setdefault(backend, []).append(statistics.median(ratios))
        self._exact = {key: statistics.median(values) for key, values in exact.items()}
        self._alike = {key: statistics.median(values) for key, values in alike.items()}
        self._of_kernel = {key: statistics.median(values) for key, values in of_kernel.items()}
        # Every kernel counts once, however many of its variants were recorded.
        self._of_backend = {key: statistics.median(values) for key, values in of_backend.items()}

    def calibrated(self, estimates: Mapping[tuple[str, str], float]) -> Durations:
        """The same entries, compared with what the work of their variants takes by itself."""
        return Durations(self._entries, estimates)

    def minutes(
        self, kernel: str, variant: str, backend: str, estimate: float | None = None
    ) -> tuple[int, bool] | None:
        """Whole minutes, rounded up, and whether they are the variant's own; None if nothing is known.

        Args:
            kernel: the kernel's name.
            variant: the variant's name.
            backend: its backend.
            estimate: the seconds that its work takes by itself; None if nobody counted it.
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
    """Read a file of recorded durations.

    Raises:
        FindingsError: it cannot be read, or is none (KCI311).
    """
    try:
        read = read_json(path, _File)
        require_schema(read.schema, SCHEMA)
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror}", path) from error
    except ValueError as error:
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
