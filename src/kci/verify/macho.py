"""What a Mach-O library says about itself: machine, the oldest macOS it runs on, the libraries it needs."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

_MAX_BYTES = 1024 * 1024
_MAGIC_64 = 0xFEEDFACF
_UNIVERSAL = 0xCAFEBABE
_MACHINES = {0x0100000C: "aarch64", 0x01000007: "x86_64"}
_BUILD_VERSION = 0x32
_VERSION_MIN_MACOS = 0x24
_LOAD_DYLIB = (0x0C, 0x18 | 0x80000000, 0x1F | 0x80000000)
_RPATH = 0x1C | 0x80000000
_MAX_COMMANDS = 4096


class MachOError(Exception):
    """The file is cut short or makes no sense."""


class MachO(msgspec.Struct, frozen=True):
    """The facts about one library."""

    machine: str
    minimum_os: tuple[int, int] | None
    needed: tuple[str, ...]
    search_path: tuple[str, ...]


def read_macho(path: Path) -> list[MachO]:
    """Read a library; a universal one has several parts.

    Raises:
        MachOError: the file is not a Mach-O library, or damaged.
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
                file.seek(8 + 20 * number)
                _, _, offset, _, _ = struct.unpack(">5I", file.read(20))
                file.seek(offset)
                parts.append(_part(file.read(_MAX_BYTES)))
        except struct.error:
            raise MachOError("it is cut short") from None
        return parts


def _part(data: bytes) -> MachO:
    magic, cpu, _, _, count, size, _, _ = struct.unpack_from("<8I", data)
    if magic != _MAGIC_64:
        raise MachOError("it is not a 64-bit little-endian Mach-O file")
    if count > _MAX_COMMANDS or 32 + size > len(data):
        raise MachOError("it is cut short")
    minimum: tuple[int, int] | None = None
    needed: list[str] = []
    rpaths: list[str] = []
    offset = 32
    for _ in range(count):
        command, length = struct.unpack_from("<2I", data, offset)
        if length < 8 or offset + length > 32 + size:
            raise MachOError("a load command reaches beyond the others")
        if command in (_BUILD_VERSION, _VERSION_MIN_MACOS):
            # In the newer command the platform comes first.
            (version,) = struct.unpack_from("<I", data, offset + (12 if command == _BUILD_VERSION else 8))
            minimum = version >> 16, version >> 8 & 0xFF
        elif command in _LOAD_DYLIB or command == _RPATH:
            (start,) = struct.unpack_from("<I", data, offset + 8)
            text = data[offset + min(start, length) : offset + length].split(b"\0", 1)[0].decode(errors="replace")
            (rpaths if command == _RPATH else needed).append(text)
        offset += length
    return MachO(_MACHINES.get(cpu, f"CPU type {cpu:#x}"), minimum, tuple(needed), tuple(rpaths))
