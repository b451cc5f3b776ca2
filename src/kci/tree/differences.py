"""Which files of two builds of one variant differ, and how: the first thing that anybody asks about them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kci.tree.digest import file_hashes
from kci.tree.elf import symbol_names

_SHOWN = 5
_CHUNK = 1024 * 1024


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


def compare(one: Path, other: Path) -> list[FileDifference]:
    """The differences between two directories, by name."""
    first, second = file_hashes(one), file_hashes(other)
    found = []
    for name in sorted(first.keys() | second.keys()):
        left, right = first.get(name), second.get(name)
        if left == right:
            continue
        sizes = ((one / name).stat().st_size if left else None, (other / name).stat().st_size if right else None)
        where: int | None = None
        symbols: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        if left and right:
            where = _parting(one / name, other / name)
            mine, theirs = symbol_names(one / name), symbol_names(other / name)
            symbols = tuple(sorted(mine - theirs)), tuple(sorted(theirs - mine))
        found.append(FileDifference(name, sizes, (left or "", right or ""), where, symbols))
    return found


def listed(found: list[FileDifference]) -> str:
    """A line for each of the first few."""
    more = [f"and {len(found) - _SHOWN} more files"] if len(found) > _SHOWN else []
    return "\n".join(f"  {line}" for line in [*map(str, found[:_SHOWN]), *more])


def _parting(one: Path, other: Path) -> int:
    offset = 0
    with one.open("rb") as first, other.open("rb") as second:
        while True:
            left, right = first.read(_CHUNK), second.read(_CHUNK)
            if left != right or not left:
                pairs = zip(left, right, strict=False)
                within = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
                return offset + within
            offset += len(left)
