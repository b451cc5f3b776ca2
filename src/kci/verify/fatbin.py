"""Device code inside a host library: which GPU architectures are really there.

CUDA keeps it in the section `.nv_fatbin`, a row of containers: a 16-byte header (magic, version, header size, size) and
then entries, each with a header of its own (kind, header size, size, architecture, flags) and the code. HIP keeps it in
`.hip_fatbin`, a row of clang offload bundles: a magic, a count, and for each entry offset, size and a target triple.
The meaning of the fields was worked out by compiling for known architectures and agrees with cuobjdump.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.verify.elf import ElfError, read_sections
from kci.verify.subject import VariantDir

CUDA_SECTION = ".nv_fatbin"
HIP_SECTION = ".hip_fatbin"

_CUDA_MAGIC = 0xBA55ED50
_CUDA_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_PTX, _SASS = 1, 2
_ARCH_SPECIFIC = 1 << 20
_FAMILY_SPECIFIC = 1 << 21

_HIP_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_HIP_COMPRESSED = b"CCOB"
_MAX_TARGETS = 1024


class FatbinError(Exception):
    """The section makes no sense."""


class CompressedError(Exception):
    """The section is well formed, and its architectures are inside of a compressed part."""


class DeviceCode(msgspec.Struct, frozen=True):
    """The architectures that a binary holds code for, spelt as in metadata: `9.0a`, `gfx942`."""

    binary: frozenset[str] = frozenset()
    """Machine code."""
    ptx: frozenset[str] = frozenset()
    """Portable code for a CUDA architecture."""

    def __or__(self, other: DeviceCode) -> DeviceCode:
        return DeviceCode(self.binary | other.binary, self.ptx | other.ptx)


def cuda_code(data: bytes) -> DeviceCode:
    """What a `.nv_fatbin` section holds.

    Raises:
        FatbinError: a container or an entry reaches beyond its end, or is none.
    """
    found: dict[int, set[str]] = {_PTX: set(), _SASS: set()}
    offset = 0
    while offset < len(data):
        if not any(data[offset : offset + 8]):  # containers are aligned
            offset += 8
            continue
        magic, _, header, size = _unpack(_CUDA_HEADER, data, offset)
        if magic != _CUDA_MAGIC or header < _CUDA_HEADER.size:
            raise FatbinError(f"there is no container at offset {offset}")
        end = offset + header + size
        if end > len(data):
            raise FatbinError(f"the container at offset {offset} is cut short")
        for kind, arch in _entries(data, offset + header, end):
            found.setdefault(kind, set()).add(arch)
        offset = end
    return DeviceCode(frozenset(found[_SASS]), frozenset(found[_PTX]))


def _entries(data: bytes, offset: int, end: int) -> Iterator[tuple[int, str]]:
    """Kind and architecture of each entry of a container."""
    while offset < end:
        kind, _, header, size, _, _, _, _, arch, _, _, flags = _unpack(_ENTRY, data, offset)
        if header < _ENTRY.size or offset + header + size > end:
            raise FatbinError(f"the entry at offset {offset} is cut short")
        suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
        yield kind, f"{arch // 10}.{arch % 10}{suffix}"
        offset += header + size


def hip_code(data: bytes) -> DeviceCode:
    """What a `.hip_fatbin` section holds.

    Raises:
        FatbinError: a bundle reaches beyond the section, or there is none.
        CompressedError: the bundles are compressed.
    """
    found: set[str] = set()
    start = data.find(_HIP_MAGIC)
    if start < 0:
        if data.startswith(_HIP_COMPRESSED):
            raise CompressedError
        raise FatbinError("there is no offload bundle")
    while start >= 0:
        (count,) = _unpack(struct.Struct("<Q"), data, start + len(_HIP_MAGIC))
        if count > _MAX_TARGETS:
            raise FatbinError(f"the bundle at offset {start} claims {count} targets")
        position = start + len(_HIP_MAGIC) + 8
        last = position
        for _ in range(count):
            offset, size, length = _unpack(struct.Struct("<QQQ"), data, position)
            position += 24
            target = data[position : position + length]
            position += length
            if len(target) != length or start + offset + size > len(data):
                raise FatbinError(f"the bundle at offset {start} is cut short")
            last = max(last, position, start + offset + size)
            found |= {_gfx(target)} if size else set()
        start = data.find(_HIP_MAGIC, last)
    return DeviceCode(frozenset(found - {""}))


_GFX = re.compile(r"gfx[0-9a-z]+(?:[-0-9a-z]*generic)?")


def _gfx(target: bytes) -> str:
    """`hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+` is `gfx90a`; empty for the host's entry."""
    text = target.decode(errors="replace")
    found = _GFX.search(text) if text.startswith(("hip-amdgcn", "hipv4-amdgcn")) else None
    return found[0] if found else ""


def _unpack(layout: struct.Struct, data: bytes, offset: int) -> tuple[int, ...]:
    try:
        return layout.unpack_from(data, offset)
    except struct.error:
        raise FatbinError(f"it is cut short at offset {offset}") from None


def expected_code(backend: str, archs: tuple[str, ...]) -> DeviceCode:
    """What the metadata's list promises: a plain entry machine code, a `+PTX` entry portable code as well."""
    plain = frozenset(arch.removesuffix("+PTX") for arch in archs)
    ptx = frozenset(arch.removesuffix("+PTX") for arch in archs if arch.endswith("+PTX"))
    return DeviceCode(plain, ptx if backend == "cuda" else frozenset())


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """Compare the device code of a variant's libraries, taken together, with the architectures in its metadata."""
    metadata = variant.metadata
    if metadata is None or variant.noarch or variant.name is None or not (variant.name.system or "").endswith("linux"):
        return
    backend = metadata.backend.type.value
    if backend not in ("cuda", "rocm") or not metadata.backend.archs:
        return
    code = DeviceCode()
    seen = False
    section = CUDA_SECTION if backend == "cuda" else HIP_SECTION
    for item in variant.libraries():
        where = variant.at(item.name)
        try:
            data = read_sections(item.path, (section,)).get(section)
            if data:
                seen = True
                code |= cuda_code(data) if backend == "cuda" else hip_code(data)
        except CompressedError:
            yield finding("KCI763", "its offload bundles are compressed", path=where)
            return
        except FatbinError as error:
            yield finding("KCI762", f"{section}: {error}", path=where)
            return
        except (ElfError, OSError):
            return  # reported by the native rules
    if not seen:
        listed = ", ".join(metadata.backend.archs)
        yield finding("KCI761", f"no library has a section {section}; the metadata lists {listed}", path=variant.shown)
        return
    expected = expected_code(backend, metadata.backend.archs)
    yield from _compared("machine code", expected.binary, code.binary, variant.shown)
    yield from _compared("PTX", expected.ptx, code.ptx, variant.shown)


def _compared(what: str, expected: frozenset[str], actual: frozenset[str], where: str) -> Iterator[Diagnostic]:
    if missing := sorted(expected - actual):
        yield finding("KCI760", f"the metadata lists {', '.join(missing)}; there is no {what} for it", path=where)
    if extra := sorted(actual - expected):
        yield finding("KCI760", f"there is {what} for {', '.join(extra)}, which the metadata does not list", path=where)
