"""Which sources are compiled, with what; and that no path of build.toml leads out of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import quiet, request, write_tree
from conftest import failure
from kci.builders.kernel_files import resolve_inside, source_file
from kci.builders.native.units import collect_units
from kci.builders.request import BuildOptions, Request
from kci.config.reader import parse_kernel
from kci.config.values import Depend
from kci.errors import BuildFailedError, FindingsError, UnsafeError, UsageError
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.selection import select

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


@pytest.mark.rule("KCI503", triggers=True)
@pytest.mark.parametrize(
    "entry",
    [
        "/etc/passwd",
        "../outside.cpp",
        "csrc/../../outside.cpp",
        "C:\\x.cpp",
        "\\\\host\\x.cpp",
        "\\x.cpp",
        "out/x.cpp",
    ],
)
def test_a_path_that_leads_out_of_the_kernel_is_refused(tmp_path: Path, entry: str) -> None:
    root = write_tree(tmp_path / "k", {"csrc/a.cpp": ""})
    write_tree(tmp_path, {"outside.cpp": "", "elsewhere/x.cpp": ""})
    (root / "out").symlink_to(tmp_path / "elsewhere")
    caught = failure(UnsafeError, "", resolve_inside, root, entry, "torch.src")
    assert caught.exit_code == 5
    assert (caught.diagnostics[0].rule, caught.diagnostics[0].path) == (
        "KCI503",
        "build.toml",
    )


@pytest.mark.rule("KCI501", "KCI503", "KCI506", triggers=False)
def test_a_path_that_stays_inside_is_taken(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "k", {"csrc/a.cpp": ""})
    (root / "link.cpp").symlink_to("csrc/a.cpp")
    for entry in ("csrc/a.cpp", "./csrc/a.cpp", "csrc/../csrc/a.cpp", "link.cpp"):
        assert source_file(root, entry, "torch.src") == root / "csrc/a.cpp"


@pytest.mark.rule("KCI506", triggers=True)
@pytest.mark.parametrize(
    "entry",
    [
        "a\nb.cpp",
        "a\x00.cpp",
        "a|b.cpp",
        "",
        "a\x7f.cpp",
        "$(id).cpp",
        "`id`.cpp",
        'a".cpp',
        "a\\b.cpp",
    ],
)
def test_a_path_that_a_build_file_cannot_carry_is_refused(tmp_path: Path, entry: str) -> None:
    caught = failure(FindingsError, "", resolve_inside, tmp_path, entry, "torch.src")
    assert caught.diagnostics[0].rule == "KCI506"


@pytest.mark.rule("KCI501", triggers=True)
@pytest.mark.parametrize(
    ("entry", "says"), [("csrc/none.cpp", "does not exist"), ("csrc", "not a regular file")]
)
def test_a_missing_source_is_named(tmp_path: Path, entry: str, says: str) -> None:
    root = write_tree(tmp_path / "k", {"csrc/a.cpp": ""})
    caught = failure(FindingsError, says, source_file, root, entry, "kernel.x.src")
    assert caught.diagnostics[0].rule == "KCI501"
    assert "kernel.x.src" in caught.message


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
    "bind.cpp",
    "bind.h",
    "csrc/a.cu",
    "csrc/b.cc",
    "csrc/a.cuh",
    "csrc/host.cpp",
    "csrc/late.cu",
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


def test_a_component_joins_at_its_minimum_toolkit(tmp_path: Path) -> None:
    root = kernel(tmp_path, PARTS, *FILES)
    found = collect_units(request(root, "torch213-cxx11-cu132-x86_64-linux", tmp_path), quiet)
    assert "csrc/late.cu" in [unit.shown for unit in found.units]


def test_a_flag_that_old_toolkits_do_not_know_is_dropped_there(tmp_path: Path) -> None:
    root = kernel(tmp_path, PARTS, *FILES)
    old = collect_units(request(root, "torch213-cxx11-cu126-x86_64-linux", tmp_path), quiet)
    assert old.units[1].flags == ("-DCUDA", "-DTWO")
    new = collect_units(request(root, "torch213-cxx11-cu128-x86_64-linux", tmp_path), quiet)
    assert new.units[1].flags == ("-DCUDA", "-static-global-template-stub=false", "-DTWO")


def one_component(backend: str, src: str, more: str = "") -> str:
    return (
        f'[torch]\nsrc = []\n[kernel.one]\nbackend = "{backend}"\ndepends = []\nsrc = ["{src}"]\n'
        f"{more}"
    )


@pytest.mark.parametrize(
    ("backend", "src", "rule"),
    [
        pytest.param(*case, marks=pytest.mark.rule(case[2], triggers=True))
        for case in (
            ("cpu", "a.cu", "KCI502"),
            ("cpu", "a.rs", "KCI502"),
            ("cpu", "a.c", "KCI502"),
            ("cuda", "a.metal", "KCI502"),
            ("cuda", "a.hip", "KCI502"),
            ("cpu", "Makefile", "KCI502"),
            ("cpu", "none.cpp", "KCI501"),
        )
    ],
)
def test_a_source_that_nothing_compiles_is_named(
    tmp_path: Path, backend: str, src: str, rule: str
) -> None:
    root = kernel(tmp_path, one_component(backend, src), *({src} - {"none.cpp"}))
    compute = "cu130" if backend == "cuda" else backend
    with pytest.raises(FindingsError, match=src) as caught:
        collect_units(request(root, f"torch213-cxx11-{compute}-x86_64-linux", tmp_path), quiet)
    assert caught.value.diagnostics[0].rule == rule


@pytest.mark.rule("KCI506", triggers=True)
@pytest.mark.parametrize("key", ["cxx-flags", "cuda-flags"])
def test_a_flag_with_a_line_break_is_refused(tmp_path: Path, key: str) -> None:
    root = kernel(tmp_path, one_component("cuda", "a.cu", f'{key} = ["-DX\\nrule evil"]'), "a.cu")
    with pytest.raises(FindingsError) as caught:
        collect_units(request(root, "torch213-cxx11-cu130-x86_64-linux", tmp_path), quiet)
    assert caught.value.diagnostics[0].rule == "KCI506"


@pytest.mark.rule("KCI503", triggers=True)
def test_an_include_directory_outside_of_the_kernel_is_refused(tmp_path: Path) -> None:
    root = kernel(tmp_path, one_component("cpu", "a.cpp", 'include = ["../.."]'), "a.cpp")
    with pytest.raises(UnsafeError, match=r"kernel\.one\.include"):
        collect_units(request(root, "torch213-cxx11-cpu-x86_64-linux", tmp_path), quiet)


@pytest.mark.rule("KCI508", triggers=True)
def test_archs_that_the_toolkit_cannot_build_are_named(tmp_path: Path) -> None:
    root = kernel(tmp_path, one_component("cuda", "a.cu", 'cuda-capabilities = ["10.0a"]'), "a.cu")
    with pytest.raises(FindingsError, match=r"kernel\.one lists 10\.0a") as caught:
        collect_units(request(root, "torch213-cxx11-cu126-x86_64-linux", tmp_path), quiet)
    assert caught.value.diagnostics[0].rule == "KCI508"


def test_a_variant_with_every_component_left_out_is_refused(tmp_path: Path) -> None:
    root = kernel(tmp_path, one_component("cuda", "a.cu", 'cuda-minver = "13.2"'), "a.cu")
    with pytest.raises(BuildFailedError, match="no component") as caught:
        collect_units(request(root, "torch213-cxx11-cu130-x86_64-linux", tmp_path), quiet)
    assert "cuda-minver" in caught.value.hint


def test_a_source_of_two_components_takes_the_includes_of_the_later_one(tmp_path: Path) -> None:
    second = '[kernel.two]\nbackend = "cpu"\ndepends = []\nsrc = ["./a.cpp"]\ninclude = ["two"]\n'
    root = kernel(tmp_path, one_component("cpu", "a.cpp", 'include = ["one"]\n') + second, "a.cpp")
    (unit,) = collect_units(request(root, "torch213-cxx11-cpu-x86_64-linux", tmp_path), quiet).units
    assert [path.name for path in unit.include] == ["two"]


def test_a_linked_source_is_compiled_as_what_the_link_is_called(tmp_path: Path) -> None:
    root = kernel(tmp_path, one_component("cuda", 'csrc/a.cpp", "csrc/b.cu'), "csrc/a.cpp")
    (root / "csrc/b.cu").symlink_to("a.cpp")
    found = collect_units(request(root, "torch213-cxx11-cu130-x86_64-linux", tmp_path), quiet).units
    assert [(str(unit.source), unit.language) for unit in found] == [
        ("csrc/a.cpp", "CXX"),
        ("csrc/b.cu", "CUDA"),
    ]


def test_sources_of_one_name_have_objects_of_their_own(tmp_path: Path) -> None:
    second = '[kernel.two]\nbackend = "cpu"\ndepends = []\nsrc = ["a.cpp", "x/a.cpp", "y/a.cpp"]\n'
    root = kernel(tmp_path, one_component("cpu", "a.cpp") + second, "a.cpp", "x/a.cpp", "y/a.cpp")
    found = collect_units(request(root, "torch213-cxx11-cpu-x86_64-linux", tmp_path), quiet).units
    assert [unit.object for unit in found] == [
        "obj/000/a.cpp.o",
        "obj/001/a.cpp.o",
        "obj/002/a.cpp.o",
    ]


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
    found = collect_units(
        request(root, "torch213-cxx11-cu130-x86_64-linux", tmp_path, archs=asked), said.append
    )
    archs = {unit.shown: unit.archs for unit in found.units}
    assert (archs["csrc/a.cu"], archs["csrc/c.cu"]) == (one, two)
    told = "component two has no code for" in " ".join(said)
    assert told == (asked in (("9.0a",), ("9.0",))), (
        "functions of a component that the GPU has no use for are there"
    )


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
    archs = {"cuda": 'cuda-capabilities = ["8.0"]', "rocm": 'rocm-archs = ["gfx90a"]'}[backend]
    root = kernel(tmp_path, one_component(backend, "a.cu", archs), "a.cu")
    compute = {"cuda": "cu130", "rocm": "rocm72"}[backend]
    with pytest.raises(UsageError, match=says):
        collect_units(
            request(root, f"torch213-cxx11-{compute}-x86_64-linux", tmp_path, archs=(asked,)), quiet
        )


def test_a_variant_of_an_older_edition_is_compiled_for_the_archs_of_its_day(tmp_path: Path) -> None:
    """What the matrix lists and what the compiler is asked for come from the same list."""
    text = (
        '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        'backends = ["cuda"]\n'
        '[torch]\n[kernel.a]\nbackend = "cuda"\ndepends = []\nsrc = ["a.cu"]\n'
    )
    (tmp_path / "a.cu").touch()
    read = parse_kernel(text.encode())
    for edition, expected in (("2026-08-20", False), ("2026-09-17", True)):
        variants = select(read, load_catalog(edition)).variants
        made = next(variant for variant in variants if str(variant.compute) == "13.0")
        options = BuildOptions(tmp_path / "cache")
        request = Request(
            tmp_path, read.build, made, "_some_kernel_cuda_x", tmp_path / "out", options
        )
        assert collect_units(request, lambda _: None).archs == made.archs
        assert ("10.3" in (made.archs or ())) is expected
