"""An ELF library as the system's loader sees it: program headers, what they map where, and the dynamic table.

The loader never looks at section headers, so nothing is taken from them that it reads elsewhere; `contradictions` says
where they tell another story.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_STACK, PT_GNU_PROPERTY = 1, 2, 3, 4, 0x6474E551, 0x6474E553
NEEDED, HASH, STRTAB, SYMTAB, RELA, RELASZ, INIT, RPATH, TEXTREL, JMPREL = 1, 4, 5, 6, 7, 8, 12, 15, 22, 23
PLTRELSZ, INIT_ARRAY, INIT_ARRAYSZ, RUNPATH, FLAGS = 2, 25, 27, 29, 30
DEPAUDIT, AUDIT, AUXILIARY, FILTER = 0x6FFFFEFB, 0x6FFFFEFC, 0x7FFFFFFD, 0x7FFFFFFF
GNU_HASH, VERSYM, VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE
IFUNC = 10
# Name, type and binding, visibility, section, value, size.
SYMBOL = struct.Struct("<IBBHQQ")

_REPEATED = (NEEDED, AUXILIARY, FILTER, AUDIT, DEPAUDIT)
"""Tags that may be there more than once. Of any other one glibc takes the last."""
_SHARED = 3
_PAGE = 4096
_MAX_SEGMENTS = 256
_MAX_NAME = 16 * 1024
_MAX_TABLE = 1024 * 1024
_MAX_TAGS = 4096
_MAX_SYMBOLS = 4 * 1024 * 1024
# Identification, file type, machine, version, entry; offsets of the program and section headers; flags; size of this
# header; size and number of program headers, then of section headers; the section with their names.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
# Type, flags, offset, virtual and physical address, size in the file, size in memory, alignment.
_SEGMENT = struct.Struct("<IIQQQQQQ")
# Name, type, flags, address, offset, size, linked section, information, alignment, size of an entry.
_SECTION = struct.Struct("<IIQQQQIIQQ")
# Place, type and symbol, addend.
_RELOCATION = struct.Struct("<QQq")
_TAG = struct.Struct("<QQ")
_WORD = struct.Struct("<I")
_ALLOC, _RUNS = 2, 4
_FUNCTION = 2
_ENDLESS = 1 << 64
_NOBITS, _DYNAMIC, _DYNSYM = 8, 6, 11
_TABLES = {_DYNSYM: SYMTAB, 5: HASH, 0x6FFFFFF6: GNU_HASH, 0x6FFFFFFE: VERNEED, 0x6FFFFFFF: VERSYM}
"""Kinds of sections, and the tag by which the loader finds the same table."""


class ElfError(Exception):
    """The file is no ELF library, or is cut short, or makes no sense."""


class Segment(NamedTuple):
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    in_file: int
    in_memory: int


class Section(NamedTuple):
    """A section header."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int

    @property
    def runs(self) -> bool:
        return bool(self.flags & _RUNS) and self.kind != _NOBITS


