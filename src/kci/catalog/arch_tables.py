"""The arch tables: default targets by CUDA version, and the ROCm targets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kci.config.model import decode_value
from kci.config.values import Version
from kci.files.dated_data import Dated, load_dated


class ArchTables(msgspec.Struct, frozen=True):
    """What a build targets by default; also what a component's own list is intersected with."""

    cuda: tuple[tuple[Version, tuple[str, ...]], ...]
    """Lists by the lowest toolkit version that they hold for, newest first."""
    rocm: tuple[str, ...]

    def cuda_default(self, toolkit: Version) -> tuple[str, ...]:
        """The default capabilities at a toolkit version."""
        return next(archs for minimum, archs in self.cuda if minimum <= toolkit)


class _CudaArchs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    min: Version
    archs: tuple[str, ...]


class _RocmArchs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    archs: tuple[str, ...]


class _ArchFile(Dated, frozen=True):
    cuda: tuple[_CudaArchs, ...]
    rocm: _RocmArchs


@cache
def arch_tables() -> ArchTables:
    """The tables that kci ships."""
    table = load_dated(Path(__file__).parent / "data" / "archs.toml", _ArchFile, dec_hook=decode_value)
    return ArchTables(tuple(sorted(((entry.min, entry.archs) for entry in table.cuda), reverse=True)), table.rocm.archs)
