"""The arch tables: default targets as they were at a date, and what each CUDA toolkit can generate code for.

Annotations are values here, not text; see `kci.config.model`.
"""

import datetime
import re
from functools import cache

import msgspec

from kci.config.values import Version
from kci.utils.shipped import Dated, shipped

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
    """True if a component's list is intersected with the default one exactly; else loosely."""

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
    table = shipped("matrix/catalog/data/archs.toml", _ArchFile)()
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


_CAPABILITY = re.compile(r"([0-9]{1,2}\.[0-9])([af]?)(?:\+PTX)?", re.ASCII)


class _Toolkit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Version
    capabilities: frozenset[str]
    suffixed: frozenset[str]
    family: frozenset[str]


class _Renamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    since: Version
    old: str
    new: str


class Toolkits(Dated, frozen=True):
    """The toolkits that kci knows, oldest first, and the capabilities that changed their number."""

    toolkit: tuple[_Toolkit, ...]
    renamed: tuple[_Renamed, ...]

    def builds(self, capability: str, version: Version) -> bool:
        """True if a toolkit can generate code for a capability such as `9.0a` or `12.0+PTX`.

        A toolkit that is not in the data counts as the newest one that is not newer.
        """
        known = [entry for entry in self.toolkit if entry.version <= version]
        return _builds(known[-1] if known else self.toolkit[0], capability)

    def ever_built(self, capability: str) -> bool:
        """True if any toolkit can."""
        return any(_builds(entry, capability) for entry in self.toolkit)

    def newest_building(self, capability: str) -> Version:
        """The newest toolkit in the data that can. Raises IndexError: none can."""
        return [entry.version for entry in self.toolkit if _builds(entry, capability)][-1]

    def new_name(self, capability: str, version: Version) -> str:
        """What a capability is called at a toolkit that renamed it, else nothing; a suffix is kept."""
        for entry in self.renamed:
            if capability.startswith(entry.old) and entry.since <= version:
                return entry.new + capability[len(entry.old) :]
        return ""


def _builds(toolkit: _Toolkit, capability: str) -> bool:
    found = _CAPABILITY.fullmatch(capability)
    if found is None:
        return False
    base, suffix = found[1], found[2]
    return base in {"": toolkit.capabilities, "a": toolkit.suffixed, "f": toolkit.family}[suffix]


toolkits = shipped("matrix/catalog/data/toolkits.toml", Toolkits)
"""The data that kci ships."""
