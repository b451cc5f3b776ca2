"""Device code: the parser on made-up bytes, on what nvcc makes, and against cuobjdump; and the rule
about archs.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import zstandard

from conftest import only
from kci.diagnostics import Diagnostic
from kci.tree.verify import verify
from kci.tree.verify.fatbin import CompressedError, FatbinError, cuda_code, hip_code
from variants import CUDA, make_variant

ROCM = "torch213-cxx11-rocm72-x86_64-linux"


def entry(kind: int, arch: int, flags: int = 0x11, size: int = 16) -> bytes:
    head = struct.pack("<HHIQIIHH", kind, 0x101, 64, size, 0, 0, 8, 1)
    head += struct.pack("<IIIQQQ", arch, 0, 0, flags, 0, 0)
    assert len(head) == 64
    return head + bytes(size)


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def bundle(*targets: tuple[str, int]) -> bytes:
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(targets))
    offset = 4096
    code = b""
    for target, size in targets:
        head += struct.pack("<QQQ", offset + len(code), size, len(target)) + target.encode()
        code += bytes(size)
    return head + bytes(offset - len(head)) + code


HOST = ("host-x86_64-unknown-linux-gnu-", 0)


def amd(target: str, size: int = 8) -> tuple[str, int]:
    """Code for one of AMD's GPUs."""
    return f"hipv4-amdgcn-amd-amdhsa--{target}", size


def machine_code(*archs: str) -> set[tuple[str, str]]:
    return {("machine code", arch) for arch in archs}


def test_cuda_entries_are_told_apart() -> None:
    data = container(entry(2, 75), entry(2, 90), entry(2, 90, 1 << 20)) + bytes(8)
    data += container(entry(1, 120, 0x8011), entry(2, 100, 1 << 21), entry(8, 80))
    assert cuda_code(data) == {*machine_code("7.5", "9.0", "9.0a", "10.0f"), ("PTX", "12.0")}
    assert cuda_code(b"") == set()


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish!" * 4,
        container(entry(2, 80))[:40],
        container(entry(2, 80))[:-1],
        container(entry(2, 80)[:-1]),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0),
        container(struct.pack("<HHIQ", 2, 0x101, 0, 0) + bytes(48)),
        b"\x50\xed\x55",
    ],
)
def test_a_broken_cuda_section_is_an_error(data: bytes) -> None:
    with pytest.raises(FatbinError):
        cuda_code(data)


def test_hip_targets_are_taken_from_every_bundle() -> None:
    one = bundle(HOST, amd("gfx90a:sramecc+:xnack-"), amd("gfx942"))
    two = bundle(HOST, ("hip-amdgcn-amd-amdhsa-gfx1100", 8), amd("gfx9-4-generic"))
    found = hip_code(one + bytes(100) + two)
    assert found == machine_code("gfx90a", "gfx942", "gfx1100", "gfx9-4-generic")


def compressed(version: int, method: int, plain: bytes) -> bytes:
    packed = zlib.compress(plain) if method == 0 else zstandard.ZstdCompressor().compress(plain)
    sizes = struct.Struct("<IIQ" if version == 2 else "<QQQ")
    head = b"CCOB" + struct.pack("<HH", version, method)
    return head + sizes.pack(len(head) + sizes.size + len(packed), len(plain), 7) + packed


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("method", [0, 1])
def test_compressed_bundles_are_looked_into(version: int, method: int) -> None:
    one, two = bundle(HOST, amd("gfx942", 3_000_000)), bundle(HOST, amd("gfx90a"))
    packed = compressed(version, method, one)
    data = packed + bytes(4096) + two + bytes(64) + compressed(version, method, two)
    assert hip_code(data) == machine_code("gfx942", "gfx90a")
    with pytest.raises(FatbinError):
        hip_code(packed[:-1])
    broken = bytearray(packed)
    broken[40:60] = bytes(20)
    with pytest.raises(FatbinError):
        hip_code(bytes(broken))


def test_compression_that_cannot_be_undone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bundle(HOST)
    packed = compressed(2, 0, plain)
    for data in (packed[:6] + b"\x09\0" + packed[8:], b"CCOB\x63\0" + bytes(100)):
        with pytest.raises(CompressedError, match="not known"):
            hip_code(data)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CompressedError, match=r"kci\[zstd\]"):
        hip_code(compressed(2, 1, plain))


