"""Lints of the files that a build.toml names, of their C++ standard and of pybind11."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from conftest import torch_kernel, torch_toml
from kci.config.discovery import RepositorySettings, find_settings
from kci.config.file_lints import lint_file
from kci.config.reader import Kernel, parse_kernel, read_kernel
from kci.diagnostics import Diagnostic, Severity
from kci.matrix.catalog.loading import load_catalog
from kci.plan.check import check_kernels
from kci.plan.inputs.source_lints import (
    MAX_MISSING,
    include_not_listed,
    lint_sources,
    lint_standards,
    pybind_included,
    unconditional_includes,
)
from kci.plan.inputs.source_tree import SourceTree

BUILD = """\
[general]
name = "norm"
version = 1
edition = 5
license = "mit"
backends = ["cuda"]

[torch]
src = ["torch-ext/binding.cpp"]
{torch}

[kernel.norm]
backend = "cuda"
depends = ["torch"]
src = [{src}]
{component}
"""


def make(
    directory: Path, files: dict[str, str], src: list[str], *, torch: str = "", component: str = ""
) -> tuple[Kernel, list[Diagnostic]]:
    quoted = ", ".join(f'"{name}"' for name in src)
    write_tree(
        directory, {"build.toml": BUILD.format(src=quoted, torch=torch, component=component)}
    )
    made = read_kernel(write_tree(directory, {"torch-ext/binding.cpp": "", **files}))
    return made, [*lint_sources(made, SourceTree(directory)), *not_listed(made, directory)]


def not_listed(
    made: Kernel, root: Path, settings: RepositorySettings | None = None
) -> list[Diagnostic]:
    return list(include_not_listed(made, settings or RepositorySettings(), SourceTree(root)))


A, AND_A = {"csrc/a.cu": '#include "a.h"\n', "csrc/a.h": ""}, ["csrc/a.cu"]
SUB = {"csrc/a.h": '#include "sub/b.h"\n#include "a.h"\n', "csrc/sub/b.h": '#include "../a.h"\n'}
MISSING, UNLISTED = ("KCI136", Severity.ERROR), ("KCI138", Severity.WARNING)


Told = list[tuple[str, Severity, int, int, str]]
TOLD: dict[str, tuple[dict[str, str], list[str], Told]] = {
    "missing": ({"csrc/a.cu": ""}, [*AND_A, "csrc/b.cu"],
        [(*MISSING, 15, 21, "did you mean `csrc/a.cu`?")]),
    "a pattern": ({}, ["csrc/*.cu"], [(*MISSING, 15, 8, "patterns are not expanded: name every")]),
    "no name": ({}, [""], [(*MISSING, 15, 8, "paths are relative to the kernel's directory")]),
    "no system has it": ({}, ["nul\\u0000byte"], [(*MISSING, 15, 8, "paths are relative")]),
    "beside its source": (A, AND_A, [(*UNLISTED, 15, 8, 'add "csrc/a.h" to this `src`')]),
    "both": (A, [*AND_A, "b.cu"], [(*MISSING, 15, 21, "paths"), (*UNLISTED, 15, 8, "add")]),
    "each once": (A | SUB | {"csrc/b.cu": A["csrc/a.cu"]}, [*AND_A, "csrc/b.cu"],
        [(*UNLISTED, 15, 8, 'add "csrc/a.h"')]),
    "of listed files": (A | SUB, [*AND_A, "csrc/a.h"], [(*UNLISTED, 15, 21, 'add "csrc/sub/b.h"')]),
} | {
    where: ({"src/a.cu": '#  include  "x.h"', where: ""}, ["src/a.cu"],
        [(*UNLISTED, 15, 8, f'add "{where}"')])
    for where in ("include/x.h", "csrc/x.h", "src/x.h")
}  # fmt: skip


@pytest.mark.rule("KCI136", "KCI138", triggers=True)
def test_what_is_missing_or_in_no_list_is_told_at_its_entry(tmp_path: Path) -> None:
    for name, (files, src, expected) in TOLD.items():
        place = tmp_path / name.replace("/", "-")
        made, found = make(place, files, src, component='include = ["include"]')
        told = [(item.rule, item.severity, item.line, item.column) for item in found]
        assert told == [item[:4] for item in expected], name
        hints = zip(found, expected, strict=True)
        assert all(item.hint.startswith(known[4]) for item, known in hints), name
        errors = lint_sources(made, SourceTree(place), errors_only=True)
        assert errors == [item for item in found if item.severity is Severity.ERROR], name


@pytest.mark.rule("KCI136", triggers=True)
def test_thousands_of_missing_sources_are_counted_and_not_listed(tmp_path: Path) -> None:
    _, found = make(tmp_path, {}, [f"csrc/{number}.cu" for number in range(3000)])
    assert len(found) == MAX_MISSING + 1
    assert found[-1].message == "2950 more sources do not exist"


@pytest.mark.rule("KCI138", triggers=True)
@pytest.mark.parametrize("link", [False, True])
def test_an_include_out_of_the_kernel_has_to_be_declared(tmp_path: Path, link: bool) -> None:
    directory = tmp_path / "kernel"
    place = "common/scale.h" if link else "../../common/scale.h"
    write_tree(tmp_path, {"common/scale.h": "", "kernel/csrc/b.h": ""})
    if link:
        (directory / "csrc/common").symlink_to("../../common")
    made, found = make(directory, {"csrc/a.cu": f'#include "{place}"'}, ["csrc/a.cu"])
    assert found == []
    (found,) = not_listed(made, tmp_path)
    assert (found.rule, found.line, "[[inputs]]" in found.hint) == ("KCI138", 15, not link)
    if not link:
        (tmp_path / "kci.toml").write_text('[[inputs]]\npaths = ["common"]\n')
        assert not_listed(made, tmp_path, find_settings(tmp_path)) == []


@pytest.mark.rule("KCI136", "KCI138", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        "#include <a.h>\n", '// #include "a.h"\n', '/* #include "a.h"\n#include "a.h" */\n',
        'const char* text = "\\"; #include \\"a.h\\"";\n', '#include "elsewhere.h"\n',
        '#include "../../a.h"\n', '#include "/etc/hostname"\n', '#include "listed.h"\r\n', "",
        '#include "../third/party/x.h"', '#include "registration.h"\n#include "data.inc"\n',
    ],
)  # fmt: skip
def test_what_is_no_include_of_an_unlisted_header(tmp_path: Path, text: str) -> None:
    """Nor is what a build sees anyway: a listed folder, an extension of pyext, a generated header.
    What leads out of the kernel is not looked at.
    """
    files = dict.fromkeys(
        ("csrc/a.h", "csrc/listed.h", "third/party/x.h", "torch-ext/data.inc"), ""
    )
    files |= {"torch-ext/registration.h": "", "torch-ext/binding.cpp": text, "csrc/a.cu": text}
    if "registration" in text:
        files["csrc/a.cu"] = ""
    write_tree(tmp_path, {"a.h": "", "secret.h": '#include "a.h"\n'})
    write_tree(tmp_path / "kernel" / "csrc", {"a.h": ""})
    (tmp_path / "kernel" / "csrc" / "out.cu").symlink_to(tmp_path / "secret.h")
    src = ["csrc/a.cu", "csrc/listed.h", "csrc/out.cu", "third", "../nowhere.cu", "/nowhere.cu"]
    _, found = make(tmp_path / "kernel", files, src, torch='pyext = ["py", "inc"]')
    assert found == []


FLAGS = ["-rdc=true", "-rdc true", "--relocatable-device-code=true",
    "-relocatable-device-code=true", "-dc", "--device-c", "-dw", "--device-w", "-dlto",
    "--dlink-time-opt", "-gen-opt-lto", "--gen-opt-lto", "-ewp",
    "-gencode=arch=compute_90,code=lto_90"]  # fmt: skip


def flagged(rule: str, flags: list[str], backend: str = "cuda", key: str = "") -> list[Diagnostic]:
    """The findings of a rule about the flags of a component."""
    component = f"{key or f'{backend}-flags'} = {flags!r}"
    text = BUILD.format(src="", torch="", component=component)
    return lint_file(parse_kernel(text.replace('"cuda"', f'"{backend}"').encode()), [rule])


@pytest.mark.rule("KCI163", triggers=True)
@pytest.mark.parametrize(
    ("flag", "part"),
    [
        *((flag, flag) for flag in (
            "-march=native", "-mcpu=native", "-xHost", "-arch=native", "--offload-arch=native")),
        *((flag, "-march=native") for flag in (
            "-Xcompiler=-march=native", "-Xcompiler=-O3,-march=native",
            "--compiler-options=-fopenmp,-march=native,-g",
            "$<$<CXX_COMPILER_ID:GNU>:-march=native>")),
    ],
)  # fmt: skip
def test_a_flag_for_the_machine_that_builds(flag: str, part: str) -> None:
    for before, column in (("-O3", 22), ("-Xcompiler", 29)):
        (found,) = flagged("KCI163", [before, flag])
        assert (found.message.split("`")[1], found.column) == (part, column)
    (found,) = flagged("KCI163", ["-arch", "native"])
    assert (found.message.split("`")[1], found.column) == ("-arch native", 24)


@pytest.mark.rule("KCI168", triggers=True)
@pytest.mark.parametrize(
    "flags",
    [*([flag] for flag in FLAGS), ["-rdc", "true"], ["--relocatable-device-code", "true"],
        ["-O3", "-dc", "-g"]],
)  # fmt: skip
def test_a_flag_that_needs_a_device_link(flags: list[str]) -> None:
    (found,) = flagged("KCI168", flags)
    assert found.line == 16, "the flag's own line"
    (found,) = flagged("KCI168", ["-fgpu-rdc"], "rocm", "hip-flags")
    assert "`-fgpu-rdc`" in found.message


@pytest.mark.rule("KCI163", "KCI168", triggers=False)
def test_flags_that_need_no_device_link_and_that_all_machines_take() -> None:
    flags = "-rdc=false -rdc false -fno-gpu-rdc -DX=-dcx -dcomp "
    flags += "--generate-code=arch=compute_90,code=sm_90"
    assert flagged("KCI168", flags.split()) == []
    # of the compiler of the host, to which it means something else
    assert flagged("KCI168", ["-dc"], "cpu", "cxx-flags") == []
    flags = "-mtune=native -march=x86-64 -march=x86-64-v2 -march=armv8-a -msse4.2 -mno-avx2 "
    flags += "-arch=sm_90 -mprefer-vector-width=256 -x -xc++ -DX=-march -mcmodel=large "
    flags += "--expt-relaxed-constexpr -march=x86-64-v3 -march=icelake-server -mavx2 -mamx-tile "
    flags += "-march=armv8.2-a+sve -mcpu=neoverse-v1 -xCORE-AVX512 /arch:AVX2"
    assert flagged("KCI163", flags.split()) == []


INCLUDES = '#include "a.h"\n#include <torch/all.h>\n'


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "a.cu").write_text(INCLUDES)
    (tmp_path / "a.cpp").write_text(INCLUDES)
    return tmp_path


def said(
    sources: Path, flags: str, src: str = "a.cu", torch: str = "",
    backend: str = "cuda", key: str = "cuda-flags",
) -> list[str]:  # fmt: skip
    parts = f'[kernel.a]\nbackend = "{backend}"\ndepends = []\nsrc = ["{src}"]\n{key} = [{flags}]\n'
    made = torch_kernel([backend], torch=torch, components=parts)
    found = list(lint_standards(made, load_catalog(), SourceTree(sources)))
    assert {item.rule for item in found} <= {"KCI159"}
    return [item.message for item in found]


@pytest.mark.rule("KCI159", triggers=True)
@pytest.mark.parametrize(
    ("backend", "key", "flag", "src"),
    [
        ("cuda", "cuda-flags", "-std=c++17", "a.cu"), ("cuda", "cuda-flags", "--std=c++14", "a.cu"),
        ("cuda", "cxx-flags", "-std=gnu++98", "a.cpp"), ("rocm", "hip-flags", "-std=c++17", "a.cu"),
        ("xpu", "sycl-flags", "-std=c++17", "a.cpp"), ("cpu", "cxx-flags", "-std=c++17", "a.cpp"),
    ],
)  # fmt: skip
def test_an_older_standard_is_told_with_the_versions_of_torch(
    sources: Path, backend: str, key: str, flag: str, src: str
) -> None:
    (message,) = said(sources, f'"-O3", "{flag}"', key=key, backend=backend, src=src)
    assert message.startswith(f"`{flag}` is older than C++")
    assert message.endswith("2.14 ask for")


BINDINGS = torch_toml({"cpu": "b.cpp"}, binding="a.cpp", more='cxx-flags = ["-std=c++17"]\n')


@pytest.mark.rule("KCI159", triggers=True)
def test_the_bindings_have_flags_too_and_a_check_finds_them(sources: Path) -> None:
    (found,) = lint_standards(parse_kernel(BINDINGS.encode()), load_catalog(), SourceTree(sources))
    asks = "C++20, which the headers of torch 2.14 ask for"
    assert found.message == f"`-std=c++17` is older than {asks}"
    assert (found.line, found.column) == (9, 14)
    (sources / "build.toml").write_text(BINDINGS)
    checked = check_kernels([str(sources)]).diagnostics
    assert [item.line for item in checked if item.rule == "KCI159"] == [9]


@pytest.mark.rule("KCI159", triggers=False)
@pytest.mark.parametrize(
    ("flags", "torch"),
    [
        ('"-O3"', ""), ('"-std=c++20"', ""), ('"-std=gnu++23"', ""), ('"-std=c++2b"', ""),
        ('"-std=c++17"', 'stable-abi = "2.11"'), ('"-std=c++17"', 'maxver = "2.13"'),
        ('"-DX=-std=c++17"', ""),
    ],
)  # fmt: skip
def test_what_is_no_older_standard(sources: Path, flags: str, torch: str) -> None:
    assert said(sources, flags, torch=torch) == []


@pytest.mark.rule("KCI159", triggers=False)
@pytest.mark.parametrize("src", ["plain.cu", "gone.cu", "../a.cu", "folder", "a.cpp"])
def test_sources_that_include_no_such_header_may_have_an_older_one(sources: Path, src: str) -> None:
    text = "#include <cuda_runtime.h>\n#include <torch/headeronly/macros/Macros.h>\n"
    (sources / "plain.cu").write_text(text)
    (sources / "folder").mkdir()
    assert said(sources, '"-std=c++17"', src=src) == []


def pybind_said(folder: Path, files: dict[str, str], more: str = "") -> list[str]:
    write_tree(folder, files)
    part = '[kernel.a]\nbackend = "cpu"\ndepends = ["torch"]\nsrc = ["csrc/a.cpp", "csrc/a.h"]\n'
    parts = f"{part}{more}\n"
    found = list(pybind_included(torch_kernel(["cpu"], components=parts), SourceTree(folder)))
    assert {item.rule for item in found} <= {"KCI167"}
    assert all("torch/all.h" in item.hint for item in found)
    return [item.message for item in found]


@pytest.mark.rule("KCI167", triggers=True)
@pytest.mark.parametrize(
    "include",
    [
        "<torch/extension.h>", '"torch/extension.h"', "<torch/python.h>",
        "<torch/csrc/utils/pybind.h>", "<pybind11/pybind11.h>", "<pybind11/stl.h>",
    ],
)  # fmt: skip
def test_each_header_with_pybind_is_told(tmp_path: Path, include: str) -> None:
    (message,) = pybind_said(tmp_path, {"csrc/a.cpp": f"#include <vector>\n#include {include}\n"})
    assert message.startswith(f"'csrc/a.cpp' includes <{include[1:-1]}>: ")
    assert "Python's limited API (Py_LIMITED_API)" in message


@pytest.mark.rule("KCI167", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        "#include <torch/all.h>\n",
        "// #include <torch/extension.h>\n/*\n#include <torch/extension.h>\n*/\n",
        "#if !defined(__CUDACC__)\n#include <pybind11/functional.h>\n#endif\n",
        "#ifdef WITH_PYBIND\n#define OTHER\n#include <torch/extension.h>\n#endif\n",
        "#ifndef A\n#define B\n#include <torch/extension.h>\n#endif\n",
        "#undef Py_LIMITED_API\n#include <torch/extension.h>\n",
        '#include "torch/extension.h"\n',
        '#include "a.h"\n',
    ],
)
def test_what_may_compile_is_not_told(tmp_path: Path, text: str) -> None:
    """A header through one of the kernel, one behind a condition, and one of the kernel's own with
    that name.
    """
    files = {"csrc/a.cpp": text, "csrc/a.h": "#include <torch/extension.h>\n"}
    own = {"csrc/torch/extension.h": "#include <torch/all.h>\n"} if '"torch' in text else {}
    assert pybind_said(tmp_path, files | own) == []
    including = {"csrc/a.cpp": "#include <torch/python.h>\n"}
    assert pybind_said(tmp_path, including, 'cxx-flags = ["-UPy_LIMITED_API"]') == []


def test_conditions_within_conditions() -> None:
    text = b"#ifndef G\n#define G\n#if A\n#if B\n#include <b>\n#endif\n#include <a>\n#endif\n"
    text += b"#include <c>\n#endif\n#include <d>\n"
    assert unconditional_includes(text) == ["c", "d"]
    assert unconditional_includes(b'#endif\n#include <a>\n#define X\n# include "b"') == ["a", "b"]
