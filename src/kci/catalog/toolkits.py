"""What each CUDA toolkit can generate code for, as data; the lints about capabilities ask it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from kci.config.model import decode_value
from kci.config.values import Version
from kci.files.dated_data import Dated, load_dated

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
        """Whether a toolkit can generate code for a capability such as `9.0a` or `12.0+PTX`.

        A toolkit that is not in the data counts as the newest one that is not newer.
        """
        known = [entry for entry in self.toolkit if entry.version <= version]
        return _builds(known[-1] if known else self.toolkit[0], capability)

    def ever_built(self, capability: str) -> bool:
        """Whether any toolkit can."""
        return any(_builds(entry, capability) for entry in self.toolkit)

    def newest_building(self, capability: str) -> Version:
        """The newest toolkit in the data that can.

        Raises:
            IndexError: none can.
        """
        return [entry.version for entry in self.toolkit if _builds(entry, capability)][-1]

    def new_name(self, capability: str, version: Version) -> str:
        """What a capability is called at a toolkit that renamed it, else nothing; a suffix is kept."""
        for entry in self.renamed:
            if capability.startswith(entry.old) and entry.since <= version:
                return entry.new + capability[len(entry.old) :]
        return ""

    def old_name(self, capability: str) -> str:
        """What a capability was called before it was renamed, else nothing; a suffix is kept."""
        for entry in self.renamed:
            if capability.startswith(entry.new):
                return entry.old + capability[len(entry.new) :]
        return ""


def _builds(toolkit: _Toolkit, capability: str) -> bool:
    found = _CAPABILITY.fullmatch(capability)
    if found is None:
        return False
    base, suffix = found[1], found[2]
    return base in {"": toolkit.capabilities, "a": toolkit.suffixed, "f": toolkit.family}[suffix]


@cache
def toolkits() -> Toolkits:
    """The data that kci ships."""
    return load_dated(Path(__file__).parent / "data" / "toolkits.toml", Toolkits, dec_hook=decode_value)
