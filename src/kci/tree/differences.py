"""Which files of two builds of one variant differ, and how: the first thing that anybody asks about them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from kci.errors import KciError
from kci.tree.artifacts import Source
from kci.tree.digest import file_hashes
from kci.tree.unpack import unpack

_SHOWN = 5
_CHUNK = 1024 * 1024

SymbolsOf = Callable[[Path], frozenset[str]]
"""The names of a native library's symbols; empty for any other file."""


class FileDifference(msgspec.Struct, frozen=True):
    """One file that two builds do not share, or not with the same content. None stands for a file that is not there."""

    name: str
    sizes: tuple[int | None, int | None]
    digests: tuple[str, str]
    first: int | None = None
    """Where the contents part, in bytes from the beginning."""
    symbols: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The symbols that only one of the two has."""

    def __str__(self) -> str:
        if self.sizes[0] is None or self.sizes[1] is None:
            return f"{self.name} is in the {'second' if self.sizes[0] is None else 'first'} only"
        sizes = (
            f"{self.sizes[0]} bytes" if self.sizes[0] == self.sizes[1] else f"{self.sizes[0]} and {self.sizes[1]} bytes"
        )
        shown = (
            f"{self.name} ({sizes}, sha256 {self.digests[0][:12]} and {self.digests[1][:12]}, from byte {self.first} on"
        )
        for which, names in zip(("first", "second"), self.symbols, strict=True):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                shown += f"; only the {which} has {', '.join(names[:_SHOWN])}{more}"
        return f"{shown})"


def differences(one: Source, other: Source, symbols_of: SymbolsOf | None = None) -> list[FileDifference]:
    """Compare the files of two sources of one variant; empty if one of them cannot be unpacked."""
    with tempfile.TemporaryDirectory(prefix="kci-compare-") as place:
        try:
            first = _directory(one, Path(place) / "1")
            second = _directory(other, Path(place) / "2")
            return compare(first, second, symbols_of)
        except KciError:
            return []  # that it cannot be unpacked is another finding


def _directory(source: Source, place: Path) -> Path:
    return unpack(source.path, place).directory if source.artifact else source.path


def compare(one: Path, other: Path, symbols_of: SymbolsOf | None = None) -> list[FileDifference]:
    """The differences between two directories, by name.

    Raises:
        FindingsError: a file cannot be read.
    """
    first, second = file_hashes(one), file_hashes(other)
    found = []
    for name in sorted(first.keys() | second.keys()):
        left, right = first.get(name), second.get(name)
        if left == right:
            continue
        sizes = (_size(one / name) if left else None, _size(other / name) if right else None)
        where: int | None = None
        symbols: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        if left and right:
            where = _parting(one / name, other / name)
            symbols = _symbols(one / name, other / name, symbols_of)
        found.append(FileDifference(name, sizes, (left or "", right or ""), where, symbols))
    return found


def listed(found: list[FileDifference]) -> str:
    """A line for each of the first few."""
    more = [f"and {len(found) - _SHOWN} more files"] if len(found) > _SHOWN else []
    return "\n".join(f"  {line}" for line in [*map(str, found[:_SHOWN]), *more])


def _size(path: Path) -> int:
    return path.stat().st_size


def _parting(one: Path, other: Path) -> int:
    """The offset of the first byte that differs."""
    offset = 0
    with one.open("rb") as first, other.open("rb") as second:
        while True:
            left, right = first.read(_CHUNK), second.read(_CHUNK)
            if left != right or not left:
                pairs = zip(left, right, strict=False)
                within = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
                return offset + within
            offset += len(left)


def _symbols(one: Path, other: Path, symbols_of: SymbolsOf | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if symbols_of is None:
        return (), ()
    first, second = symbols_of(one), symbols_of(other)
    return tuple(sorted(first - second)), tuple(sorted(second - first))