def test_broken_hip_sections() -> None:
    whole = bundle(HOST, amd("gfx942"))
    endless = whole[:24] + struct.pack("<Q", 2**40) + whole[32:]
    cut = (whole[:50], whole[:-1], whole + b"rest")
    for data in (b"nothing", b"", bytes(100), *cut, endless):
        with pytest.raises(FatbinError):
            hip_code(data)


def checked(
    root: Path, section: str, data: bytes | None, archs: tuple[str, ...], variant: str
) -> list[Diagnostic]:
    """What the device rules say about a real library with this section."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    root.mkdir(exist_ok=True)
    source = "int f;\n"
    if data is not None:
        (root / "code").write_bytes(data)
        source += f'__asm__(".section {section}, \\"a\\"\\n.incbin \\"code\\"\\n.previous");\n'
    (root / "a.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", "a.so", "a.c"]
    subprocess.run(command, cwd=root, check=True)
    library = f"_gated_norm_{'cuda' if variant == CUDA else 'rocm'}_1a2b3c4.abi3.so"
    files = {"__init__.py": b"", library: (root / "a.so").read_bytes()}
    return verify(make_variant(root, variant, files=files, archs=archs), select=["KCI76"])


CODE = container(entry(2, 80), entry(2, 120), entry(1, 120))


@pytest.mark.rule("KCI760", "KCI761", "KCI762", "KCI763", triggers=False)
def test_archs_that_agree(tmp_path: Path) -> None:
    assert checked(tmp_path, ".nv_fatbin", CODE, ("8.0", "12.0+PTX"), CUDA) == []


@pytest.mark.rule("KCI760", triggers=True)
@pytest.mark.parametrize(
    ("archs", "says"),
    [
        (("8.0", "9.0", "12.0+PTX"), ["the metadata lists 9.0; there is no machine code for it"]),
        (("12.0+PTX",), ["there is machine code for 8.0, which the metadata does not list"]),
        (("8.0+PTX", "12.0+PTX"), ["the metadata lists 8.0; there is no PTX for it"]),
        (("8.0", "12.0"), ["there is PTX for 12.0, which the metadata does not list"]),
        (
            ("8.0", "12.0a+PTX"),
            [
                "the metadata lists 12.0a; there is no PTX for it",
                "the metadata lists 12.0a; there is no machine code for it",
                "there is PTX for 12.0, which the metadata does not list",
                "there is machine code for 12.0, which the metadata does not list",
            ],
        ),
    ],
)
def test_archs_that_disagree(tmp_path: Path, archs: tuple[str, ...], says: list[str]) -> None:
    found = checked(tmp_path, ".nv_fatbin", CODE, archs, CUDA)
    assert [item.message for item in found] == says
    assert {item.rule for item in found} == {"KCI760"}


@pytest.mark.rule("KCI761", triggers=True)
def test_a_gpu_variant_without_device_code(tmp_path: Path) -> None:
    only(checked(tmp_path, "", None, ("8.0",), CUDA), "KCI761")


@pytest.mark.rule("KCI761", triggers=True)
def test_device_code_that_no_device_link_linked(tmp_path: Path) -> None:
    found = only(checked(tmp_path, "__nv_relfatbin", CODE, ("8.0",), CUDA), "KCI761", "linked")
    assert "-rdc=true" in found.hint


@pytest.mark.rule("KCI762", triggers=True)
def test_device_code_that_cannot_be_read(tmp_path: Path) -> None:
    only(checked(tmp_path, ".nv_fatbin", CODE[:-4], ("8.0",), CUDA), "KCI762")


@pytest.mark.rule("KCI760", "KCI763", triggers=True)
def test_rocm_archs(tmp_path: Path) -> None:
    data = bundle(HOST, amd("gfx942"), amd("gfx90a"))
    assert checked(tmp_path / "good", ".hip_fatbin", data, ("gfx90a", "gfx942"), ROCM) == []
    only(checked(tmp_path / "bad", ".hip_fatbin", data, ("gfx90a",), ROCM), "KCI760", "gfx942")
    packed = b"CCOB\x63" + bytes(100)
    found = checked(tmp_path / "packed", ".hip_fatbin", packed, ("gfx90a",), ROCM)
    assert only(found, "KCI763").severity == "error"
