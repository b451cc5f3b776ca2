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


ROCM_714 = "torch214-cxx11-rocm714-x86_64-linux"


def test_a_minor_of_two_digits_reads_back_wrong_unless_it_is_known() -> None:
    """ROCm 7.14 is written as 71.4 would be; a loader reads it so, and what exists tells the two
    apart.
    """
    assert (
        variant_name(Kind.FULL, "rocm", "x86_64-linux", version("2.14"), version("7.14"))
        == ROCM_714
    )
    assert parse_variant_name(ROCM_714).compute_version == "71.4"
    assert parse_variant_name(ROCM_714, [("rocm", version("7.14"))]).compute_version == "7.14"
    assert (
        parse_variant_name(
            ROCM_714, [("rocm", version("7.2")), ("cuda", version("7.14"))]
        ).compute_version
        == "71.4"
    )
    both = [("rocm", version("7.14")), ("rocm", version("71.4"))]
    assert parse_variant_name(ROCM_714, both).compute_version == "71.4", (
        "the loader's reading goes first"
    )
    assert parse_variant_name("torch213-cxx11-cu130-x86_64-linux", both).compute_version == "13.0"


def test_every_name_of_every_edition_reads_back_with_the_rows_that_are_known() -> None:
    rows = [row for name in editions() for row in load_catalog(name).rows]
    known = [(str(row.backend), row.compute) for row in rows if row.compute is not None]
    misread = set()
    for row in rows:
        name = variant_name(Kind.FULL, row.backend, row.system, row.torch, row.compute)
        wanted = row.compute.minor_text if row.compute else None
        assert parse_variant_name(name, known).compute_version == wanted, name
        if parse_variant_name(name).compute_version != wanted:
            misread.add(name)
    assert ROCM_714 in misread
    assert all("-rocm714-" in name for name in misread), "the one version that needs what is known"
