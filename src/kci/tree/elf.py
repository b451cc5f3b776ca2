"""Reads facts about ELF libraries with pyelftools, which is wrapped because files may be hostile."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import msgspec

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
_GNU_PROPERTY = 5
_X86_ISA_NEEDED = 0xC0008002
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_TABLES = ("SHT_DYNAMIC", "SHT_DYNSYM", "SHT_GNU_verneed", "SHT_GNU_versym")
# name, type and binding, visibility, section, value, size
_SYMBOL = struct.Struct("<IBBHQQ")


class ElfError(Exception):
    """The file is not an ELF library, truncated or inconsistent."""


class Symbol(msgspec.Struct, frozen=True):
    """A dynamic symbol; `version` is empty for an unversioned one."""

    name: str
    version: str = ""
    weak: bool = False


class Elf(msgspec.Struct, frozen=True):
    """The facts about a shared library."""

    machine: str
    """In the spelling of variant names, or ELF's name for other machines."""
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    """RPATH and RUNPATH."""
    undefined: tuple[Symbol, ...]
    defined: frozenset[str]
    required_versions: frozenset[str]
    """Versions such as `GLIBC_2.28` of other libraries."""
    text_relocations: bool = False
    executable_stack: bool = False
    cpu_level: int = 1
    """Required x86-64 level: 2 for x86-64-v2."""
    program: bool = False
    """True with a program interpreter, as executables have."""


