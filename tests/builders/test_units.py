"""Which sources are compiled, with what; and that no path of build.toml leads out of the kernel."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from buildkit import CPU, CUDA, program, quiet, request, write_tree
from conftest import failure, torch_toml, write_torch
from kci.builders.kernel_files import resolve_inside
from kci.builders.native.recipe import part_objects
from kci.builders.native.units import (
    Sources,
    Unit,
    collect_units,
    expand_flag,
    sources_with_name,
)
from kci.builders.request import BuildPart, read_part
from kci.config.reader import read_kernel
from kci.config.values import Depend
from kci.errors import BuildFailedError, FindingsError, KciError, UnsafeError, UsageError
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.selection import select
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTree
from planning import append

HEAD = """
[general]
name = "many"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
"""


def kernel(tmp_path: Path, text: str, *files: str) -> Path:
    sources = dict.fromkeys(files, "// a source\n")
    return write_tree(tmp_path / "many", {"build.toml": HEAD + text, **sources})


LEADING_OUT = (
    *("/etc/passwd", "../outside.cpp", "csrc/../../outside.cpp", "out/x.cpp", "C:\\x.cpp"),
    *("\\\\host\\x.cpp", "\\x.cpp"),
)
NOT_CARRIED = ("", *(f"{name}.cpp" for name in ("a\nb", "a\x00", "a|b", "a\x7f", "$(id)", "`id`")))
NOT_CARRIED += ('a".cpp', "a\\b.cpp")


@pytest.mark.parametrize(
    ("rule", "entry"),
    [
        pytest.param(rule, entry, marks=pytest.mark.rule(rule, triggers=True))
        for rule, entries in (("KCI503", LEADING_OUT), ("KCI506", NOT_CARRIED))
        for entry in entries
    ],
)
def test_a_path_that_leads_out_or_that_a_build_file_cannot_carry_is_refused(
    tmp_path: Path, rule: str, entry: str
) -> None:
    root = write_tree(tmp_path / "k", {"csrc/a.cpp": ""})
    write_tree(tmp_path, {"outside.cpp": "", "elsewhere/x.cpp": ""})
    (root / "out").symlink_to(tmp_path / "elsewhere")
    kind = UnsafeError if rule == "KCI503" else FindingsError
    caught: KciError = failure(kind, "torch.src names", resolve_inside, root, entry, "torch.src")
    (found,) = caught.diagnostics
    assert (caught.exit_code, found.path) == (5 if kind is UnsafeError else 1, "build.toml")
    assert found.rule == rule


@pytest.mark.rule("KCI501", "KCI503", "KCI506", triggers=False)
def test_a_path_that_stays_inside_is_taken(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "k", {"csrc/a.cpp": ""})
    (root / "link.cpp").symlink_to("csrc/a.cpp")
    for entry in ("csrc/a.cpp", "./csrc/a.cpp", "csrc/../csrc/a.cpp", "link.cpp"):
        assert resolve_inside(root, entry, "torch.src") == root / "csrc/a.cpp"


PARTS = """
[torch]
src = ["bind.cpp", "bind.h"]
include = ["api"]
cxx-flags = ["-DBIND"]

[kernel.one]
backend = "cuda"
depends = ["torch", "cutlass_3_8"]
src = ["csrc/a.cu", "csrc/b.cc", "csrc/a.cuh"]
include = ["csrc/one"]
cxx-flags = ["-DCXX"]
cuda-flags = ["-DCUDA", "-static-global-template-stub=false"]
cuda-capabilities = ["8.0", "9.0a"]

[kernel.two]
backend = "cuda"
depends = ["torch"]
src = ["csrc/a.cu", "csrc/a.cu"]
cuda-flags = ["-DTWO"]
cuda-capabilities = ["12.0+PTX", "8.0"]

[kernel.late]
backend = "cuda"
depends = []
src = ["csrc/late.cu"]
cuda-minver = "13.2"

