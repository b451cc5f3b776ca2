"""Reads the GPU architectures of device code in a host library.

CUDA: `.nv_fatbin` holds containers of entries. HIP: `.hip_fatbin` holds clang offload bundles,
perhaps compressed. The layouts were found by compiling for known architectures, and agree with
cuobjdump.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from kci.config.facts import BACKENDS
from kci.diagnostics import Findings, finding
from kci.errors import MissingToolError
from kci.tree.elf import ElfError, read_sections
from kci.tree.verify.subject import BinaryKind, VariantDir
from kci.utils.archive import LIMITS, zstandard

CUDA_SECTION = ".nv_fatbin"
HIP_SECTION = ".hip_fatbin"
RELOCATABLE_SECTION = "__nv_relfatbin"
"""nvcc's section for relocatable device code."""
RELOCATABLE_SYMBOL = "__cudaRegisterLinkedBinary"
RELOCATABLE_HINT = (
    "its device code is relocatable (-rdc=true, -dc, -dlto) and was not linked: leave the flag out"
)

_CUDA_MAGIC = (0xBA55ED50).to_bytes(4, "little")
# magic, version, header size, content size
_CUDA_HEADER = struct.Struct("<4sHHQ")
# kind, version, header size, code size, four unused, architecture, two unused, flags
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_ARCH_SPECIFIC = 1 << 20
_FAMILY_SPECIFIC = 1 << 21

