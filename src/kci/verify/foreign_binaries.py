"""Libraries of macOS and Windows: what their headers say, and whether users can rely on it; not their symbols."""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.matrix.names import VariantName
from kci.verify.abi import native_table, numbers

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


class MachO(msgspec.Struct, frozen=True):
    """The facts about a Mach-O library, or about one part of a universal one."""

    machine: str
    minimum_os: tuple[int, int] | None
    needed: tuple[str, ...]
    search_path: tuple[str, ...]


def read_macho(path: Path) -> list[MachO]:
    """The parts of a Mach-O library: one for each machine.

    Raises:
        ForeignError: the file is not a Mach-O library, or damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(8)
        try:
            if struct.unpack(">I", head[:4])[0] != _UNIVERSAL:
                file.seek(0)
                return [_part(file.read(_MAX_BYTES))]
            (count,) = struct.unpack(">I", head[4:])
            parts = []
            for number in range(count):
                # An entry has CPU type and subtype, offset, size and alignment.
                file.seek(8 + 20 * number)
                _, _, offset, _, _ = struct.unpack(">5I", file.read(20))
                file.seek(offset)
                parts.append(_part(file.read(_MAX_BYTES)))
        except struct.error:
            raise ForeignError("it is cut short") from None
        return parts


def _part(data: bytes) -> MachO:
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
    return MachO(_MACHO_MACHINES.get(cpu, f"CPU type {cpu:#x}"), minimum, tuple(needed), tuple(rpaths))


class Pe(msgspec.Struct, frozen=True):
    """The facts about a Windows library."""

    machine: str
    library: bool
    needed: tuple[str, ...]


def read_pe(path: Path) -> Pe:
    """Read a Windows library.

    Raises:
        ForeignError: the file is not a PE library, or damaged.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (struct.error, OverflowError):
        raise ForeignError("it is cut short") from None


def _read(file: IO[bytes]) -> Pe:
    if file.read(2) != b"MZ":
        raise ForeignError("it does not start like a Windows library")
    (start,) = struct.unpack("<I", _at(file, 0x3C, 4))
    if _at(file, start, 4) != b"PE\0\0":
        raise ForeignError("it has no PE header")
    # Machine, number of sections, date, offset and number of symbols, size of the optional header, flags.
    machine, sections, _, _, _, optional, flags = struct.unpack("<HHIIIHH", _at(file, start + 4, 20))
    header = _at(file, start + 24, optional)
    if struct.unpack_from("<H", header)[0] != _PE32_PLUS or sections > _MAX_SECTIONS:
        raise ForeignError("it is not a 64-bit Windows library")
    # The optional header ends with a count and that many pairs of address and size; the second is the imports'.
    (count,) = struct.unpack_from("<I", header, 108)
    address = struct.unpack_from("<I", header, 112 + 8 * _IMPORTS)[0] if count > _IMPORTS else 0
    table = _at(file, start + 24 + optional, _SECTION.size * sections)
    places = [(item[2], max(item[1], item[3]), item[4]) for item in _SECTION.iter_unpack(table)]
    needed: list[str] = []
    while address and len(needed) < _MAX_IMPORTS:
        # The fourth field of an import is the address of the library's name; a row of zeros ends the table.
        entry = struct.unpack("<5I", _at(file, _offset(address, places), 20))
        if not any(entry):
            break
        needed.append(_at_most(file, _offset(entry[3], places), 256).split(b"\0", 1)[0].decode(errors="replace"))
        address += 20
    return Pe(_PE_MACHINES.get(machine, f"machine {machine:#x}"), bool(flags & _DLL), tuple(needed))


def _offset(address: int, places: list[tuple[int, int, int]]) -> int:
    for virtual, size, raw in places:
        if virtual <= address < virtual + size:
            return raw + address - virtual
    raise ForeignError("an address lies outside of every section")


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    data = _at_most(file, offset, size)
    if len(data) != size:
        raise ForeignError("it is cut short")
    return data


def _at_most(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def check_macho(name: VariantName, path: Path, where: str) -> Iterator[Diagnostic]:
    """The rules about a library for macOS."""
    try:
        parts = read_macho(path)
    except (ForeignError, OSError) as error:
        yield finding("KCI740", str(error), path=where)
        return
    cpu = (name.system or "").partition("-")[0]
    fitting = [part for part in parts if part.machine == cpu]
    if not fitting:
        machines = ", ".join(part.machine for part in parts) or "nothing"
        yield finding("KCI741", f"it is for {machines}, the name says {name.system}", path=where)
    for part in fitting:
        yield from _macho_part(name, part, where)
    yield finding("KCI750", "of a Mach-O library only the header and the needed libraries are checked", path=where)


def _macho_part(name: VariantName, part: MachO, where: str) -> Iterator[Diagnostic]:
    table = native_table().macos
    newest = table.newest.get(name.backend, table.newest["cpu"])
    if part.minimum_os is None:
        yield finding("KCI758", "it does not say which macOS it needs", path=where)
    elif part.minimum_os > numbers(newest):
        shown = ".".join(map(str, part.minimum_os))
        yield finding("KCI758", f"it needs macOS {shown}; {name.backend} variants may ask for {newest}", path=where)
    for library in part.needed:
        if not any(fnmatch.fnmatchcase(library, pattern) for pattern in table.needed):
            yield finding("KCI745", f"it needs {library}, which {name.backend} variants cannot rely on", path=where)
    for rpath in part.search_path:
        if not rpath.startswith("@loader_path"):
            yield finding("KCI744", f"it has the search path {rpath!r} built in", path=where)


def check_pe(name: VariantName, path: Path, where: str) -> Iterator[Diagnostic]:
    """The rules about a library for Windows."""
    try:
        library = read_pe(path)
    except (ForeignError, OSError) as error:
        yield finding("KCI740", str(error), path=where)
        return
    if not library.library:
        yield finding("KCI757", "it is a program", path=where)
        return
    cpu = (name.system or "").partition("-")[0]
    if library.machine != cpu:
        yield finding("KCI741", f"it is for {library.machine}-windows, the name says {name.system}", path=where)
    patterns = native_table().windows.needed
    for needed in sorted(set(library.needed)):
        lower = needed.lower()
        if fnmatch.fnmatchcase(lower, "python3?*.dll"):
            yield finding(
                "KCI743", f"it needs {needed}, which belongs to one Python; python3.dll is for all", path=where
            )
        elif not any(fnmatch.fnmatchcase(lower, pattern) for pattern in patterns):
            yield finding("KCI745", f"it needs {needed}, which {name.backend} variants cannot rely on", path=where)
    yield finding("KCI750", "of a Windows library only the header and the imported libraries are checked", path=where)
