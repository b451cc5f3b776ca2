"""The arch tables: default targets by CUDA version, and the ROCm targets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kci.config.values import Version


class ArchTables(msgspec.Struct, frozen=True):
    """What a build targets by default; also what a component's own list is intersected with."""

    cuda: tuple[tuple[Version, tuple[str, ...]], ...]
    """Lists by the lowest toolkit version that they hold for, newest first."""
    rocm: tuple[str, ...]

    def cuda_default(self, toolkit: Version) -> tuple[str, ...]:
        """The default capabilities at a toolkit version."""
        return next(archs for minimum, archs in self.cuda if minimum <= toolkit)


@cache
def arch_tables() -> ArchTables:
    """The tables that kci ships."""
    import tomllib  # noqa: PLC0415

    data = tomllib.loads((Path(__file__).parent / "data" / "archs.toml").read_text(encoding="utf-8"))
    cuda = [(Version.parse(entry["min"]), tuple(entry["archs"])) for entry in data["cuda"]]
    return ArchTables(tuple(sorted(cuda, reverse=True)), tuple(data["rocm"]["archs"]))
