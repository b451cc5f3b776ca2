"""The rows of the catalog with their places, and the archs of each toolkit."""

from __future__ import annotations

import datetime
import re
from functools import cache

from kci.config.document import Document, KeyPath, refuse
from kci.config.facts import BACKENDS
from kci.config.settings import RowTable
from kci.config.values import SYSTEMS, Backend, Version, quoted
from kci.matrix.catalog.expressions import Where
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped
from kci.utils.suggest import one_of

OLDEST = datetime.date.min.isoformat()


class ArchTables(Frozen):
    """The default archs, which a component's list is intersected with."""

    cuda: tuple[tuple[Version, tuple[str, ...]], ...]
    """Capabilities by the lowest toolkit version that they hold for, newest first."""
    names: dict[str, tuple[str, ...]]
    """By key of build.toml, for backends whose archs are names."""
    since: str | None = None
    """The day of the last change for CUDA."""
    exact: bool = False
    """True for exact intersection; see `kci.matrix.archs.intersect_capabilities`."""

    def cuda_default(self, toolkit: Version) -> tuple[str, ...]:
        for minimum, archs in self.cuda:
            if minimum <= toolkit:
                return archs
        raise LookupError(f"no list holds for CUDA {toolkit}")


class _CudaArchs(Frozen, forbid_unknown_fields=True):
    min: Version
    archs: tuple[str, ...]
    since: datetime.date = datetime.date.min


class _ArchFile(Dated):
    exact_since: datetime.date
    cuda: tuple[_CudaArchs, ...]
    names: dict[str, tuple[str, ...]]


@cache
def arch_tables(as_of: str | None = None) -> ArchTables:
    """The arch tables of a day such as `2026-08-20`, by default today's."""
    table = shipped("matrix/catalog/data/archs.toml", _ArchFile)()
    day = datetime.date.fromisoformat(as_of) if as_of else datetime.date.max
    entries = sorted(
        (entry for entry in table.cuda if entry.since <= day),
        key=lambda entry: (entry.min, entry.since),
    )
    newest = {entry.min: entry.archs for entry in entries}
    days = (table.exact_since, *(entry.since for entry in entries))
    since = max(date for date in days if date <= day)
    return ArchTables(
        tuple(sorted(newest.items(), reverse=True)),
        table.names,
        None if since == datetime.date.min else since.isoformat(),
        exact=table.exact_since <= day,
    )


_CAPABILITY = re.compile(r"([0-9]{1,2}\.[0-9])([af]?)(?:\+PTX)?", re.ASCII)


class _Toolkit(Frozen, forbid_unknown_fields=True):
    version: Version
    capabilities: frozenset[str]
    suffixed: frozenset[str]
    family: frozenset[str]


class _RenamedCapability(Frozen, forbid_unknown_fields=True):
    since: Version
    old: str
    new: str


class Toolkits(Dated):
    """The toolkits, oldest first, and renamed capabilities."""

    toolkit: tuple[_Toolkit, ...]
    renamed: tuple[_RenamedCapability, ...]

    def builds(self, capability: str, version: Version) -> bool:
        """True if a toolkit builds a capability, `9.0a` or `12.0+PTX`; an unknown toolkit counts as
        the next older.
        """
        older = [entry for entry in self.toolkit if entry.version <= version]
        return _builds(older[-1] if older else self.toolkit[0], capability)

    def newest_building(self, capability: str) -> Version | None:
        """The newest toolkit that builds it, if one ever did."""
        building = (entry for entry in reversed(self.toolkit) if _builds(entry, capability))
        return next((entry.version for entry in building), None)

    def new_name(self, capability: str, version: Version) -> str:
        """The new name of a capability that a toolkit renamed, with its suffix; else empty."""
        known = (
            entry
            for entry in self.renamed
            if capability.startswith(entry.old) and entry.since <= version
        )
        return next((entry.new + capability.removeprefix(entry.old) for entry in known), "")


def _builds(toolkit: _Toolkit, capability: str) -> bool:
    if (match := _CAPABILITY.fullmatch(capability)) is None:
        return False
    return (
        match[1] in {"": toolkit.capabilities, "a": toolkit.suffixed, "f": toolkit.family}[match[2]]
    )


