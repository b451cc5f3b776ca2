"""Libraries of macOS and Windows: what their headers say, and whether users can rely on it; not their symbols."""

from __future__ import annotations

import fnmatch
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.matrix.names import VariantName
from kci.verify.abi import native_table, numbers
from kci.verify.subject import BinaryKind

_MAX_BYTES = 1024 * 1024
_MAGIC_64 = 0xFEEDFACF
_UNIVERSAL = 0xCAFEBABE
_MACHO_MACHINES = {0x0100000C: "aarch64", 0x01000007: "x86_64"}
_BUILD_VERSION = 0x32
_VERSION_MIN_MACOS = 0x24
# LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB and LC_REEXPORT_DYLIB; the high bit says that dyld has to understand the command.
_LOAD_DYLIB = (0x0C, 0x18 | 0x80000000, 0x1F | 0x80000000)
_RPATH = 0x1C | 0x80000000
_MAX_COMMANDS = 4096

_PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
_PE32_PLUS = 0x20B
_DLL = 0x2000
_IMPORTS = 1
_MAX_SECTIONS = 96
_MAX_IMPORTS = 1024
# Name, virtual size and address, size and offset in the file, relocations, line numbers, counts of both, flags.
_SECTION = struct.Struct("<8s6I2HI")


class ForeignError(Exception):
    """The file is cut short or makes no sense."""


class ForeignLibrary(msgspec.Struct, frozen=True):
    """The facts about a library of macOS or Windows, or about one part of a universal one."""

    machine: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...] = ()
    minimum_os: tuple[int, int] | None = None
    program: bool = False


