"""What is verified: a variant directory with its name and metadata taken apart, and the kind of each binary."""

from __future__ import annotations

import enum
import struct
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.walk import Entry, walk
from kci.matrix.names import Kind, VariantName, is_variant_name, parse_variant_name
from kci.tree.digest import directory_digest, file_hashes
from kci.tree.metadata import FILE_NAME, Metadata, read_metadata

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
    """The kind of a file; None for what is no native code for a host. Raises OSError: it cannot be read."""
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


LIBRARY_SUFFIXES = (".dll", ".dylib", ".pyd", ".so")


class VariantDir(msgspec.Struct, frozen=True):
    """A variant directory. What could not be read is None, and was reported when it was loaded."""

    path: Path
    shown: str
    """The path as the user would write it."""
    name: VariantName | None
    metadata: Metadata | None
    files: tuple[Entry, ...]
    hashes: dict[str, str] | None = None
    """Name to hex sha256 of every file, which are read for this once."""

    @property
    def digest(self) -> str:
        return directory_digest(self.hashes or {})

    @property
    def noarch(self) -> bool:
        return self.name is not None and self.name.kind is Kind.NOARCH

    def at(self, name: str) -> str:
        return f"{self.shown}/{name}"

    def regular(self, *suffixes: str) -> list[Entry]:
        """The plain files whose names end so."""
        return [item for item in self.files if item.regular and not item.link and item.name.endswith(suffixes)]

    def libraries(self) -> list[tuple[Entry, BinaryKind | None]]:
        """The native libraries, by content or by name, each with what its content is."""
        found = []
        for item in self.regular(""):
            try:
                kind = binary_kind(item.path)
            except OSError:
                kind = None  # reported when the directory was read
            name = item.path.name.lower()
            if kind is not None or name.endswith(LIBRARY_SUFFIXES) or ".so." in name:
                found.append((item, kind))
        return found


def load_variant(path: Path, shown: str) -> tuple[VariantDir, list[Diagnostic]]:
    """Read a variant directory, with what was wrong in reading it."""
    found: list[Diagnostic] = []
    try:
        name = parse_variant_name(path.name)
    except ValueError as error:
        name = None
        found.append(finding("KCI701", str(error), path=shown))
    try:
        metadata = read_metadata(path / FILE_NAME)
    except FindingsError as error:
        metadata = None
        message = error.message.replace(str(path / FILE_NAME), FILE_NAME)
        found.append(finding("KCI710", message, path=f"{shown}/{FILE_NAME}"))
    try:
        files = tuple(walk(path))
    except FindingsError as error:
        files = ()
        found.append(finding("KCI700", error.message, path=shown))
    hashes = None
    try:
        hashes = file_hashes(path)
    except FindingsError as error:
        if not any(item.rule == "KCI700" for item in found):
            found.append(finding("KCI700", error.message.replace(str(path), shown), path=shown))
    return VariantDir(path, shown, name, metadata, files, hashes), found


def looks_like_variant(path: Path) -> bool:
    """Whether a directory is meant to be a variant: by its name, or because it has metadata."""
    return path.is_dir() and (is_variant_name(path.name) or (path / FILE_NAME).is_file())


def holds_variants(path: Path) -> bool:
    """Whether a directory has variants right below it, and is not one itself."""
    return path.is_dir() and not looks_like_variant(path) and any(looks_like_variant(item) for item in path.iterdir())
