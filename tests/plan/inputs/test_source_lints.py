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


@pytest.mark.rule("KCI136", triggers=True)
@pytest.mark.rule("KCI138", triggers=False)
def test_a_missing_source_is_an_error_at_its_entry(tmp_path: Path) -> None:
    _, found = make(tmp_path, {"csrc/a.cu": ""}, ["csrc/a.cu", "csrc/b.cu"])
    assert [(item.rule, item.line, item.column) for item in found] == [("KCI136", 15, 21)]


@pytest.mark.rule("KCI136", triggers=True)
@pytest.mark.parametrize("name", ["csrc/*.cu", "", "nul\\u0000byte"])
def test_patterns_and_impossible_names_do_not_exist(tmp_path: Path, name: str) -> None:
    _, found = make(tmp_path, {"csrc/a.cu": ""}, [name])
    assert [item.rule for item in found] == ["KCI136"]


@pytest.mark.rule("KCI136", triggers=True)
def test_thousands_of_missing_sources_are_counted_and_not_listed(tmp_path: Path) -> None:
    _, found = make(tmp_path, {}, [f"csrc/{number}.cu" for number in range(3000)])
    assert len(found) == MAX_MISSING + 1
    assert found[-1].message == "2950 more sources do not exist"


@pytest.mark.rule("KCI136", triggers=False)
def test_what_escapes_is_not_looked_at(tmp_path: Path) -> None:
    make(tmp_path, {}, ["../nowhere.cu", "/nowhere.cu"])


@pytest.mark.rule("KCI138", triggers=True)
def test_a_header_beside_its_source_has_to_be_listed(tmp_path: Path) -> None:
    _, found = make(tmp_path, {"csrc/a.cu": '#include "a.h"\n', "csrc/a.h": ""}, ["csrc/a.cu"])
    told = [(item.rule, item.line, item.column, item.hint) for item in found]
    assert told == [("KCI138", 15, 8, 'add "csrc/a.h" to this `src`')]


@pytest.mark.rule("KCI136", triggers=True)
@pytest.mark.rule("KCI138", triggers=True)
def test_who_asks_for_errors_only_gets_all_of_them_and_no_warning(tmp_path: Path) -> None:
    files = {"csrc/a.cu": '#include "a.h"\n', "csrc/a.h": ""}
    made, found = make(tmp_path, files, ["csrc/a.cu", "csrc/b.cu"])
    told = [(item.rule, item.severity) for item in found]
    assert told == [("KCI136", Severity.ERROR), ("KCI138", Severity.WARNING)]
    assert lint_sources(made, SourceTree(tmp_path), errors_only=True) == found[:1]


@pytest.mark.rule("KCI138", triggers=True)
@pytest.mark.parametrize("link", [False, True])
def test_an_include_out_of_the_kernel_has_to_be_declared(tmp_path: Path, link: bool) -> None:
    directory = tmp_path / "kernel"
    (directory / "csrc").mkdir(parents=True)
    place = "common/scale.h" if link else "../../common/scale.h"
    write_tree(tmp_path, {"common/scale.h": ""})
    if link:
        (directory / "csrc/common").symlink_to("../../common")
    made, found = make(directory, {"csrc/a.cu": f'#include "{place}"'}, ["csrc/a.cu"])
    assert found == []
    (found,) = not_listed(made, tmp_path)
    assert (found.rule, found.line, "[[inputs]]" in found.hint) == ("KCI138", 15, not link)
    if not link:
        (tmp_path / "kci.toml").write_text('[[inputs]]\npaths = ["common"]\n')
        assert not_listed(made, tmp_path, find_settings(tmp_path)) == []


@pytest.mark.rule("KCI138", triggers=True)
@pytest.mark.parametrize(
    ("where", "component"),
    [("include/x.h", 'include = ["include"]'), ("csrc/x.h", ""), ("src/x.h", "")],
)
def test_include_folders_and_csrc_are_searched(tmp_path: Path, where: str, component: str) -> None:
    files = {"src/a.cu": '#  include  "x.h"', where: ""}
    _, found = make(tmp_path, files, ["src/a.cu"], component=component)
    assert [item.rule for item in found] == ["KCI138"]


