"""What kind of binary a file is, by its content: a name proves nothing."""

from __future__ import annotations

import enum
import struct
from pathlib import Path

_PE_OFFSET = 0x3C
_HEAD = 4096
_DEVICE_MACHINES = (190, 224)
"""ELF machines of GPU code: CUDA's cubin and AMD's code object. Such a file is data for the GPU's runtime."""

_EXEC = 2


class BinaryKind(enum.StrEnum):
    """The formats of native code."""

    ELF = "ELF"
    MACH_O = "Mach-O"
    PE = "PE"
    ARCHIVE = "static library"


def binary_kind(path: Path) -> BinaryKind | None:
    """The kind of a file; None for what is no native code for a host.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"\x7fELF"):
        machine = int.from_bytes(head[18:20], "little")
        return None if machine in _DEVICE_MACHINES else BinaryKind.ELF
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xfe\xed\xfa\xce"):
        return BinaryKind.MACH_O
    # A universal binary begins like a Java class, whose version stands where the number of parts is here.
    if head[:4] == b"\xca\xfe\xba\xbe" and len(head) >= 8 and struct.unpack_from(">I", head, 4)[0] < 20:
        return BinaryKind.MACH_O
    if head.startswith(b"!<arch>\n"):
        return BinaryKind.ARCHIVE
    if head.startswith(b"MZ") and len(head) >= _PE_OFFSET + 4:
        (offset,) = struct.unpack_from("<I", head, _PE_OFFSET)
        if head[offset : offset + 4] == b"PE\0\0":
            return BinaryKind.PE
    return None


def is_static_executable(path: Path) -> bool:
    """Whether an ELF file is a program that is loaded at a fixed place, not a library."""
    with path.open("rb") as file:
        head = file.read(18)
    return int.from_bytes(head[16:18], "little") == _EXEC
