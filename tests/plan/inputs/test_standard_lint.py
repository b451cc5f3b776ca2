"""A C++ standard in the flags that is older than a torch of the matrix asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import torch_kernel, torch_toml
from kci.config.reader import parse_kernel
from kci.matrix.catalog.loading import load_catalog
from kci.plan.check import check_kernels
from kci.plan.inputs.source_lints import lint_standards
from kci.plan.inputs.source_tree import SourceTree

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
