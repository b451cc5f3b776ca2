"""Reads facts about ELF libraries with pyelftools, which is wrapped because files may be hostile.

Tables are found by their addresses, as a loader finds them: it ignores section headers, which may
say anything.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from kci.utils.frozen import Frozen

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Section

_MAX_READS = 200_000
_MAX_SYMBOLS = 4 * 1024 * 1024
_MAX_NAME = 16 * 1024
_MAX_NAMES = 512 * 1024 * 1024
_MAX_NOTES = 64 * 1024
_PAGE = 4096
_WEAK = 2
_DF_TEXTREL = 4
_PF_X = 1
_PROPERTIES, _ISA_NEEDED = ("GNU", "NT_GNU_PROPERTY_TYPE_0"), "GNU_PROPERTY_X86_ISA_1_NEEDED"
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_MAX_SEGMENTS = 256
_LOADED, _SEARCHED = ("DT_NEEDED", "DT_FILTER", "DT_AUXILIARY"), ("DT_RPATH", "DT_RUNPATH")
# name, type and binding, visibility, section, value, size
_SYMBOL = struct.Struct("<IBBHQQ")
# symbol and type, with the place before and the addend after it
_RELOCATION = struct.Struct("<8xQ8x")
_STATIC_TLS = (18, 1030)
"""R_X86_64_TPOFF64, R_AARCH64_TLS_TPREL."""


class ElfError(Exception):
    """The file is not an ELF library, truncated or inconsistent."""


class Symbol(Frozen):
    """A dynamic symbol; `version` is empty for an unversioned one."""

    name: str
    version: str
    weak: bool


class Elf(Frozen):
    """The facts about a shared library."""

    machine: str
    """In the spelling of variant names, or ELF's name for other machines."""
    needed: tuple[str, ...]
    """Libraries that are loaded with it."""
    version_files: frozenset[str]
    """Libraries of `required_versions`."""
    search_path: tuple[str, ...]
    """RPATH and RUNPATH."""
    undefined: tuple[Symbol, ...]
    defined: frozenset[str]
    required_versions: frozenset[str]
    """Versions such as `GLIBC_2.28` of other libraries."""
    text_relocations: bool
    executable_stack: bool
    cpu_level: int
    """Required x86-64 level: 2 for x86-64-v2."""
    static_tls: tuple[int, int]
    """Size and alignment of thread-local data, if it has to lie in the static block."""
    program: bool
    """True with a program interpreter, as executables have."""

    @property
    def unversioned(self) -> list[str]:
        """Undefined symbols without a version, but for weak ones, which may stay so."""
        return [item.name for item in self.undefined if not item.weak and not item.version]


class _BoundedFile(mmap.mmap):
    # limits the number of reads, so that parsing a hostile file ends
    left = _MAX_READS

    def read(self, size: int | None = None) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ElfError("its tables have more entries than those of any library")
        return super().read(size)


def read_elf(path: Path) -> Elf:
    """Read a shared library. Raises ElfError."""
    with _opened(path) as (elf, data):
        return _read(_Memory(elf, data))


