"""CMake's generator expressions in flags (docs/builders.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import CPU, CUDA, program, quiet, request
from conftest import failure, write_torch
from kci.builders.native.units import FlagContext, collect_units, expand_flag
from kci.builders.request import Request
from kci.errors import FindingsError
from planning import append

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


UNKNOWN = "$< $<1:-x $<TARGET_FILE:x> $<CUDA_COMPILER_VERSION> $<:x> $<$<$< $<$<NOT:$<OF>>:x>"


@pytest.mark.parametrize("flag", UNKNOWN.split())
def test_what_is_not_known_is_refused(flag: str) -> None:
    failure(ValueError, "generator expression", lambda: list(expand_flag(flag, FACTS)))


def asked(tmp_path: Path, backend: str, flag: str, name: str) -> Request:
    """A variant of a kernel of one source, with this flag."""
    root = write_torch(tmp_path / "many", {backend: "a.cpp"})
    append("build.toml", f'cxx-flags = ["-O2", "{flag}"]\n')(root)
    return request(root, name, tmp_path)


@pytest.mark.parametrize(
    ("backend", "name"), [("cpu", CPU), ("xpu", "torch213-cxx11-xpu20260-x86_64-linux")]
)
def test_the_flags_of_a_component_are_evaluated_for_the_variants_system(
    tmp_path: Path, backend: str, name: str
) -> None:
    flag = "$<$<CXX_COMPILER_ID:MSVC>:/arch:AVX2>$<$<PLATFORM_ID:Linux>:-DHERE>"
    flag += "$<$<PLATFORM_ID:Darwin>:-DMAC>"
    units = collect_units(asked(tmp_path, backend, flag, name), quiet).units
    assert units[0].flags[:2] == ("-O2", "-DHERE")


def test_the_compiler_of_a_cuda_variant_is_the_one_that_nvcc_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clang = program(tmp_path, "clang++", 'test "$1" = --version && echo "clang version 19.1.7"')
    monkeypatch.setenv("NVCC_CCBIN", str(clang))
    what = asked(tmp_path, "cuda", "-D$<CXX_COMPILER_ID>", CUDA)
    assert collect_units(what, quiet).units[0].flags[:2] == ("-O2", "-DClang")


@pytest.mark.rule("KCI506", triggers=True)
def test_a_flag_that_cannot_be_evaluated_is_a_finding(tmp_path: Path) -> None:
    says = r"does not know the generator expression \$<TARGET_FILE:x>"
    what = asked(tmp_path, "cpu", "$<TARGET_FILE:x>", CPU)
    failure(FindingsError, says, collect_units, what, quiet)
