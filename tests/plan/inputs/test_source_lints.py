"""Lints of the files that a build.toml names."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from kci.config.discovery import RepositorySettings, find_settings
from kci.config.file_lints import lint_file
from kci.config.reader import Kernel, read_kernel
from kci.diagnostics import Diagnostic, Severity
from kci.plan.inputs.source_lints import MAX_MISSING, include_not_listed, lint_sources
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
def test_include_directories_and_csrc_are_searched(
    tmp_path: Path, where: str, component: str
) -> None:
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
