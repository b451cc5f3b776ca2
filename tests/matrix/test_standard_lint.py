"""A C++ standard in the flags that is older than a torch of the matrix asks for."""

from __future__ import annotations

import pytest

from conftest import torch_kernel
from kci.catalog.rows import load_catalog
from kci.matrix.kernel_lints import lint_matrix


def said(flags: str, *, key: str = "cuda-flags", torch: str = "", backend: str = "cuda") -> list[tuple[str, str]]:
    parts = f'[kernel.a]\nbackend = "{backend}"\ndepends = []\nsrc = []\n{key} = [{flags}]\n'
    found = lint_matrix(torch_kernel([backend], torch=torch, components=parts), load_catalog())
    return [(item.rule, item.message) for item in found]


@pytest.mark.rule("KCI159", triggers=True)
@pytest.mark.parametrize(
    ("backend", "key", "flag"),
    [
        ("cuda", "cuda-flags", "-std=c++17"),
        ("cuda", "cuda-flags", "--std=c++14"),
        ("cuda", "cxx-flags", "-std=gnu++98"),
        ("rocm", "hip-flags", "-std=c++17"),
        ("xpu", "sycl-flags", "-std=c++17"),
        ("cpu", "cxx-flags", "-std=c++17"),
    ],
)
def test_an_older_standard_is_told_with_the_versions_of_torch(backend: str, key: str, flag: str) -> None:
    found = [message for rule, message in said(f'"-O3", "{flag}"', key=key, backend=backend) if rule == "KCI159"]
    assert len(found) == 1
    assert found[0].startswith(f"`{flag}` is older than C++")
    assert found[0].endswith("2.14 ask for")


@pytest.mark.rule("KCI159", triggers=True)
def test_the_bindings_have_flags_too() -> None:
    found = said('"-O3"', torch='cxx-flags = ["-std=c++17"]')
    assert found == [("KCI159", "`-std=c++17` is older than C++20, which the headers of torch 2.14 ask for")]


@pytest.mark.rule("KCI159", triggers=False)
@pytest.mark.parametrize(
    ("flags", "torch"),
    [
        ('"-O3"', ""),
        ('"-std=c++20"', ""),
        ('"-std=gnu++23"', ""),
        ('"-std=c++2b"', ""),
        ('"-std=c++17"', 'stable-abi = "2.11"'),
        ('"-std=c++17"', 'maxver = "2.13"'),
        ('"-DX=-std=c++17"', ""),
    ],
)
def test_what_is_no_older_standard(flags: str, torch: str) -> None:
    assert said(flags, torch=torch) == []