def read_sections(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read those of the named sections that exist. Raises ElfError."""
    with _opened(path) as (elf, _):
        return {
            item.name: _content(elf, item) for item in elf.iter_sections() if item.name in names
        }


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ELFFile, mmap.mmap]]:
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        try:
            data = _BoundedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ElfError("it is empty") from None
        with data:
            try:
                elf = ELFFile(cast("IO[bytes]", data))
                if elf.elfclass != 64 or not elf.little_endian or elf["e_type"] != "ET_DYN":
                    raise ElfError("it is not a 64-bit little-endian shared library")
                yield elf, data
            except (ElfError, OSError):
                raise
            except Exception as error:  # pyelftools raises anything on malformed bytes
                raise ElfError(f"it is cut short, or makes no sense: {str(error)[:200]}") from error


class _Memory:
    # a file by the addresses at which a loader maps it
    def __init__(self, elf: ELFFile, data: mmap.mmap) -> None:
        self.elf, self.data = elf, data
        first, size, count = elf["e_phoff"], elf["e_phentsize"], elf["e_phnum"]
        if size != elf.structs.Elf_Phdr.sizeof() or count > _MAX_SEGMENTS:
            raise ElfError("its program headers are not those of a library")
        if elf["e_shoff"] + elf["e_shnum"] * elf["e_shentsize"] > len(data):
            raise ElfError("it is cut short: its section headers reach beyond the end of the file")
        # pyelftools' own segments ask section headers
        self.segments = [self.parse("Elf_Phdr", first + size * number) for number in range(count)]
        self.loads = [item for item in self.segments if item.p_type == "PT_LOAD"]
        end = 0
        for item in self.loads:
            if item.p_filesz > item.p_memsz or item.p_offset + item.p_filesz > len(data):
                raise ElfError("it is cut short: a segment reaches beyond the end of the file")
            if (item.p_vaddr - item.p_offset) % _PAGE or item.p_vaddr // _PAGE * _PAGE < end:
                raise ElfError("its segments overlap, or do not lie on pages")
            end = -(-(item.p_vaddr + item.p_memsz) // _PAGE) * _PAGE
        tables = [item for item in self.segments if item.p_type == "PT_DYNAMIC"]
        if len(tables) != 1:
            raise ElfError(f"it has {len(tables)} dynamic tables, where a library has one")
        self.tags: list[tuple[str, int]] = []
        while not self.tags or self.tags[-1][0] != "DT_NULL":
            entry = self.parse(
                "Elf_Dyn", self.place(tables[0].p_vaddr + len(self.tags) * 16, 16)[0]
            )
            self.tags.append((entry.d_tag, entry.d_val))
        self.values = dict(self.tags)
        if not self.values.keys() >= {"DT_STRTAB", "DT_SYMTAB"}:
            raise ElfError("it has no string table, or no symbols")
        self.strings = self.place(self.values["DT_STRTAB"])

    def parse(self, layout: str, offset: int) -> Any:
        from elftools.common.utils import struct_parse

        return struct_parse(getattr(self.elf.structs, layout), self.elf.stream, stream_pos=offset)

    def place(self, address: int, size: int = 1) -> tuple[int, int]:
        # the offset in the file, and where its segment ends
        for item in self.loads:
            if item.p_vaddr <= address <= address + size <= item.p_vaddr + item.p_filesz:
                return address - item.p_vaddr + item.p_offset, item.p_offset + item.p_filesz
        raise ElfError("it is cut short: one of its tables lies outside of what is loaded")

    def rows(self, layout: struct.Struct, address: int, count: int) -> Iterator[tuple[int, ...]]:
        if count > _MAX_SYMBOLS:
            raise ElfError("it has more symbols than any library does")
        offset, _ = self.place(address, count * layout.size)
        return layout.iter_unpack(self.data[offset : offset + count * layout.size])

    def chain(self, layout: str, address: int, step: str) -> Iterator[tuple[int, Any]]:
        # by the steps of the entries, not by their number
        while address:
            entry = self.parse(layout, self.place(address)[0])
            yield address, entry
            address = address + entry[step] if entry[step] else 0

    def name(self, offset: int) -> str:
        start, end = self.strings
        offset += start
        stop = self.data.find(b"\0", offset, min(end, offset + _MAX_NAME))
        if stop < 0:
            raise ElfError(
                "a name lies outside of the string table, or is longer than that of any symbol"
            )
        return self.data[offset:stop].decode(errors="replace")


def _read(memory: _Memory) -> Elf:
    values, segments = memory.values, memory.segments
    named = [
        (tag, memory.name(value)) for tag, value in memory.tags if tag in (*_LOADED, *_SEARCHED)
    ]
    versions = [
        (entry.vna_other & 0x7FFF, memory.name(entry.vna_name), memory.name(library.vn_file))
        for address, library in memory.chain("Elf_Verneed", values.get("DT_VERNEED", 0), "vn_next")
        for _, entry in memory.chain("Elf_Vernaux", address + library.vn_aux, "vna_next")
    ]
    relocations = [
        info
        for table, size in (("DT_RELA", "DT_RELASZ"), ("DT_JMPREL", "DT_PLTRELSZ"))
        if table in values
        for (info,) in memory.rows(
            _RELOCATION, values[table], values.get(size, 0) // _RELOCATION.size
        )
    ]
    symbols = _symbols(memory, relocations, {index: name for index, name, _ in versions})
    static = any(
        info & 0xFFFFFFFF in _STATIC_TLS and (info < 1 << 32 or symbols[info >> 32][1])
        for info in relocations
    )
    flags = {item.p_type: item.p_flags for item in segments}
    return Elf(
        machine=_MACHINES.get(machine := str(memory.elf["e_machine"]), machine),
        needed=tuple(name for tag, name in named if tag in _LOADED),
        version_files=frozenset(library for _, _, library in versions),
        search_path=tuple(name for tag, name in named if tag in _SEARCHED),
        undefined=tuple(symbol for symbol, defined in symbols if symbol.name and not defined),
        defined=frozenset(symbol.name for symbol, defined in symbols if symbol.name and defined),
        required_versions=frozenset(name for _, name, _ in versions),
        text_relocations="DT_TEXTREL" in values or bool(values.get("DT_FLAGS", 0) & _DF_TEXTREL),
        # without the segment, the loader makes the stack executable
        executable_stack=bool(flags.get("PT_GNU_STACK", _PF_X) & _PF_X),
        cpu_level=_cpu_level(memory),
        static_tls=max(
            [
                (item.p_memsz, item.p_align)
                for item in segments
                if static and item.p_type == "PT_TLS"
            ],
            default=(0, 0),
        ),
        program="PT_INTERP" in flags,
    )


def _content(elf: ELFFile, section: Section) -> bytes:
    # pyelftools' `data()` decompresses sections and pads missing bytes
    if section.compressed or section["sh_type"] == "SHT_NOBITS":
        raise ElfError(f"its section {section.name} has no content that can be loaded")
    elf.stream.seek(section["sh_offset"])
    data: bytes = elf.stream.read(section["sh_size"])
    if len(data) != section["sh_size"]:
        raise ElfError("it is cut short: a section reaches beyond the end of the file")
    return data


def _cpu_level(memory: _Memory) -> int:
    from elftools.elf.notes import iter_notes

    places = (
        (memory.place(item.p_vaddr, item.p_filesz)[0], min(item.p_filesz, _MAX_NOTES))
        for item in memory.segments
        if item.p_type in ("PT_NOTE", "PT_GNU_PROPERTY")
    )
    notes = (
        note
        for place in places
        for note in iter_notes(memory.elf, *place)
        if (note.n_name, note.n_type) == _PROPERTIES
    )
    needed: list[int] = [
        item.pr_data & 0xF for note in notes for item in note.n_desc if item.pr_type == _ISA_NEEDED
    ]
    return max([1, *needed]).bit_length()


def _symbols(
    memory: _Memory, relocations: list[int], versions: dict[int, str]
) -> list[tuple[Symbol, bool]]:
    from elftools.elf.hash import GNUHashTable

    values = memory.values
    # what the loader looks for, and what others find
    count = 1 + (max(relocations, default=0) >> 32)
    if "DT_HASH" in values:
        count = max(count, *next(memory.rows(struct.Struct("<4xI"), values["DT_HASH"], 1)))
    if "DT_GNU_HASH" in values:
        table = GNUHashTable(memory.elf, memory.place(values["DT_GNU_HASH"])[0], cast("Any", None))
        count = max(count, table.get_number_of_symbols())
    numbers: Iterable[tuple[int, ...]] = repeat((0,), count)
    if "DT_VERSYM" in values:
        numbers = memory.rows(struct.Struct("<H"), values["DT_VERSYM"], count)
    symbols = []
    length = 0
    rows = memory.rows(_SYMBOL, values["DT_SYMTAB"], count)
    for (name, info, _, section, _, _), (number,) in zip(rows, numbers, strict=True):
        text = memory.name(name)
        length += len(text)
        if length > _MAX_NAMES:
            raise ElfError("the names of its symbols are longer than those of any library")
        version = versions.get(number & 0x7FFF, "") if section == 0 else ""
        symbols.append((Symbol(text, version, info >> 4 == _WEAK), section != 0))
    return symbols
