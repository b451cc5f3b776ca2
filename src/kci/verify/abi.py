"""The tables behind the native rules: version caps, allowed libraries and symbols, Python's and torch's ABI."""

from __future__ import annotations

import fnmatch
import re
from functools import cache
from pathlib import Path

import msgspec

from kci.files.dated_data import Dated, load_dated

_DATA = Path(__file__).parent / "data"


class MacosTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[macos]` of `native.toml`."""

    needed: tuple[str, ...]
    newest: dict[str, str]


class WindowsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[windows]` of `native.toml`."""

    needed: tuple[str, ...]


class NativeTable(Dated, frozen=True):
    """`native.toml`."""

    caps: dict[str, str]
    named: dict[str, tuple[str, ...]]
    needed: dict[str, tuple[str, ...]]
    symbols: dict[str, tuple[str, ...]]
    namespaces: dict[str, tuple[str, ...]]
    macos: MacosTable
    windows: WindowsTable


class AddedTable(Dated, frozen=True):
    """A table of names by the version that added them."""

    added: dict[str, tuple[str, ...]]

    def by_name(self) -> dict[str, tuple[int, ...]]:
        """Name to version."""
        return {name: numbers(version) for version, names in self.added.items() for name in names}


@cache
def native_table() -> NativeTable:
    """What a library on Linux may rely on."""
    return load_dated(_DATA / "native.toml", NativeTable)


@cache
def python_symbols() -> dict[str, tuple[int, ...]]:
    """The symbols of CPython's stable ABI, by the version that added them."""
    return load_dated(_DATA / "python-stable-abi.toml", AddedTable).by_name()


@cache
def torch_shims() -> dict[str, tuple[int, ...]]:
    """Torch's C shim functions newer than its first stable ABI, by the version that added them."""
    return load_dated(_DATA / "torch-shims.toml", AddedTable).by_name()


def numbers(version: str) -> tuple[int, ...]:
    """`2.10` is (2, 10)."""
    return tuple(int(part) for part in version.split("."))


_VERSION = re.compile(r"([A-Z][A-Z0-9]*)_(\S+)")


def above_cap(version: str, cpu: str) -> str | None:
    """The cap that a required symbol version passes, for example `GLIBC_2.28`; None if it is fine.

    Compared by size and not by membership in a list, so that versions nobody thought of are judged as well.
    """
    table = native_table()
    found = _VERSION.fullmatch(version)
    if found is None or found[1] not in table.caps or version in table.named.get(cpu, ()):
        return None
    cap = f"{found[1]}_{table.caps[found[1]]}"
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", found[2]):
        return cap
    return cap if numbers(found[2]) > numbers(table.caps[found[1]]) else None


def library_allowed(name: str, groups: tuple[str, ...], major: str) -> bool:
    """Whether DT_NEEDED may name a library.

    Args:
        name: the library.
        groups: the groups of `native.toml` that the variant may use.
        major: the major version of the variant's compute toolkit, empty if it has none.
    """
    patterns = (pattern for group in groups for pattern in native_table().needed.get(group, ()))
    return any(fnmatch.fnmatchcase(name, pattern.replace("{major}", major)) for pattern in patterns)


def symbol_explained(name: str, groups: tuple[str, ...]) -> bool:
    """Whether an unversioned open symbol is one that the libraries of these groups give."""
    table = native_table()
    namespace = cpp_namespace(name)
    if namespace is not None and any(namespace in table.namespaces.get(group, ()) for group in groups):
        return True
    patterns = (pattern for group in groups for pattern in table.symbols.get(group, ()))
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


_SPECIAL = re.compile(r"T[VTIS]|GV|GR|Th?n?[0-9]+_|Tv[n0-9_]+_|TC|Z")
_NESTED = re.compile(r"N[rVK]*[RO]?")


def cpp_scope(name: str) -> tuple[str, ...] | None:
    """The leading namespaces of a mangled C++ name: `_ZN2at6Tensor4dataEv` is (`at`, `Tensor`, `data`).

    Empty for names in no namespace of their own (operators, functions at the top, abbreviations such as `std::`), None
    for a name that is not C++. Only the name's own scope counts, not the types of its arguments: that is how a
    `std::` function that happens to live in one of torch's libraries is told from one of torch.
    """
    if not name.startswith("_Z"):
        return None
    rest = name[2:]
    while found := _SPECIAL.match(rest):
        rest = rest[found.end() :]
    nested = _NESTED.match(rest)
    if nested is None:
        return ()
    rest = rest[nested.end() :]
    parts = []
    while length := re.match("[1-9][0-9]{0,3}", rest):
        end = length.end() + int(length[0])
        parts.append(rest[length.end() : end])
        rest = rest[end:]
    return tuple(parts)


def old_string(name: str) -> bool:
    """Whether a mangled C++ name speaks of `std::string` as it was before the C++11 ABI."""
    kept = []
    rest = name
    while found := re.search("[1-9][0-9]{0,3}", rest):
        kept.append(rest[: found.start()])
        rest = rest[found.end() + int(found[0]) :]
    return name.startswith("_Z") and any("Ss" in part for part in [*kept, rest])


def cpp_namespace(name: str) -> str | None:
    """The outermost namespace of a mangled C++ name, empty if it has none, None for a C name."""
    scope = cpp_scope(name)
    return None if scope is None else (scope[0] if scope else "")
