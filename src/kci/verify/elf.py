"""What a native library says about itself: an ELF file reduced to the facts that the rules are about.

pyelftools finds sections and dynamic tags. The symbol and version tables are taken from their raw bytes: that is a few
lines, an order of magnitude faster on large libraries, and cannot be led in circles by a hostile file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

import msgspec

_MAX_NAME = 16 * 1024
_MAX_VERSIONS = 4096
_SYMBOL = struct.Struct("<IBBHQQ")
_WEAK = 2
_DF_TEXTREL = 4
_PF_X = 1
_GNU_PROPERTY = 5
_X86_ISA_NEEDED = 0xC0008002
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


class ElfError(Exception):
    """The file is no ELF library, or is cut short, or makes no sense."""


class Symbol(msgspec.Struct, frozen=True):
    """A dynamic symbol. `version` is what is asked of another library, empty if nothing is."""

    name: str
    version: str = ""
    weak: bool = False


class Elf(msgspec.Struct, frozen=True):
    """The facts about a shared library."""

    machine: str
    """As in variant names; the ELF constant where that has none."""
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    """RPATH and RUNPATH."""
    undefined: tuple[Symbol, ...]
    defined: frozenset[str]
    required_versions: frozenset[str]
    """Every version that is asked of another library, such as `GLIBC_2.28`."""
    text_relocations: bool = False
    executable_stack: bool = False
    cpu_level: int = 1
    """The level of x86-64 that the library says it needs: 2, 3 or 4 for x86-64-v2 and so on."""
    audit: tuple[str, ...] = ()
    """Libraries that it would have watch the dynamic loader."""
    program: bool = False
    """Whether it asks for a dynamic loader of its own, as programs do."""


def symbol_names(path: Path) -> frozenset[str]:
    """The names of a library's symbols, defined and asked for; empty for what is no library."""
    try:
        elf = read_elf(path)
    except ElfError:
        return frozenset()
    return elf.defined | {symbol.name for symbol in elf.undefined}


def read_elf(path: Path) -> Elf:
    """Read a shared library.

    Raises:
        ElfError: it is not one that can be checked.
    """
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            return _read(ELFFile(file))
    except ElfError:
        raise
    except Exception as error:
        # A file that is not what it seems makes pyelftools fail in a dozen ways, and none of them is a bug here.
        raise ElfError(f"it cannot be read as ELF: {type(error).__name__} {error}".rstrip()) from error


def read_sections(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The content of the sections that are there.

    Raises:
        ElfError: the file is no ELF file, or a section reaches beyond its end.
    """
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            found = {name: elf.get_section_by_name(name) for name in names}
            return {name: _content(section, file) for name, section in found.items() if section is not None}
    except ElfError:
        raise
    except Exception as error:
        raise ElfError(f"it cannot be read as ELF: {type(error).__name__} {error}".rstrip()) from error


def _content(section: Any, file: IO[bytes]) -> bytes:
    file.seek(0, 2)
    offset, size = section["sh_offset"], section["sh_size"]
    if offset + size > file.tell():
        raise ElfError(f"the section {section.name} reaches beyond the end of the file")
    file.seek(offset)
    return file.read(size)


def _read(elf: Any) -> Elf:
    if elf.elfclass != 64 or not elf.little_endian or elf["e_type"] != "ET_DYN":
        raise ElfError("it is not a 64-bit little-endian shared library")
    sections = {section.name: section for section in elf.iter_sections()}
    missing = [name for name in (".dynsym", ".dynstr", ".dynamic") if name not in sections]
    if missing:
        raise ElfError(f"it has no section {missing[0]}, so it cannot be checked")

    def content(name: str) -> bytes:
        return _content(sections[name], elf.stream) if name in sections else b""

    strings = content(".dynstr")
    versions = _versions(content(".gnu.version_r"), strings)
    symbols = _symbols(content(".dynsym"), strings, content(".gnu.version"), versions)
    tags = [(tag.entry.d_tag, tag.entry.d_val) for tag in sections[".dynamic"].iter_tags()]
    segments = {str(item["p_type"]): int(item["p_flags"]) for item in elf.iter_segments()}
    return Elf(
        machine=_MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        needed=tuple(_text(strings, value) for tag, value in tags if tag == "DT_NEEDED"),
        search_path=tuple(_text(strings, value) for tag, value in tags if tag in ("DT_RPATH", "DT_RUNPATH")),
        undefined=tuple(symbol for symbol, defined in symbols if not defined),
        defined=frozenset(symbol.name for symbol, defined in symbols if defined),
        required_versions=frozenset(versions.values()),
        text_relocations=any(tag == "DT_TEXTREL" or (tag == "DT_FLAGS" and value & _DF_TEXTREL) for tag, value in tags),
        executable_stack=_executable_stack(segments),
        cpu_level=_cpu_level(content(".note.gnu.property")),
        audit=tuple(_text(strings, value) for tag, value in tags if tag in ("DT_AUDIT", "DT_DEPAUDIT")),
        program="PT_INTERP" in segments,
    )


def _executable_stack(segments: dict[str, int]) -> bool:
    """Where nothing is said about the stack, the system's loader makes it executable."""
    return bool(segments.get("PT_GNU_STACK", _PF_X) & _PF_X)


def _cpu_level(data: bytes) -> int:
    """The highest level of x86-64 in the property note."""
    bits = 0
    offset = 0
    while offset + 16 <= len(data):
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


def _text(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset, offset + _MAX_NAME)
    if offset >= len(strings) or end < 0:
        raise ElfError("a name lies outside of the string table")
    return strings[offset:end].decode(errors="replace")


def _versions(data: bytes, strings: bytes) -> dict[int, str]:
    """Version index to name, from the version requirement section: libraries, each with a list of versions."""
    found: dict[int, str] = {}
    offset = 0
    while data:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, offset)
        entry = offset + first
        for _ in range(count):
            _, _, index, name, step = struct.unpack_from("<IHHII", data, entry)
            found[index & 0x7FFF] = _text(strings, name)
            if len(found) > _MAX_VERSIONS:
                raise ElfError("it requires more versions than any library does")
            if not step:
                break
            entry += step
        if not following:
            return found
        offset += following
    return found


def _symbols(data: bytes, strings: bytes, indices: bytes, versions: dict[int, str]) -> list[tuple[Symbol, bool]]:
    """Every named symbol, and whether it is defined here."""
    if len(data) % _SYMBOL.size:
        raise ElfError("the symbol table is cut short")
    if indices and len(indices) // 2 != len(data) // _SYMBOL.size:
        raise ElfError("the symbol and version tables differ in length")
    numbers = struct.unpack(f"<{len(indices) // 2}H", indices) if indices else ()
    found = []
    for position, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(data)):
        if not name:
            continue
        version = versions.get(numbers[position] & 0x7FFF, "") if numbers and section == 0 else ""
        found.append((Symbol(_text(strings, name), version, info >> 4 == _WEAK), section != 0))
    return found
