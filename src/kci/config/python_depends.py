"""The curated names of `python-depends`: what the reference's loader knows, as data."""

from __future__ import annotations

import msgspec

from kci.utils.shipped import Dated, shipped


class PythonPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a curated name stands for: the package to install and the modules to import."""

    package: str
    imports: tuple[str, ...]


class DependsTable(Dated, frozen=True):
    """The curated names, general and by backend."""

    general: dict[str, PythonPackage]
    backends: dict[str, dict[str, PythonPackage]]

    def lookup(self, name: str, backend: str) -> PythonPackage | None:
        """What the loader finds for a name: the general table first, then the backend's own."""
        return self.general.get(name) or self.backends.get(backend, {}).get(name)


depends_table = shipped("config/data/python-depends.toml", DependsTable)
"""The curated names that the reference's loader knows."""