[kernel.host]
backend = "cpu"
depends = ["torch"]
src = ["csrc/host.cpp"]
"""
FILES = (
    *("bind.cpp", "bind.h", "csrc/a.cu", "csrc/b.cc", "csrc/a.cuh"),
    *("csrc/host.cpp", "csrc/late.cu"),
)


@pytest.mark.rule("KCI502", "KCI506", "KCI508", triggers=False)
def test_flags_includes_and_archs_are_per_component(tmp_path: Path) -> None:
    root = kernel(tmp_path, PARTS, *FILES)
    said: list[str] = []
    found = collect_units(request(root, "torch213-cxx11-cu130-x86_64-linux", tmp_path), said.append)
    rows = [
        (unit.shown, unit.language, [path.name for path in unit.include], unit.flags, unit.archs)
        for unit in found.units
    ]
    both = ("-DCUDA", "-static-global-template-stub=false", "-DTWO")
    assert rows == [
        ("bind.cpp", "CXX", ["api"], ("-DBIND",), ()),
        ("csrc/a.cu", "CUDA", ["one"], both, ("8.0", "9.0a", "12.0+PTX")),
        ("csrc/b.cc", "CXX", ["one"], ("-DCXX",), ()),
    ]
    assert len({unit.object for unit in found.units}) == len(found.units)
    assert found.archs == ("12.0+PTX", "8.0", "9.0a")
    assert found.depends == (Depend.CUTLASS_3_8, Depend.TORCH)
    assert [unit.depends for unit in found.units] == [(), *[(Depend.TORCH, Depend.CUTLASS_3_8)] * 2]
    assert said == ["component late is left out: it needs CUDA 13.2, and this variant has 13.0"]


def sources(root: Path, compute: str = "cu130", **options: Any) -> Sources:
    """What is compiled for a variant of torch 2.13."""
    name = f"torch213-cxx11-{compute}-x86_64-linux"
    return collect_units(request(root, name, root.parent, **options), quiet)


def test_what_depends_on_the_toolkit(tmp_path: Path) -> None:
    """A component joins at its minimum, and a flag is dropped that old ones do not know."""
    root = kernel(tmp_path, PARTS, *FILES)
    assert sources(root, "cu126").units[1].flags == ("-DCUDA", "-DTWO")
    newer = ("-DCUDA", "-static-global-template-stub=false", "-DTWO")
    assert sources(root, "cu128").units[1].flags == newer
    assert "csrc/late.cu" in [unit.shown for unit in sources(root, "cu132").units]


def one_component(backend: str, src: str, more: str = "") -> str:
    head = f'[torch]\nsrc = []\n[kernel.one]\nbackend = "{backend}"\ndepends = []\n'
    return f'{head}src = ["{src}"]\n{more}'


@pytest.mark.parametrize(
    ("rule", "compute", "src", "more", "says"),
    [
        pytest.param(*case, marks=pytest.mark.rule(case[0], triggers=True))
        for case in (
            *(("KCI502", "cpu", name, "", name) for name in ("a.cu", "a.rs", "a.c", "Makefile")),
            *(("KCI502", "cu130", name, "", name) for name in ("a.metal", "a.hip")),
            (
                "KCI501",
                "cpu",
                "none.cpp",
                "",
                r"one\.src names .none\.cpp., which does not",
            ),
            ("KCI501", "cpu", ".", "", "not a regular file"),
            ("KCI506", "cu130", "a.cu", 'cxx-flags = ["-DX\\nrule evil"]', ""),
            ("KCI506", "cu130", "a.cu", 'cuda-flags = ["-DX\\nrule evil"]', ""),
            ("KCI503", "cpu", "a.cpp", 'include = ["../.."]', r"kernel\.one\.include"),
            ("KCI508", "cu126", "a.cu", 'cuda-capabilities = ["10.0a"]', r"one lists 10\.0a"),
        )
    ],
)
def test_what_cannot_be_compiled_is_named(
    tmp_path: Path, rule: str, compute: str, src: str, more: str, says: str
) -> None:
    """A source that nothing compiles or that is not there, a flag with a line break, an include
    directory outside of the kernel, and archs that the toolkit cannot build.
    """
    text = one_component("cpu" if compute == "cpu" else "cuda", src, more)
    root = kernel(tmp_path, text, *({src} - {"none.cpp", "."}))
    kind = UnsafeError if rule == "KCI503" else FindingsError
    caught: FindingsError = failure(kind, says, sources, root, compute)
    assert caught.diagnostics[0].rule == rule


def test_a_variant_with_every_component_left_out_is_refused(tmp_path: Path) -> None:
    root = kernel(tmp_path, one_component("cuda", "a.cu", 'cuda-minver = "13.2"'), "a.cu")
    assert "cuda-minver" in failure(BuildFailedError, "no component", sources, root).hint


def test_a_source_is_known_by_its_path(tmp_path: Path) -> None:
    """That of two components takes the includes of the later one, a link is compiled as what it is
    called, and sources of one name have objects of their own.
    """
    second = '[kernel.two]\nbackend = "cuda"\ndepends = []\ninclude = ["two"]\nsrc = ["./a.cpp", '
    second += '"x/a.cpp", "y/b.cu"]\n'
    first = one_component("cuda", "a.cpp", 'include = ["one"]\n')
    root = kernel(tmp_path, first + second, "a.cpp", "x/a.cpp", "y/a.cpp")
    (root / "y/b.cu").symlink_to("a.cpp")
    found = [(str(made.source), made.language, made.object) for made in sources(root).units]
    assert found == [
        ("a.cpp", "CXX", "obj/000/a.cpp.o"), ("x/a.cpp", "CXX", "obj/001/a.cpp.o"),
        ("y/b.cu", "CUDA", "obj/002/b.cu.o"),
    ]  # fmt: skip
    assert [path.name for path in sources(root).units[0].include] == ["two"]


@pytest.mark.parametrize(
    ("asked", "one", "two"),
    [
        (("9.0a",), ("9.0a",), ("8.0",)),
        (("9.0",), ("9.0a",), ("8.0",)),
        (("8.6",), ("8.0",), ("8.0",)),
        (("12.0", "8.0"), ("8.0",), ("8.0", "12.0+PTX")),
        ((), ("8.0", "9.0a"), ("8.0", "12.0+PTX")),
    ],
)
def test_a_quick_build_compiles_for_the_archs_that_were_asked_for(
    tmp_path: Path, asked: tuple[str, ...], one: tuple[str, ...], two: tuple[str, ...]
) -> None:
    parts = PARTS.replace('src = ["csrc/a.cu", "csrc/a.cu"]', 'src = ["csrc/c.cu"]')
    root = kernel(tmp_path, parts, *FILES, "csrc/c.cu")
    said: list[str] = []
    found = collect_units(request(root, CUDA, tmp_path, archs=asked), said.append)
    archs = {unit.shown: unit.archs for unit in found.units}
    assert (archs["csrc/a.cu"], archs["csrc/c.cu"]) == (one, two)
    # Functions of a component that the GPU has no use for are there.
    told = "component two has no code for" in " ".join(said)
    assert told == (asked in (("9.0a",), ("9.0",)))


@pytest.mark.parametrize(
    ("backend", "asked", "says"),
    [
        ("cuda", "sm_90", "CUDA 13.0 knows no arch 'sm_90'"),
        ("cuda", "90", "CUDA 13.0 knows no arch '90'"),
        ("cuda", "7.5", "no component has code for 7.5"),
        ("rocm", "gfx1100", "no component has code for gfx1100"),
    ],
)
def test_a_quick_build_for_a_gpu_that_the_kernel_has_no_code_for_is_refused(
    tmp_path: Path, backend: str, asked: str, says: str
) -> None:
    compute, archs = {
        "cuda": ("cu130", 'cuda-capabilities = ["8.0"]'),
        "rocm": ("rocm72", 'rocm-archs = ["gfx90a"]'),
    }[backend]
    root = kernel(tmp_path, one_component(backend, "a.cu", archs), "a.cu")
    failure(UsageError, says, sources, root, compute, archs=(asked,))


def test_a_variant_of_an_older_edition_is_compiled_for_the_archs_of_its_day(tmp_path: Path) -> None:
    """What the matrix lists and what the compiler is asked for come from the same list."""
    read = read_kernel(write_torch(tmp_path, {"cuda": "a.cu"}))
    for edition, expected in (("2026-08-20", False), ("2026-09-17", True)):
        variants = select(read, load_catalog(edition)).variants
        made = next(variant for variant in variants if str(variant.compute) == "13.0")
        found = collect_units(request(tmp_path, CUDA, tmp_path, variant=made), quiet)
        assert found.archs == made.archs
        assert ("10.3" in (made.archs or ())) is expected


# --- parts ---


def share(number: int, language: str = "CXX", archs: int = 0) -> Unit:
    source, made = f"csrc/{number:03}.cpp", f"obj/{number:03}/{number}.o"
    return Unit(PurePosixPath(source), source, made, language, (), (), archs=("8.0",) * archs)


def test_the_shares_follow_from_the_sources_alone() -> None:
    units = tuple(
        share(number, "CUDA" if number % 3 else "CXX", number % 4) for number in range(41)
    )
    made = [part_objects(units, BuildPart(number, 4)) for number in range(1, 5)]
    assert [part_objects(units[::-1], BuildPart(number, 4)) for number in range(1, 5)] == made
    assert sorted(name for objects in made for name in objects) == sorted(
        item.object for item in units
    )
    assert [len(objects) for objects in made] == [11, 10, 10, 10]


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "01/2", "1/2/3", "-1/2", "1/99999", "a/b"]
)
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(UsageError, match="is not a part"):
        read_part(text)


# --- CMake's generator expressions in flags (docs/builders.md) ---

VALUES = {
    "CXX_COMPILER_ID": "GNU", "CUDA_COMPILER_ID": "NVIDIA", "PLATFORM_ID": "Linux",
    "COMPILE_LANGUAGE": "CXX", "CONFIG": "Release",
}  # fmt: skip


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
    assert list(expand_flag(flag, VALUES)) == flags


UNKNOWN = "$< $<1:-x $<TARGET_FILE:x> $<CUDA_COMPILER_VERSION> $<:x> $<$<$< $<$<NOT:$<OF>>:x>"


@pytest.mark.parametrize("flag", UNKNOWN.split())
def test_what_is_not_known_is_refused(flag: str) -> None:
    failure(ValueError, "generator expression", lambda: list(expand_flag(flag, VALUES)))


@pytest.mark.rule("KCI506", triggers=True)
def test_flags_are_evaluated_for_the_variants_system_and_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a CUDA variant is the one that nvcc has."""
    clang = program(tmp_path, "clang++", 'test "$1" = --version && echo "clang version 19.1.7"')
    monkeypatch.setenv("NVCC_CCBIN", str(clang))
    here = "$<$<CXX_COMPILER_ID:MSVC>:/arch:AVX2>$<$<PLATFORM_ID:Linux>:-DHERE>"
    here += "$<$<PLATFORM_ID:Darwin>:-DMAC>"

    def evaluated(backend: str, name: str, flag: str) -> str:
        root = write_torch(tmp_path / backend, {backend: "a.cpp"})
        append("build.toml", f'cxx-flags = ["-O2", "{flag}"]\n')(root)
        return collect_units(request(root, name, tmp_path), quiet).units[0].flags[1]

    assert evaluated("cpu", CPU, here) == "-DHERE"
    xpu = "torch213-cxx11-xpu20260-x86_64-linux"
    assert evaluated("xpu", xpu, f"{here}$<CXX_COMPILER_ID>") == "-DHEREIntelLLVM"
    assert evaluated("cuda", CUDA, "-D$<CXX_COMPILER_ID>") == "-DClang"
    says = r"does not know the generator expression \$<TARGET_FILE:x>"
    shutil.rmtree(tmp_path / "cpu")
    failure(FindingsError, says, evaluated, "cpu", CPU, "$<TARGET_FILE:x>")


