"""Which Python a kernel has to run on, and what the standard library of each version holds. Data, not this Python's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kci.catalog.floors import floors
from kci.files.dated_data import Dated, load_dated

_DATA = Path(__file__).parent / "data"

PythonVersion = tuple[int, int]


class PythonTable(Dated, frozen=True):
    """`python-versions.toml`."""

    loader: str
    newest: str
    modules: tuple[str, ...]
    added: dict[str, tuple[str, ...]]
    removed: dict[str, tuple[str, ...]]
    newer_than_required: dict[str, tuple[str, ...]]


class PythonSpan(msgspec.Struct, frozen=True):
    """The versions in question, and when each module of a standard library was there."""

    required: PythonVersion
    """The oldest that the requirements name."""
    loader: PythonVersion
    """The oldest that can run the loader."""
    newest: PythonVersion
    first: dict[str, PythonVersion]
    """Every module of any of the versions, and the version it came with."""
    gone: dict[str, PythonVersion]
    """Modules that are no longer there, and the version that dropped them."""


@cache
def python_span() -> PythonSpan:
    """The data that ships with kci."""
    table = load_dated(_DATA / "python-versions.toml", PythonTable)
    required = _version(str(floors().python))
    first = dict.fromkeys(table.modules, required)
    for listed in (table.added, table.newer_than_required):
        first |= {name: _version(version) for version, names in listed.items() for name in names}
    gone = {name: _version(version) for version, names in table.removed.items() for name in names}
    return PythonSpan(required, _version(table.loader), _version(table.newest), first, gone)


def _version(text: str) -> PythonVersion:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def shown(version: PythonVersion) -> str:
    """`3.10`."""
    return f"{version[0]}.{version[1]}"
