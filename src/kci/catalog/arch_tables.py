"""The arch tables: default targets by CUDA version, and the ROCm targets, as they were at a date.

Annotations are values here, not text; see `kci.config.model`.
"""

import datetime
from functools import cache
from pathlib import Path

import msgspec

from kci.config.model import decode_value
from kci.config.values import Version
from kci.files.dated_data import Dated, load_dated

OLDEST = datetime.date.min.isoformat()
"""A day before every change that kci knows of."""


class ArchTables(msgspec.Struct, frozen=True):
    """What a build targets by default; also what a component's own list is intersected with."""

    cuda: tuple[tuple[Version, tuple[str, ...]], ...]
    """Lists by the lowest toolkit version that they hold for, newest first."""
    rocm: tuple[str, ...]
    since: str | None = None
    """The day on which a list of CUDA, or the way it is used, changed last, as far as kci knows."""
    exact: bool = False
    """Whether a component's list is intersected with the default one exactly; else loosely."""

    def cuda_default(self, toolkit: Version) -> tuple[str, ...]:
        """The default capabilities at a toolkit version."""
        for minimum, archs in self.cuda:  # asked for each component of each variant
            if minimum <= toolkit:
                return archs
        raise LookupError(f"no list holds for CUDA {toolkit}")


class _CudaArchs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    min: Version
    archs: tuple[str, ...]
    since: datetime.date = datetime.date.min


class _RocmArchs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    archs: tuple[str, ...]


class _ArchFile(Dated, frozen=True):
    exact_since: datetime.date
    cuda: tuple[_CudaArchs, ...]
    rocm: _RocmArchs


@cache
def arch_tables(as_of: str | None = None) -> ArchTables:
    """The tables that kci ships.

    Args:
        as_of: a day, as an edition of the catalog has it; the tables are those of that day. By default today's.
    """
    table = load_dated(Path(__file__).parent / "data" / "archs.toml", _ArchFile, dec_hook=decode_value)
    day = datetime.date.fromisoformat(as_of) if as_of else datetime.date.max
    known = sorted((entry for entry in table.cuda if entry.since <= day), key=lambda entry: (entry.min, entry.since))
    newest = {entry.min: entry.archs for entry in known}
    changes = [*(entry.since for entry in known), *([table.exact_since] if table.exact_since <= day else [])]
    since = max(changes)
    return ArchTables(
        tuple(sorted(newest.items(), reverse=True)),
        table.rocm.archs,
        None if since == datetime.date.min else since.isoformat(),
        exact=table.exact_since <= day,
    )
