"""The name grammar (docs/format.md#variant-names)."""

from __future__ import annotations

import pytest

from kci.config.values import Version
from kci.matrix.catalog.loading import editions, load_catalog
from kci.matrix.variants import Kind, VariantName, parse_variant_name, variant_name


def version(text: str) -> Version:
    return Version.parse(text)


@pytest.mark.parametrize(
    ("kind", "backend", "system", "framework", "compute", "name"),
    [
        (Kind.FULL, "cuda", "x86_64-linux", "2.13", "13.0", "torch213-cxx11-cu130-x86_64-linux"),
        (Kind.FULL, "cpu", "aarch64-darwin", "2.13", None, "torch213-cpu-aarch64-darwin"),
        (Kind.FULL, "cuda", "x86_64-windows", "2.9", "12.8", "torch29-cu128-x86_64-windows"),
        (Kind.FULL, "xpu", "x86_64-linux", "2.12", "2025.3.2",
            "torch212-cxx11-xpu20253-x86_64-linux"),
        (Kind.STABLE_ABI, "rocm", "x86_64-linux", "2.11", "7.2",
            "torch-stable-abi211-rocm72-x86_64-linux"),
        (Kind.STABLE_ABI, "cpu", "aarch64-linux", "2.9", None,
            "torch-stable-abi29-cpu-aarch64-linux"),
        (Kind.TVM_FFI, "cuda", "aarch64-linux", "0.1", "13.2", "tvm-ffi01-cu132-aarch64-linux"),
        (Kind.NOARCH, "cuda", "x86_64-linux", "2.13", "13.0", "torch-cuda"),
    ],
)  # fmt: skip
def test_a_name_is_made_and_read_back(
    kind: Kind, backend: str, system: str, framework: str, compute: str | None, name: str
) -> None:
    made = variant_name(
        kind, backend, system, version(framework), version(compute) if compute else None
    )
    assert made == name
    parsed = parse_variant_name(name)
    assert (parsed.kind, parsed.backend) == (kind, backend)
    if kind is not Kind.NOARCH:
        assert parsed.system == system
        assert parsed.framework_version == framework
        assert parsed.compute_version == (".".join(compute.split(".")[:2]) if compute else None)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("torch26-cxx98-cu124-x86_64-linux",
            VariantName(Kind.FULL, "cuda", "x86_64-linux", "2.6", "12.4")),
        ("torch212-cu130-x86_64-linux",
            VariantName(Kind.FULL, "cuda", "x86_64-linux", "2.12", "13.0")),
        ("torch-universal", VariantName(Kind.NOARCH, "universal")),
        ("torch-npu", VariantName(Kind.NOARCH, "cann")),
    ],
)  # fmt: skip
def test_names_of_old_trees_are_still_read(name: str, parsed: VariantName) -> None:
    assert parse_variant_name(name) == parsed


@pytest.mark.parametrize(
    "name",
    [
        "", "torch", "torch-", "torch-gpu", "torch213", "torch213-cxx11-cu130",
        "torch213-cxx11-cu130-x86_64-linux ",
        "torch213-cxx11-cu130-x86_64-linux\n", "Torch213-cxx11-cu130-x86_64-linux",
        "torch213-cxx11-cu-x86_64-linux",
        "torch-stable-abi29-cxx11-cu130-x86_64-linux", "tvm-ffi01-cxx11-cu130-x86_64-linux",
        "torch213-cxx11-cpu-x86_64-darwin", "torch213-cxx11-cpu-aarch64-darwin",
        "torch213-cpu-x86_64-darwin",
        "torch213-cxx11-cpu-riscv64-linux", "../torch-cuda", "torch-cuda/..",
        "torch２13-cxx11-cpu-x86_64-linux",
    ],
)  # fmt: skip
def test_what_is_no_variant_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a variant name"):
        parse_variant_name(name)


def test_every_name_of_every_edition_reads_back_as_a_loader_reads_it() -> None:
    """ROCm 7.14 is written as 71.4 would be, and read as that."""
    for row in (row for name in editions() for row in load_catalog(name).rows):
        name = variant_name(Kind.FULL, row.backend, row.system, row.torch, row.compute)
        compute = row.compute.minor_text if row.compute else None
        read = "71.4" if compute == "7.14" else compute
        assert parse_variant_name(name).compute_version == read, name