# --- which sources are given the kernel's id: the rest is not compiled again when it changes ---

NAMED_LISTED = 'csrc/a.cpp", "csrc/b.cpp", "csrc/b.h'
BUILD = torch_toml({"cpu": NAMED_LISTED}, "some", "bind.cpp") + 'include = ["."]\n'
NAMED = ("bind.cpp", "csrc/a.cpp", "csrc/b.cpp")
NAMED_FILES = {
    "build.toml": BUILD,
    "bind.cpp": "REGISTER_EXTENSION(TORCH_EXTENSION_NAME)\n",
    "csrc/a.cpp": "",
    "csrc/b.cpp": '#include "b.h"\n',
    "csrc/b.h": "",
}


def named(root: Path, files: dict[str, str]) -> set[str]:
    """The sources of a kernel in a repository; what is below `common/` beside it may be
    included.
    """
    kernel = write_tree(root / "kernel", {**NAMED_FILES, **files})
    common = write_tree(root, {"common/shared.h": files.pop("common/shared.h", "")})
    if "real.cpp" in files:
        (kernel / "bind.cpp").unlink()
        (kernel / "bind.cpp").symlink_to("real.cpp")
    inputs = KernelInputs(read_kernel(kernel).build, kernel, SourceTree(common), ["common"])
    return sources_with_name(inputs, request(kernel, CPU, root).variant, NAMED)


@pytest.mark.parametrize(
    ("files", "all_of_them"),
    [
        ({}, False),
        ({"real.cpp": NAMED_FILES["bind.cpp"]}, False),  # bind.cpp is a link to it
        ({"vendored/module.cpp": "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)"}, False),
        ({"docs.md": "TORCH_EXTENSION_NAME"}, False),
        ({"csrc/b.h": "// TORCH_EXTENSION_NAME"}, True),
        ({"common/shared.h": "// TVM_FFI_EXTENSION_NAME"}, True),
        ({"csrc/a.cpp": "#  include <../bind.cpp>\n"}, True),
    ],
)
def test_a_mention_counts_for_all_that_may_include_it(
    tmp_path: Path, files: dict[str, str], all_of_them: bool
) -> None:
    assert named(tmp_path, files) == (set(NAMED) if all_of_them else {"bind.cpp"})