class _BoundedFile:
    # limits the number of reads, so that parsing a hostile file ends
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._left = data, _MAX_READS

    def read(self, size: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ElfError("its tables have more entries than those of any library")
        return self._data.read(size)

    def seek(self, offset: int, whence: Literal[0, 1, 2] = 0) -> None:
        self._data.seek(offset, whence)

    def tell(self) -> int:
        return self._data.tell()


def read_elf(path: Path) -> Elf:
    """Read a shared library. Raises ElfError."""
    with _opened(path) as elf:
        return _read(elf, path.stat().st_size)


def read_sections(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read those of the named sections that exist. Raises ElfError."""
    with _opened(path) as elf:
        return {item.name: _content(elf, item) for item in elf.iter_sections() if item.name in names}


@contextmanager
def _opened(path: Path) -> Iterator[ELFFile]:
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ElfError("it is empty") from None
        with data:
            try:
                elf = ELFFile(cast("IO[bytes]", _BoundedFile(data)))
                if elf.elfclass != 64 or not elf.little_endian or elf["e_type"] != "ET_DYN":
                    raise ElfError("it is not a 64-bit little-endian shared library")
                yield elf
            except (ElfError, OSError):
                raise
            except Exception as error:  # pyelftools raises anything on malformed bytes
                raise ElfError(f"it is cut short, or makes no sense: {str(error)[:200]}") from error


def _read(elf: ELFFile, length: int) -> Elf:
    segments: list[Any] = list(elf.iter_segments())
    _check_loads([item for item in segments if item["p_type"] == "PT_LOAD"], length)
    sections = {item["sh_type"]: item for item in elf.iter_sections() if item["sh_type"] in _TABLES}
    if not sections.keys() >= {"SHT_DYNAMIC", "SHT_DYNSYM"}:
        raise ElfError("it has no section headers of its dynamic tables, so its code cannot be checked")
    tables = [item for item in segments if item["p_type"] == "PT_DYNAMIC"]
    if len(tables) != 1:
        raise ElfError(f"it has {len(tables)} dynamic tables, where a library has one")
    tags = list(tables[0].iter_tags())
    values = {tag.entry.d_tag: tag.entry.d_val for tag in tags}
    if "DT_STRTAB" not in values:
        raise ElfError("it has no string table")
    versions = _versions(sections.get("SHT_GNU_verneed"))
    symbols = _symbols(elf, sections, versions)
    flags = {item["p_type"]: item["p_flags"] for item in segments}
    notes = [item.data()[:_MAX_NOTES] for item in segments if item["p_type"] in ("PT_NOTE", "PT_GNU_PROPERTY")]
    return Elf(
        machine=_MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        search_path=tuple(
            tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath
            for tag in tags
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ),
        undefined=tuple(symbol for symbol, defined in symbols if not defined),
        defined=frozenset(symbol.name for symbol, defined in symbols if defined),
        required_versions=frozenset(versions.values()),
        text_relocations="DT_TEXTREL" in values or bool(values.get("DT_FLAGS", 0) & _DF_TEXTREL),
        # without the segment, the loader makes the stack executable
        executable_stack=bool(flags.get("PT_GNU_STACK", _PF_X) & _PF_X),
        cpu_level=max(_cpu_level(note) for note in [b"", *notes]),
        program="PT_INTERP" in flags,
    )


def _check_loads(segments: list[Any], length: int) -> None:
    end = 0
    for item in segments:
        offset, address = item["p_offset"], item["p_vaddr"]
        if item["p_filesz"] > item["p_memsz"] or offset + item["p_filesz"] > length:
            raise ElfError("it is cut short: a segment reaches beyond the end of the file")
        if (address - offset) % _PAGE or address // _PAGE * _PAGE < end:
            raise ElfError("its segments overlap, or do not lie on pages")
        end = -(-(address + item["p_memsz"]) // _PAGE) * _PAGE


def _content(elf: ELFFile, section: Section) -> bytes:
    # pyelftools' `data()` decompresses sections and pads missing bytes
    if section.compressed or section["sh_type"] == "SHT_NOBITS":
        raise ElfError(f"its section {section.name} has no content that can be loaded")
    elf.stream.seek(section["sh_offset"])
    data: bytes = elf.stream.read(section["sh_size"])
    if len(data) != section["sh_size"]:
        raise ElfError("it is cut short: a section reaches beyond the end of the file")
    return data


def _cpu_level(data: bytes) -> int:
    bits = 0
    offset = 0
    while offset + 16 <= len(data):
        # both parts are padded: the name to 4 bytes, the content to 8
        name_size, size, kind = struct.unpack_from("<III", data, offset)
        start = offset + 12 + (name_size + 3) // 4 * 4
        if kind == _GNU_PROPERTY and data[offset + 12 : offset + 16] == b"GNU\0":
            place = start
            while place + 8 <= min(start + size, len(data)):
                what, length = struct.unpack_from("<II", data, place)
                if what == _X86_ISA_NEEDED and length == 4 and place + 12 <= len(data):
                    bits |= struct.unpack_from("<I", data, place + 8)[0]
                place += 8 + (length + 7) // 8 * 8
        offset = start + (size + 7) // 8 * 8
    return max(bits & 0xF, 1).bit_length()


def _versions(section: Any) -> dict[int, str]:
    libraries = section.iter_versions() if section is not None else ()
    return {entry["vna_other"] & 0x7FFF: entry.name for _, entries in libraries for entry in entries}


def _symbols(elf: ELFFile, sections: dict[str, Any], versions: dict[int, str]) -> list[tuple[Symbol, bool]]:
    table = sections["SHT_DYNSYM"]
    if table["sh_size"] > _MAX_SYMBOLS * _SYMBOL.size:
        raise ElfError("it has more symbols than any library does")
    raw = list(_SYMBOL.iter_unpack(_content(elf, table)))
    strings = _content(elf, table.stringtable)
    numbers = (0,) * len(raw)
    if "SHT_GNU_versym" in sections:
        numbers = struct.unpack(f"<{len(raw)}H", _content(elf, sections["SHT_GNU_versym"]))
    symbols = []
    length = 0
    for (name, info, _, section, _, _), number in zip(raw, numbers, strict=True):
        if name:
            end = strings.find(b"\0", name, name + _MAX_NAME)
            length += end - name
            if end < 0 or length > _MAX_NAMES:
                raise ElfError("a name lies outside of the string table, or is longer than that of any symbol")
            text = strings[name:end].decode(errors="replace")
            version = versions.get(number & 0x7FFF, "") if section == 0 else ""
            symbols.append((Symbol(text, version, info >> 4 == _WEAK), section != 0))
    return symbols
