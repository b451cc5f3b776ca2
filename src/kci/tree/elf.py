"""What a native library says about itself: an ELF file reduced to the facts that the rules are about."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from kci.tree.elf_image import (
    AUDIT,
    AUXILIARY,
    DEPAUDIT,
    FILTER,
    FLAGS,
    NEEDED,
    PT_GNU_PROPERTY,
    PT_GNU_STACK,
    PT_INTERP,
    PT_NOTE,
    RPATH,
    RUNPATH,
    TEXTREL,
    VERNEED,
    VERSYM,
    ElfError,
    Image,
    open_image,
)

__all__ = ["Elf", "ElfError", "Symbol", "read_elf", "read_sections"]

_MAX_STEPS = 65536
_MAX_NAMES = 512 * 1024 * 1024
_WEAK = 2
_DF_TEXTREL = 4
_PF_X = 1
_GNU_PROPERTY = 5
_X86_ISA_NEEDED = 0xC0008002
_NEEDED_SECTIONS = {6, 11}
"""Those of the dynamic table and of its symbols. A library without section headers can be loaded; its code, and its
code for GPUs, can only be found by them."""
_MACHINES = {62: "x86_64", 183: "aarch64"}


class Symbol(msgspec.Struct, frozen=True):
    """A dynamic symbol. `version` is what is asked of another library, empty if nothing is."""

    name: str
    version: str = ""
    weak: bool = False


class Elf(msgspec.Struct, frozen=True):
    """The facts about a shared library."""

    machine: str
    """As in variant names; ELF's number where those have none."""
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
    filters: tuple[str, ...] = ()
    """Libraries that it would have answer for its own symbols (DT_FILTER, DT_AUXILIARY)."""
    contradictions: tuple[str, ...] = ()
    """Where its section headers tell another story than what the system's loader reads."""
    program: bool = False
    """Whether it asks for a dynamic loader of its own, as programs do."""


def read_elf(path: Path) -> Elf:
    """Read a shared library. Raises ElfError: it is not one that can be checked."""
    with open_image(path) as image:
        return _read(image)


def read_sections(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The content of the sections that are there.

    Raises ElfError: the file is no ELF file, or a section reaches beyond its end.
    """
    with open_image(path) as image:
        return {item.name: image.part(item.offset, item.size) for item in image.sections if item.name in names}


def _read(image: Image) -> Elf:
    kinds = {item.kind for item in image.sections}
    if not kinds >= _NEEDED_SECTIONS:
        raise ElfError("it has no section headers of its dynamic tables, so its code cannot be checked")
    versions = _versions(image)
    symbols = _symbols(image, versions)
    tags = image.dynamic

    def named(*kinds: int) -> tuple[str, ...]:
        return tuple(image.name(value) for tag, value in tags if tag in kinds)

    segments = {item.kind: item.flags for item in image.segments}
    return Elf(
        machine=_MACHINES.get(image.machine, f"machine {image.machine}"),
        needed=named(NEEDED),
        search_path=named(RPATH, RUNPATH),
        undefined=tuple(symbol for symbol, defined in symbols if not defined),
        defined=frozenset(symbol.name for symbol, defined in symbols if defined),
        required_versions=frozenset(versions.values()),
        text_relocations=TEXTREL in image.tags or bool(image.tags.get(FLAGS, 0) & _DF_TEXTREL),
        # Where nothing is said about the stack, the system's loader makes it executable.
        executable_stack=bool(segments.get(PT_GNU_STACK, _PF_X) & _PF_X),
        cpu_level=max(_cpu_level(note) for note in [b"", *_notes(image)]),
        audit=named(AUDIT, DEPAUDIT),
        filters=named(AUXILIARY, FILTER),
        contradictions=tuple(image.contradictions()),
        program=PT_INTERP in segments,
    )


def _cpu_level(data: bytes) -> int:
    """The highest level of x86-64 in the property note."""
    bits = 0
    offset = 0
    while offset + 16 <= len(data):
        # Sizes of name and content, type; both are padded: the name to 4 bytes, the content to 8.
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


def _notes(image: Image) -> list[bytes]:
    return [
        image.at(item.address, item.in_memory) for item in image.segments if item.kind in (PT_NOTE, PT_GNU_PROPERTY)
    ]


def _versions(image: Image) -> dict[int, str]:
    """Version index to name, from the version requirements: a chain of libraries, each with a chain of versions."""
    found: dict[int, str] = {}
    library = image.tags.get(VERNEED)
    steps = 0
    while library is not None:
        # Version, number of entries, file name, distances to the first entry and to the next library.
        _, count, _, first, following = struct.unpack("<HHIII", image.at(library, 16))
        entry = library + first
        steps += 1
        for _ in range(count):
            # Hash, flags, index, name, distance to the next entry.
            _, _, index, name, step = struct.unpack("<IHHII", image.at(entry, 16))
            found[index & 0x7FFF] = image.name(name)
            steps += 1
            if steps > _MAX_STEPS:
                raise ElfError("it requires more versions than any library does")
            if not step:
                break
            entry += step
        library = library + following if following else None
    return found


def _symbols(image: Image, versions: dict[int, str]) -> list[tuple[Symbol, bool]]:
    """Every named symbol, and whether it is defined here."""
    raw = image.symbols
    table = image.tags.get(VERSYM)
    numbers = struct.unpack(f"<{len(raw)}H", image.at(table, 2 * len(raw))) if table is not None else (0,) * len(raw)
    found = []
    length = 0
    for (name, info, _, section, _, _), number in zip(raw, numbers, strict=True):
        if name:
            version = versions.get(number & 0x7FFF, "") if section == 0 else ""
            text = image.name(name)
            length += len(text)
            if length > _MAX_NAMES:
                raise ElfError("the names of its symbols are longer than those of any library")
            found.append((Symbol(text, version, info >> 4 == _WEAK), section != 0))
    return found
