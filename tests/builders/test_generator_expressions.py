"""CMake's generator expressions in flags (docs/builders.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import program, quiet, request, write_tree
from kci.builders.native.units import FlagContext, collect_units, expand_flag
from kci.errors import FindingsError

FACTS = FlagContext("CXX", {"CXX": "GNU", "CUDA": "NVIDIA"})


@pytest.mark.parametrize(
    ("flag", "flags"),
    [
        ("-O2", ["-O2"]),
        ("$<$<CXX_COMPILER_ID:MSVC>:/arch:AVX2>", []),
        ("$<$<CXX_COMPILER_ID:GNU,Clang>:-mavx2;-mfma>", ["-mavx2", "-mfma"]),
        ("-D$<CXX_COMPILER_ID>=$<IF:$<PLATFORM_ID:Linux>,1,2>", ["-DGNU=1"]),
        ("$<$<NOT:$<PLATFORM_ID:Windows>>:-fvisibility=hidden>", ["-fvisibility=hidden"]),
        ("$<$<AND:$<CONFIG:release>,$<COMPILE_LANGUAGE:CXX,C>>:-a$<COMMA>b>", ["-a,b"]),
        ("$<$<OR:$<CONFIG:Debug>,$<COMPILE_LANG_AND_ID:CXX,MSVC>>:-x>", []),
        ("$<$<COMPILE_LANG_AND_ID:CXX,MSVC,GNU>:-x>", ["-x"]),
        ("$<$<COMPILE_LANGUAGE:CUDA>:-x>", []),
        ("$<$<BOOL:off>:-x>$<$<STREQUAL:a,a>:-y>", ["-y"]),
        ("$<0:-x>", []),
        ("$<1:-x>y>", ["-xy>"]),
        ("$<IF:$<PLATFORM_ID:Linux>,$<1:-Wl,-z>,-w>", ["-Wl,-z"]),
        ("$<0:$<TARGET_FILE:x>>", []),
    ],
)
def test_what_a_flag_stands_for(flag: str, flags: list[str]) -> None:
    assert list(expand_flag(flag, FACTS)) == flags


@pytest.mark.parametrize(
    "flag",
    [
        "$<",
        "$<1:-x",
        "$<TARGET_FILE:x>",
        "$<CUDA_COMPILER_VERSION>",
        "$<:x>",
        "$<$<$<",
        "$<$<NOT:$<OF>>:x>",
    ],
)
def test_what_is_not_known_is_refused(flag: str) -> None:
    with pytest.raises(ValueError, match="generator expression"):
        expand_flag(flag, FACTS)


KERNEL = """
[general]
name = "many"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]
[torch]
src = []
[kernel.one]
backend = "cpu"
depends = ["torch"]
src = ["a.cpp"]
cxx-flags = ["-O2", "FLAG"]
"""
CPU = "torch213-cxx11-cpu-x86_64-linux"


@pytest.mark.parametrize("name", [CPU, "torch213-cxx11-xpu20260-x86_64-linux"])
def test_the_flags_of_a_component_are_evaluated_for_the_variants_system(
    tmp_path: Path, name: str
) -> None:
    asked = "$<$<CXX_COMPILER_ID:MSVC>:/arch:AVX2>$<$<PLATFORM_ID:Linux>:-DHERE>"
    asked += "$<$<PLATFORM_ID:Darwin>:-DMAC>"
    text = KERNEL.replace("FLAG", asked).replace('"cpu"', '"xpu"' if "xpu" in name else '"cpu"')
    root = write_tree(tmp_path / "many", {"build.toml": text, "a.cpp": ""})
    assert collect_units(request(root, name, tmp_path), quiet).units[0].flags[:2] == (
        "-O2",
        "-DHERE",
    )


def test_the_compiler_of_a_cuda_variant_is_the_one_that_nvcc_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clang = program(tmp_path, "clang++", 'test "$1" = --version && echo "clang version 19.1.7"')
    monkeypatch.setenv("NVCC_CCBIN", str(clang))
    text = KERNEL.replace("FLAG", "-D$<CXX_COMPILER_ID>").replace('"cpu"', '"cuda"')
    root = write_tree(tmp_path / "many", {"build.toml": text, "a.cpp": ""})
    assert collect_units(request(root, "torch213-cxx11-cu130-x86_64-linux", tmp_path), quiet).units[
        0
    ].flags[:2] == (
        "-O2",
        "-DClang",
    )


@pytest.mark.rule("KCI506", triggers=True)
def test_a_flag_that_cannot_be_evaluated_is_a_finding(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path / "many", {"build.toml": KERNEL.replace("FLAG", "$<TARGET_FILE:x>"), "a.cpp": ""}
    )
    with pytest.raises(
        FindingsError, match=r"does not know the generator expression \$<TARGET_FILE:x>"
    ):
        collect_units(request(root, CPU, tmp_path), quiet)
