"""What a Windows library says about itself: machine, and the libraries it imports from."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

import msgspec

_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
_PE32_PLUS = 0x20B
_DLL = 0x2000
_IMPORTS = 1
_MAX_SECTIONS = 96
_MAX_IMPORTS = 1024
_SECTION = struct.Struct("<8s6I2HI")


class PeError(Exception):
    """The file is cut short or makes no sense."""


class Pe(msgspec.Struct, frozen=True):
    """The facts about a library."""

    machine: str
    library: bool
    needed: tuple[str, ...]


def read_pe(path: Path) -> Pe:
    """Read a library.

    Raises:
        PeError: the file is not a PE library, or damaged.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (struct.error, OverflowError):
        raise PeError("it is cut short") from None


def _read(file: IO[bytes]) -> Pe:
    if file.read(2) != b"MZ":
        raise PeError("it does not start like a Windows library")
    (start,) = struct.unpack("<I", _at(file, 0x3C, 4))
    if _at(file, start, 4) != b"PE\0\0":
        raise PeError("it has no PE header")
    machine, sections, _, _, _, optional, flags = struct.unpack("<HHIIIHH", _at(file, start + 4, 20))
    header = _at(file, start + 24, optional)
    if struct.unpack_from("<H", header)[0] != _PE32_PLUS or sections > _MAX_SECTIONS:
        raise PeError("it is not a 64-bit Windows library")
    (count,) = struct.unpack_from("<I", header, 108)
    address = struct.unpack_from("<I", header, 112 + 8 * _IMPORTS)[0] if count > _IMPORTS else 0
    table = _at(file, start + 24 + optional, _SECTION.size * sections)
    places = [(item[2], max(item[1], item[3]), item[4]) for item in _SECTION.iter_unpack(table)]
    needed: list[str] = []
    while address and len(needed) < _MAX_IMPORTS:
        entry = struct.unpack("<5I", _at(file, _offset(address, places), 20))
        if not any(entry):
            break
        needed.append(_at_most(file, _offset(entry[3], places), 256).split(b"\0", 1)[0].decode(errors="replace"))
        address += 20
    return Pe(_MACHINES.get(machine, f"machine {machine:#x}"), bool(flags & _DLL), tuple(needed))


def _offset(address: int, places: list[tuple[int, int, int]]) -> int:
    for virtual, size, raw in places:
        if virtual <= address < virtual + size:
            return raw + address - virtual
    raise PeError("an address lies outside of every section")


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    data = _at_most(file, offset, size)
    if len(data) != size:
        raise PeError("it is cut short")
    return data


def _at_most(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