_HIP_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_HIP_COMPRESSED = b"CCOB"
_HIP_MAGICS = (_HIP_MAGIC, _HIP_COMPRESSED)
# number of targets; then per target offset, size, name length, name
_COUNT = struct.Struct("<Q")
_TARGET = struct.Struct("<QQQ")
# magic, version, compression method
_COMPRESSED = struct.Struct("<4sHH")
_COMPRESSED_SIZES = {2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
"""Compressed size, original size and hash, by version."""
_ZLIB, _ZSTD = 0, 1
# `gfx90a`, or a family such as `gfx9-4-generic`
_GFX = re.compile(rb"hip(?:v4)?-amdgcn.*?(gfx[0-9a-z]+(?:[-0-9a-z]*generic)?)", re.DOTALL)
_PADDING = re.compile(rb"\0*")
_MAX_TARGETS = 1024
_MAX_HEAD = 1024 * 1024


class FatbinError(Exception):
    """The section is malformed."""


class CompressedError(Exception):
    """kci cannot decompress the part with the architectures."""


DeviceCode = set[tuple[str, str]]
"""Kind of code and architecture, in the spelling of metadata: `9.0a`, `gfx942`."""
_KINDS = {1: "PTX", 2: "machine code"}


def cuda_code(data: bytes) -> DeviceCode:
    """Read a `.nv_fatbin` section. Raises FatbinError."""
    found: DeviceCode = set()
    offset = _next(data, 0, (_CUDA_MAGIC,), "container")
    while offset >= 0:
        _, _, header, size = _unpack(_CUDA_HEADER, data, offset)
        end = offset + header + size
        if header < _CUDA_HEADER.size or end > len(data):
            raise FatbinError(f"the container at offset {offset} is cut short")
        found.update(_entries(data, offset + header, end))
        offset = _next(data, end, (_CUDA_MAGIC,), "container")
    return found


def _entries(data: bytes, offset: int, end: int) -> Iterator[tuple[str, str]]:
    while offset < end:
        kind, _, header, size, _, _, _, _, arch, _, _, flags = _unpack(_ENTRY, data, offset)
        if header < _ENTRY.size or offset + header + size > end:
            raise FatbinError(f"the entry at offset {offset} is cut short")
        suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
        if kind in _KINDS:
            yield _KINDS[kind], f"{arch // 10}.{arch % 10}{suffix}"
        offset += header + size


def hip_code(data: bytes) -> DeviceCode:
    """Read a `.hip_fatbin` section. Raises FatbinError or CompressedError."""
    archs: set[str] = set()
    offset = _next(data, 0, _HIP_MAGICS, "offload bundle")
    if offset < 0:
        raise FatbinError("there is no offload bundle")
    while offset >= 0:
        if data.startswith(_HIP_COMPRESSED, offset):
            head, length, end = _decompressed(data, offset)
            archs |= _targets(head, length)[0]
        else:
            targets, length = _targets(data[offset : offset + _MAX_HEAD], len(data) - offset)
            archs |= targets
            end = offset + length
        offset = _next(data, end, _HIP_MAGICS, "offload bundle")
    return {("machine code", arch) for arch in archs}


def _next(data: bytes, start: int, magics: tuple[bytes, ...], container: str) -> int:
    # -1 at the end; only padding may stand between containers
    padding = _PADDING.match(data, start)
    start = padding.end() if padding else start
    if start == len(data):
        return -1
    if not data.startswith(magics, start):
        raise FatbinError(f"there is no {container} at offset {start}")
    return start


def _targets(bundle: bytes, length: int) -> tuple[set[str], int]:
    if not bundle.startswith(_HIP_MAGIC):
        raise FatbinError("a bundle has no bundle header")
    position = len(_HIP_MAGIC)
    (count,) = _unpack(_COUNT, bundle, position)
    if count > _MAX_TARGETS:
        raise FatbinError(f"a bundle claims {count} targets")
    position += _COUNT.size
    archs = set()
    end = position
    for _ in range(count):
        offset, size, name_size = _unpack(_TARGET, bundle, position)
        position += _TARGET.size
        name = bundle[position : position + name_size]
        position += name_size
        if len(name) != name_size or offset + size > length:
            raise FatbinError("a bundle is cut short")
        end = max(end, position, offset + size)
        # `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+` is `gfx90a`; none for the host's entry
        if size and (match := _GFX.match(name)):
            archs.add(match[1].decode())
    return archs, end


def _decompressed(data: bytes, offset: int) -> tuple[bytes, int, int]:
    _, version, method = _unpack(_COMPRESSED, data, offset)
    layout = _COMPRESSED_SIZES.get(version)
    if not layout:
        raise CompressedError(f"version {version} of the compressed form is not known")
    total, length, _ = _unpack(layout, data, offset + _COMPRESSED.size)
    start = offset + _COMPRESSED.size + layout.size
    end = offset + total
    if not start <= end <= len(data):
        raise FatbinError("a compressed bundle is cut short")
    return _inflated(data[start:end], method), length, end


def _inflated(data: bytes, method: int) -> bytes:
    if method == _ZLIB:
        try:
            return zlib.decompressobj().decompress(data, _MAX_HEAD)
        except zlib.error as error:
            raise FatbinError(f"a compressed bundle cannot be decompressed: {error}") from error
    if method != _ZSTD:
        raise CompressedError(f"the compression method {method} is not known")
    try:
        module = zstandard()
    except MissingToolError as error:
        raise CompressedError(f"{error.message}; {error.hint}") from error
    try:
        with module.ZstdDecompressor(max_window_size=LIMITS.window).stream_reader(data) as reader:
            head: bytes = reader.read(_MAX_HEAD)
            return head
    except module.ZstdError as error:
        raise FatbinError(f"a compressed bundle cannot be decompressed: {error}") from error


def _unpack(layout: struct.Struct, data: bytes, offset: int) -> tuple[int, ...]:
    try:
        return layout.unpack_from(data, offset)
    except struct.error:
        raise FatbinError(f"it is cut short at offset {offset}") from None


def check_variant(variant: VariantDir) -> Findings:
    """Yield differences between the libraries' device code and the metadata."""
    metadata = variant.metadata
    if not metadata or not metadata.backend.archs or variant.platform[1] != "linux":
        return
    backend, archs = metadata.backend.type, metadata.backend.archs
    if not BACKENDS[backend].archs:
        return
    code: DeviceCode = set()
    section, read = (CUDA_SECTION, cuda_code) if backend == "cuda" else (HIP_SECTION, hip_code)
    seen: set[str] = set()
    for item, kind in variant.libraries():
        if kind is not BinaryKind.ELF:
            continue  # the native rules report it
        try:
            there = read_sections(item.path, (section, RELOCATABLE_SECTION))
            seen.update(name for name, data in there.items() if data or name != section)
            code |= read(there[section]) if there.get(section) else set()
        except CompressedError as error:
            yield finding("KCI763", f"its offload bundles are compressed: {error}", item.name)
            return
        except FatbinError as error:
            yield finding("KCI762", f"{section}: {error}", item.name)
            return
        except (ElfError, OSError):
            return  # the native rules report it
    if section not in seen:
        linked, hint = f"no library has a section {section}", ""
        if RELOCATABLE_SECTION in seen:
            linked, hint = "no library has device code that was linked", RELOCATABLE_HINT
        message = f"{linked}; the metadata lists {', '.join(archs)}"
        yield finding("KCI761", message, hint=hint)
        return
    expected = {("machine code", arch.removesuffix("+PTX")) for arch in archs}
    if backend == "cuda":
        expected |= {("PTX", arch[:-4]) for arch in archs if arch.endswith("+PTX")}
    for text, part in (
        ("the metadata lists {}; there is no {} for it", expected - code),
        ("there is {1} for {0}, which the metadata does not list", code - expected),
    ):
        for what in sorted({what for what, _ in part}):
            listed = ", ".join(sorted(arch for of, arch in part if of == what))
            yield finding("KCI760", text.format(listed, what))