def read_foreign(path: Path, kind: BinaryKind) -> list[ForeignLibrary]:
    """The parts of a library: one for each machine. Raises ForeignError: the file is no such library, or damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if kind is BinaryKind.PE:
                return [_pe(data)]
            if struct.unpack_from(">I", data)[0] != _UNIVERSAL:
                return [_part(data[:_MAX_BYTES])]
            parts = []
            for number in range(struct.unpack_from(">I", data, 4)[0]):
                # An entry has CPU type and subtype, offset, size and alignment.
                _, _, offset, _, _ = struct.unpack_from(">5I", data, 8 + 20 * number)
                parts.append(_part(data[offset : offset + _MAX_BYTES]))
            return parts
    except (struct.error, OverflowError, ValueError):  # a ValueError is of mmap, for an empty file
        raise ForeignError("it is cut short") from None


def _part(data: bytes) -> ForeignLibrary:
    # Magic, CPU type and subtype, file type, number and size of the load commands, flags, reserved.
    magic, cpu, _, _, count, size, _, _ = struct.unpack_from("<8I", data)
    if magic != _MAGIC_64:
        raise ForeignError("it is not a 64-bit little-endian Mach-O file")
    if count > _MAX_COMMANDS or 32 + size > len(data):
        raise ForeignError("it is cut short")
    minimum: tuple[int, int] | None = None
    needed: list[str] = []
    rpaths: list[str] = []
    offset = 32
    for _ in range(count):
        command, length = struct.unpack_from("<2I", data, offset)
        if length < 8 or offset + length > 32 + size:
            raise ForeignError("a load command reaches beyond the others")
        if command in (_BUILD_VERSION, _VERSION_MIN_MACOS):
            # In the newer command the platform comes first.
            (version,) = struct.unpack_from("<I", data, offset + (12 if command == _BUILD_VERSION else 8))
            minimum = version >> 16, version >> 8 & 0xFF
        elif command in _LOAD_DYLIB or command == _RPATH:
            (start,) = struct.unpack_from("<I", data, offset + 8)
            text = data[offset + min(start, length) : offset + length].split(b"\0", 1)[0].decode(errors="replace")
            (rpaths if command == _RPATH else needed).append(text)
        offset += length
    return ForeignLibrary(_MACHO_MACHINES.get(cpu, f"CPU type {cpu:#x}"), tuple(needed), tuple(rpaths), minimum)


def _pe(data: mmap.mmap) -> ForeignLibrary:
    if data[:2] != b"MZ":
        raise ForeignError("it does not start like a Windows library")
    (start,) = struct.unpack_from("<I", data, 0x3C)
    if data[start : start + 4] != b"PE\0\0":
        raise ForeignError("it has no PE header")
    # Machine, number of sections, date, offset and number of symbols, size of the optional header, flags.
    machine, sections, _, _, _, optional, flags = struct.unpack_from("<HHIIIHH", data, start + 4)
    header = start + 24
    if struct.unpack_from("<H", data, header)[0] != _PE32_PLUS or sections > _MAX_SECTIONS:
        raise ForeignError("it is not a 64-bit Windows library")
    # The optional header ends with a count and that many pairs of address and size; the second is the imports'.
    (count,) = struct.unpack_from("<I", data, header + 108)
    address = struct.unpack_from("<I", data, header + 112 + 8 * _IMPORTS)[0] if count > _IMPORTS else 0
    table = data[header + optional : header + optional + _SECTION.size * sections]
    places = [(item[2], max(item[1], item[3]), item[4]) for item in _SECTION.iter_unpack(table)]
    needed: list[str] = []
    while address and len(needed) < _MAX_IMPORTS:
        # The fourth field of an import is the address of the library's name; a row of zeros ends the table.
        entry = struct.unpack_from("<5I", data, _offset(address, places))
        if not any(entry):
            break
        name = _offset(entry[3], places)
        needed.append(data[name : name + 256].split(b"\0", 1)[0].decode(errors="replace"))
        address += 20
    found = _PE_MACHINES.get(machine, f"machine {machine:#x}")
    return ForeignLibrary(found, tuple(needed), program=not flags & _DLL)


def _offset(address: int, places: list[tuple[int, int, int]]) -> int:
    for virtual, size, raw in places:
        if virtual <= address < virtual + size:
            return raw + address - virtual
    raise ForeignError("an address lies outside of every section")


def check_foreign(name: VariantName, path: Path, kind: BinaryKind, where: str) -> Iterator[Diagnostic]:
    """The rules about a library for macOS or Windows."""
    try:
        parts = read_foreign(path, kind)
    except (ForeignError, OSError) as error:
        yield finding("KCI740", str(error), path=where)
        return
    if parts and parts[0].program:
        yield finding("KCI757", "it is a program", path=where)
        return
    fitting = [part for part in parts if part.machine == (name.system or "").partition("-")[0]]
    if not fitting:
        machines = ", ".join(part.machine for part in parts) or "nothing"
        yield finding("KCI741", f"it is for {machines}, the name says {name.system}", path=where)
    for part in fitting:
        yield from _needed(name, part, kind, where)
        if kind is BinaryKind.MACH_O:
            yield from _macos(name, part, where)
    message = f"of a {kind.value} library only the header and the needed libraries are checked"
    yield finding("KCI750", message, path=where)


def _needed(name: VariantName, part: ForeignLibrary, kind: BinaryKind, where: str) -> Iterator[Diagnostic]:
    windows = kind is BinaryKind.PE
    patterns = (native_table().windows if windows else native_table().macos).needed
    for library in sorted(set(part.needed)):
        known = library.lower() if windows else library
        if windows and fnmatch.fnmatchcase(known, "python3?*.dll"):
            message = f"it needs {library}, which belongs to one Python; python3.dll is for all"
            yield finding("KCI743", message, path=where)
        elif not any(fnmatch.fnmatchcase(known, pattern) for pattern in patterns):
            yield finding("KCI745", f"it needs {library}, which {name.backend} variants cannot rely on", path=where)


def _macos(name: VariantName, part: ForeignLibrary, where: str) -> Iterator[Diagnostic]:
    newest = native_table().macos.newest
    allowed = newest.get(name.backend, newest["cpu"])
    if part.minimum_os is None:
        yield finding("KCI758", "it does not say which macOS it needs", path=where)
    elif part.minimum_os > numbers(allowed):
        shown = ".".join(map(str, part.minimum_os))
        yield finding("KCI758", f"it needs macOS {shown}; {name.backend} variants may ask for {allowed}", path=where)
    for rpath in part.search_path:
        if not rpath.startswith("@loader_path"):
            yield finding("KCI744", f"it has the search path {rpath!r} built in", path=where)