@pytest.mark.rule("KCI138", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        "#include <a.h>\n",
        '// #include "a.h"\n',
        '/* #include "a.h"\n#include "a.h" */\n',
        'const char* text = "\\"; #include \\"a.h\\"";\n',
        '#include "elsewhere.h"\n',
        '#include "../../a.h"\n',
        '#include "/etc/hostname"\n',
        '#include "listed.h"\r\n',
        "",
    ],
)
def test_what_is_no_include_of_an_unlisted_header(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.h").write_text("")
    files = {"csrc/a.cu": text, "csrc/a.h": "", "csrc/listed.h": ""}
    make(tmp_path / "kernel", files, ["csrc/a.cu", "csrc/listed.h"])


@pytest.mark.rule("KCI138", triggers=False)
def test_headers_that_a_build_sees_anyway(tmp_path: Path) -> None:
    files = {
        "torch-ext/binding.cpp": '#include "registration.h"\n#include "data.inc"\n',
        "torch-ext/registration.h": "",  # generated
        "torch-ext/data.inc": "",  # an extension of pyext
        "csrc/a.cu": '#include "../third/party/x.h"',
        "third/party/x.h": "",  # a listed directory
    }
    make(tmp_path, files, ["csrc/a.cu", "third"], torch='pyext = ["py", "inc"]')


def test_a_link_out_of_the_kernel_is_not_read(tmp_path: Path) -> None:
    directory = tmp_path / "kernel"
    (directory / "csrc").mkdir(parents=True)
    (tmp_path / "secret.h").write_text('#include "a.h"\n')
    (directory / "csrc" / "a.cu").symlink_to(tmp_path / "secret.h")
    _, found = make(directory, {"csrc/a.h": ""}, ["csrc/a.cu"])
    assert found == []


def processor_flags(
    directory: Path, flags: list[str], files: dict[str, str]
) -> list[tuple[str, str, int]]:
    """The findings about flags of a component with these sources."""
    quoted = ", ".join(f"'{flag}'" for flag in flags)
    made, found = make(directory, files, list(files), component=f"cuda-flags = [{quoted}]")
    found += lint_file(made, ["KCI163"])
    about = [item for item in found if item.rule > "KCI162"]
    return [(item.rule, item.message.split("`")[1], item.column) for item in about]


@pytest.mark.rule("KCI163", triggers=True)
@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("-march=native", "-march=native"),
        ("-mcpu=native", "-mcpu=native"),
        ("-Xcompiler=-march=native", "-march=native"),
        ("-Xcompiler=-O3,-march=native", "-march=native"),
        ("--compiler-options=-fopenmp,-march=native,-g", "-march=native"),
        ("$<$<CXX_COMPILER_ID:GNU>:-march=native>", "-march=native"),
        ("-xHost", "-xHost"),
        ("-arch=native", "-arch=native"),
        ("--offload-arch=native", "--offload-arch=native"),
    ],
)
def test_a_flag_for_the_machine_that_builds(tmp_path: Path, flag: str, part: str) -> None:
    assert processor_flags(tmp_path, ["-O3", flag], {"a.cu": ""}) == [("KCI163", part, 22)]
    behind = processor_flags(tmp_path, ["-Xcompiler", flag], {"a.cu": "__get_cpuid"})
    assert behind == [("KCI163", part, 29)]


@pytest.mark.rule("KCI163", triggers=True)
def test_a_flag_in_two_parts(tmp_path: Path) -> None:
    assert processor_flags(tmp_path, ["-arch", "native"], {"a.cu": ""}) == [
        ("KCI163", "-arch native", 24)
    ]


@pytest.mark.rule("KCI168", triggers=True)
@pytest.mark.parametrize(
    "flags",
    [
        ["-rdc=true"], ["-rdc", "true"], ["-rdc true"], ["--relocatable-device-code=true"],
        ["-relocatable-device-code=true"],
        ["--relocatable-device-code", "true"], ["-dc"], ["--device-c"], ["-dw"], ["--device-w"],
        ["-dlto"],
        ["--dlink-time-opt"], ["-gen-opt-lto"], ["--gen-opt-lto"], ["-ewp"],
        ["-gencode=arch=compute_90,code=lto_90"],
        ["-O3", "-dc", "-g"],
    ],
)  # fmt: skip
def test_a_flag_that_needs_a_device_link(tmp_path: Path, flags: list[str]) -> None:
    (found,) = relocatable(tmp_path, "cuda", "cuda-flags", flags)
    assert found.rule == "KCI168"
    assert found.line == 16, "the flag's own line"


@pytest.mark.rule("KCI168", triggers=True)
def test_a_flag_of_hip_that_needs_a_device_link(tmp_path: Path) -> None:
    (found,) = relocatable(tmp_path, "rocm", "hip-flags", ["-fgpu-rdc"])
    assert "`-fgpu-rdc`" in found.message