toolkits = shipped("matrix/catalog/data/toolkits.toml", Toolkits)


class Row(Frozen):
    """One toolchain for one system."""

    torch: Version
    backend: Backend
    compute: Version | None
    system: str
    bundled: bool
    tvm_ffi: Version | None
    place: KeyPath
    document: Document
    tvm_ffi_unknown_since: str | None = None
    wheel: str | None = None
    """See `Variant.wheel`."""

    @property
    def key(self) -> tuple[Version, str, Version | None, str]:
        """The toolchain, in whatever edition."""
        return (self.torch, self.backend, self.compute, self.system)

    def line(self) -> tuple[str, int]:
        return self.document.place(self.place)


class Decision(Frozen):
    """The reason why a candidate is dropped."""

    rule: str
    reason: str
    cause: KeyPath = ()
    """The key of build.toml; empty for the catalog's row."""
    place: tuple[str, int] | None = None
    """File and line of another cause: an overlay or a filter, without a file for the command
    line."""


class Overlay(Frozen):
    """A parsed overlay with the places of its parts."""

    document: Document
    place: KeyPath
    edition: str | None
    replace: bool
    filters: tuple[tuple[Where, bool, KeyPath], ...]
    """Of `keep`, which is True, and `drop`."""
    rows: tuple[Row, ...]


class Catalog(Frozen):
    """An edition with its overlays: rows in table order, one per system."""

    name: str
    as_of: str
    source: str
    rows: tuple[Row, ...]
    neighbors: tuple[str, ...]
    """Editions with further rows for the compat tier."""
    document: Document
    overlays: tuple[Overlay, ...] = ()
    removed: tuple[tuple[Row, Decision], ...] = ()

    @property
    def archs(self) -> ArchTables:
        return arch_tables(self.as_of)


_RELEASE = re.compile(r"(\d+\.\d+)\.\d+(?:(?:a|b|rc|\.post|\.dev)\d+)*(?:\+[a-z0-9.]+)?", re.ASCII)
_INDEX = re.compile(r"(?:https?://[\w.-]+(?::\d+)?/)?[\w./-]+", re.ASCII)


def _is_exact(row: RowTable) -> bool:
    release = _RELEASE.fullmatch(row.release or f"{row.torch.minor_text}.0")
    same = release is not None and release[1] == row.torch.minor_text
    return same and (row.index is None or bool(row.release and _INDEX.fullmatch(row.index)))


def expand(document: Document, tables: tuple[RowTable, ...], place: KeyPath) -> tuple[Row, ...]:
    """Expand each `[[row]]` of the table at `place` to a row per compute version and system;
    FindingsError (KCI120).
    """
    rows: list[Row] = []
    for index, entry in enumerate(tables):
        at: KeyPath = (*place, "row", index)
        if bool(BACKENDS[entry.backend].compute_prefix) != bool(entry.compute):
            needed = "has no" if entry.compute else "needs"
            raise refuse(
                document.at_key(at, "KCI120", f"a {entry.backend} row {needed} `compute` versions")
            )
        if not _is_exact(entry):
            message = (
                f"`release` must be one of torch {entry.torch}, and `index` part of torch's "
                "indexes or an address"
            )
            hint = 'such as `release = "2.16.0rc1"` with `index = "test"`'
            raise refuse(document.at_key(at, "KCI120", message, hint))
        wheel = f"{entry.release}@{entry.index or ''}" if entry.release else None
        for position, system in enumerate(entry.systems):
            if system not in SYSTEMS:
                place, message = (*at, "systems", position), f"{quoted(system)} is not a system"
                raise refuse(document.at_value(place, "KCI120", message, one_of(SYSTEMS)))
        unknown_since = getattr(entry, "tvm_ffi_unknown_since", None)
        rows += [
            Row(
                entry.torch,
                entry.backend,
                compute,
                system,
                entry.bundled,
                entry.tvm_ffi,
                at,
                document,
                unknown_since,
                wheel,
            )
            for compute in entry.compute or (None,)
            for system in entry.systems
        ]
    return tuple(rows)