class Relocation(NamedTuple):
    """What the loader writes where."""

    place: int
    kind: int
    symbol: int
    addend: int


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """A library's image, for as long as it is looked at.

    Raises:
        ElfError: it is not one that can be checked, which may show only when a part of it is read.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ElfError("it is empty") from None
        with data:
            try:
                yield Image(data)
            except (struct.error, OverflowError, IndexError) as error:
                raise ElfError(f"it is cut short, or makes no sense: {error}") from error


class Image:
    """A library's bytes, and where the loader maps them."""

    def __init__(self, data: mmap.mmap) -> None:
        """Read the headers. Raises ElfError: no loader of 64-bit libraries would map it."""
        self._data = data
        head = _HEADER.unpack_from(data)
        self.machine: int = head[2]
        if head[0][:6] != b"\x7fELF\x02\x01" or head[1] != _SHARED:
            raise ElfError("it is not a 64-bit little-endian shared library")
        if head[9] != _SEGMENT.size or not 0 < head[10] <= _MAX_SEGMENTS:
            raise ElfError("it has no program headers that a loader takes")
        table = self.part(head[5], head[9] * head[10])
        self.segments = [Segment(*item[:4], *item[5:7]) for item in _SEGMENT.iter_unpack(table)]
        self._loads = [item for item in self.segments if item.kind == PT_LOAD]
        self._check_loads()
        self._section_table = head[6], head[11], head[12], head[13]

    def _check_loads(self) -> None:
        end = 0
        for item in self._loads:
            if item.in_file > item.in_memory or item.offset + item.in_file > len(self._data):
                raise ElfError("it is cut short: a segment reaches beyond the end of the file")
            if (item.address - item.offset) % _PAGE or item.address // _PAGE * _PAGE < end:
                raise ElfError("its segments overlap, or do not lie on pages")
            end = -(-(item.address + item.in_memory) // _PAGE) * _PAGE

    def part(self, offset: int, size: int) -> bytes:
        """Bytes of the file. Raises ElfError: they reach beyond its end."""
        if offset + size > len(self._data):
            raise ElfError("it is cut short")
        return self._data[offset : offset + size]

    def offset_of(self, address: int, size: int = 1) -> int:
        """Where in the file the bytes are that the loader maps to an address. Raises ElfError: none are."""
        for item in self._loads:
            if item.address <= address and address + size <= item.address + item.in_file:
                return item.offset + address - item.address
        raise ElfError(f"nothing is mapped to {address:#x}, where the loader looks")

    def at(self, address: int, size: int) -> bytes:
        return self.part(self.offset_of(address, size), size)

    def _table(self, address: int, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
        """The entries of a table from an address on, to the end of its segment: a caller knows where the table ends."""
        offset = self.offset_of(address)
        end = next(item.offset + item.in_file for item in self._loads if 0 <= offset - item.offset < item.in_file)
        size = min(end - offset, _MAX_TABLE) // layout.size * layout.size
        return layout.iter_unpack(self._data[offset : offset + size])

    @cached_property
    def dynamic(self) -> list[tuple[int, int]]:
        """The dynamic table as the loader reads it: to its end mark, whatever size a header tells."""
        tables = [item for item in self.segments if item.kind == PT_DYNAMIC]
        if len(tables) != 1:
            raise ElfError(f"it has {len(tables)} dynamic tables, where a library has one")
        found: list[tuple[int, int]] = []
        for tag, value in self._table(tables[0].address, _TAG):
            if not tag:
                return found
            found.append((tag, value))
            if len(found) > _MAX_TAGS:
                break
        raise ElfError("its dynamic table has no end")

    @cached_property
    def tags(self) -> dict[int, int]:
        return dict(self.dynamic)  # of a tag that is there twice the last counts, as for the loader

    def name(self, offset: int) -> str:
        return self.text(self._strings + offset)

    def text(self, start: int) -> str:
        end = self._data.find(b"\0", start, start + _MAX_NAME)
        if end < 0:
            raise ElfError("a name lies outside of the string table")
        return self._data[start:end].decode(errors="replace")

    @cached_property
    def _strings(self) -> int:
        if STRTAB not in self.tags:
            raise ElfError("it has no string table")
        return self.offset_of(self.tags[STRTAB])

    def relocations(self) -> Iterator[Relocation]:
        """What the loader relocates, of the tables that x86-64 and AArch64 have."""
        for start, size in ((RELA, RELASZ), (JMPREL, PLTRELSZ)):
            if length := self.tags.get(size, 0):
                table = self.at(self.tags.get(start, 0), length // _RELOCATION.size * _RELOCATION.size)
                for place, info, addend in _RELOCATION.iter_unpack(table):
                    yield Relocation(place, info & 0xFFFFFFFF, info >> 32, addend)

    @cached_property
    def symbols(self) -> list[tuple[int, int, int, int, int, int]]:
        """The dynamic symbols, raw: all that the loader finds by name or that something is relocated with."""
        if SYMTAB not in self.tags:
            return []
        used = 1 + max((item.symbol for item in self.relocations()), default=0)
        count = max(self._hashed(), used, self._listed())
        if count > _MAX_SYMBOLS:
            raise ElfError("it has more symbols than any library does")
        return list(SYMBOL.iter_unpack(self.at(self.tags[SYMTAB], count * SYMBOL.size)))

    def _hashed(self) -> int:
        """How many symbols the hash table knows of, those before it included."""
        if (address := self.tags.get(GNU_HASH)) is not None:
            buckets, first, words = (int.from_bytes(self.at(address + place, 4), "little") for place in (0, 4, 8))
            start = address + 16 + 8 * words
            last = max(struct.unpack(f"<{buckets}I", self.at(start, 4 * buckets)), default=0)
            if last < first:
                return first
            for (value,) in self._table(start + 4 * (buckets + last - first), _WORD):
                last += 1
                if value & 1:
                    return last
            raise ElfError("its hash table has no end")
        if (address := self.tags.get(HASH)) is not None:
            return int.from_bytes(self.at(address + 4, 4), "little")
        return 0

    def _listed(self) -> int:
        """How many symbols the section header tells of, if it is about the same table."""
        return max(
            (
                item.size // SYMBOL.size
                for item in self.sections
                if item.kind == _DYNSYM and item.offset == self.offset_of(self.tags[SYMTAB])
            ),
            default=0,
        )

    @cached_property
    def sections(self) -> list[Section]:
        start, size, count, names = self._section_table
        if not start or not count:
            return []
        if size != _SECTION.size:
            raise ElfError("its section headers have no usual size")
        raw = list(_SECTION.iter_unpack(self.part(start, size * count)))
        return [Section(self.text(raw[names][4] + item[0]), *item[1:7]) for item in raw]

    def contradictions(self) -> Iterator[str]:
        """Where the section headers, which tools read, and the program headers, which the loader reads, disagree."""
        (table,) = [item for item in self.segments if item.kind == PT_DYNAMIC]
        if self.offset_of(table.address) != table.offset:
            yield "the dynamic table is at another place of the file than its header tells"
        for tag in sorted({tag for tag, _ in self.dynamic if tag not in _REPEATED}):
            if len({value for found, value in self.dynamic if found == tag}) > 1:
                yield f"the dynamic table has the tag {tag:#x} with two values"
        for item in self.sections:
            address: int | None = table.address if item.kind == _DYNAMIC else item.address
            if item.kind in _TABLES:
                address = self.tags.get(_TABLES[item.kind])
            elif item.kind == _NOBITS or not item.flags & _ALLOC:
                continue
            if item.kind == _DYNSYM and self._strings != self.sections[item.link].offset:
                yield f"the loader reads other names than {self.sections[item.link].name} has"
            if not item.size:
                continue
            if address is None:
                yield f"the loader does not know of the table {item.name}"
            elif not self._same(address, item):
                yield f"the loader reads {item.name} from another place than its section header tells"
        yield from self._code_outside()

    def _same(self, address: int, section: Section) -> bool:
        try:
            return self.offset_of(address, section.size) == section.offset
        except ElfError:
            return False

    def _code_outside(self) -> Iterator[str]:
        """Functions that no section of code holds: a tool that reads sections never looks at them."""
        spans = sorted((item.address, item.address + item.size) for item in self.sections if item.runs)
        for name, info, _, section, value, _ in self.symbols:
            if section and info & 0xF in (_FUNCTION, IFUNC) and spans[bisect(spans, (value, _ENDLESS)) - 1][1] <= value:
                yield f"{self.name(name)} lies outside of all sections of code"
                return