@pytest.mark.rule("KCI168", triggers=False)
def test_flags_that_need_no_device_link(tmp_path: Path) -> None:
    flags = [
        "-rdc=false", "-rdc", "false", "-fno-gpu-rdc", "-DX=-dcx", "-dcomp",
        "--generate-code=arch=compute_90,code=sm_90",
    ]  # fmt: skip
    assert relocatable(tmp_path, "cuda", "cuda-flags", flags) == []
    # of the compiler of the host, to which it means something else
    assert relocatable(tmp_path, "cpu", "cxx-flags", ["-dc"]) == []


def relocatable(directory: Path, backend: str, key: str, flags: list[str]) -> list[Diagnostic]:
    """The findings about flags for device code."""
    text = BUILD.format(src="", torch="", component=f"{key} = {flags!r}").replace(
        '"cuda"', f'"{backend}"'
    )
    (directory / "build.toml").write_text(text)
    return lint_file(read_kernel(directory), ["KCI168"])


NEWER = [
    "-march=x86-64-v3", "-march=x86-64-v4", "-march=icelake-server", "-march=znver4",
    "-march=armv8.2-a+sve",
    "-mcpu=neoverse-v1", "-mavx512f", "-mavx2", "-mfma", "-mbmi2", "-mamx-tile", "-xCORE-AVX512",
    "-xSAPPHIRERAPIDS",
    "/arch:AVX2",
]  # fmt: skip


@pytest.mark.rule("KCI163", triggers=False)
@pytest.mark.parametrize(
    "asks", ["#include <cpuid.h>", '__builtin_cpu_supports("avx2")', "at::get_cpu_capability()"]
)
def test_a_kernel_that_asks_may_have_code_for_newer_processors(tmp_path: Path, asks: str) -> None:
    assert processor_flags(tmp_path, NEWER, {"a.cu": "", "features.h": asks}) == []


@pytest.mark.rule("KCI163", triggers=False)
def test_flags_that_all_processors_take(tmp_path: Path) -> None:
    flags = [
        "-mtune=native", "-march=x86-64", "-march=x86-64-v2", "-march=armv8-a", "-msse4.2",
        "-mno-avx2", "-arch=sm_90",
        "-mprefer-vector-width=256", "-x", "-xc++", "-DX=-march", "--expt-relaxed-constexpr",
        "-mcmodel=large",
    ]  # fmt: skip
    assert processor_flags(tmp_path, flags, {"a.cu": ""}) == []


@pytest.mark.rule("KCI138", triggers=True)
def test_each_header_is_told_once_and_only_what_listed_files_include(tmp_path: Path) -> None:
    files = {
        "csrc/a.cu": '#include "a.h"\n',
        "csrc/b.cu": '#include "a.h"\n',
        "csrc/a.h": '#include "sub/b.h"\n#include "a.h"\n',
        "csrc/sub/b.h": '#include "../a.h"\n',
    }
    _, found = make(tmp_path, files, ["csrc/a.cu", "csrc/b.cu"])
    assert [item.hint for item in found] == ['add "csrc/a.h" to this `src`']
    _, found = make(tmp_path, files, ["csrc/a.cu", "csrc/b.cu", "csrc/a.h"])
    assert [item.hint for item in found] == ['add "csrc/sub/b.h" to this `src`']


INCLUDES = '#include "a.h"\n#include <torch/all.h>\n'


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "a.cu").write_text(INCLUDES)
    (tmp_path / "a.cpp").write_text(INCLUDES)
    return tmp_path


def said(
    sources: Path,
    flags: str,
    *,
    key: str = "cuda-flags",
    torch: str = "",
    backend: str = "cuda",
    src: str = "a.cu",
) -> list[str]:
    parts = f'[kernel.a]\nbackend = "{backend}"\ndepends = []\nsrc = ["{src}"]\n{key} = [{flags}]\n'
    made = torch_kernel([backend], torch=torch, components=parts)
    found = list(lint_standards(made, load_catalog(), SourceTree(sources)))
    assert {item.rule for item in found} <= {"KCI159"}
    return [item.message for item in found]


@pytest.mark.rule("KCI159", triggers=True)
@pytest.mark.parametrize(
    ("backend", "key", "flag", "src"),
    [
        ("cuda", "cuda-flags", "-std=c++17", "a.cu"),
        ("cuda", "cuda-flags", "--std=c++14", "a.cu"),
        ("cuda", "cxx-flags", "-std=gnu++98", "a.cpp"),
        ("rocm", "hip-flags", "-std=c++17", "a.cu"),
        ("xpu", "sycl-flags", "-std=c++17", "a.cpp"),
        ("cpu", "cxx-flags", "-std=c++17", "a.cpp"),
    ],
)
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
