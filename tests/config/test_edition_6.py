"""Edition 6: read into the same build config with one note."""

from __future__ import annotations

import pytest

from conftest import kernel
from kci.config.model import TvmFfi
from kci.config.update import plan_update
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError

GENERAL = '[general]\nname = "ab"\nversion = 1\nlicense = "x"\nedition = {edition}\nbackends = ["cpu", "cuda"]\n'

SIX = (
    GENERAL.format(edition=6)
    + """
[torch]
src = ["a.cpp"]
stable-abi = "2.11"

[kernel.one]
language = "cpp-cuda"   # was backend
depends = ["torch"]
src = ["a.cu"]
cuda-capabilities = ["8.0"]

[kernel.two]
language = 'cpp-cpu'
depends = []
src = []
"""
)
FIVE = (
    SIX.replace("edition = 6", "edition = 5")
    .replace('language = "cpp-cuda"   #', 'backend = "cuda"   #')
    .replace("language = 'cpp-cpu'", "backend = 'cpu'")
)


def problems(text: str) -> list[Diagnostic]:
    with pytest.raises(FindingsError) as caught:
        kernel(text)
    return list(caught.value.diagnostics)


@pytest.mark.rule("KCI117", triggers=True)
def test_edition_6_is_the_same_build_with_one_note() -> None:
    read = kernel(SIX)
    assert read.edition == 6
    assert read.build == kernel(FIVE).build
    assert [(item.rule, item.severity, item.line) for item in read.diagnostics] == [("KCI117", "info", 5)]
    assert "not released" in read.diagnostics[0].message


def test_a_rust_component_is_one_for_the_cpu_with_its_manifest_among_the_sources() -> None:
    read = kernel(
        GENERAL.format(edition=6)
        + '[tvm-ffi]\n[kernel.r]\nlanguage = "rust-cpu"\ncargo-manifest = "r/Cargo.toml"\ndepends = []\n'
        + 'src = ["r/lib.rs"]\n'
    )
    assert read.build.tvm_ffi == TvmFfi(src=())
    (component,) = read.build.components("cpu").values()
    assert component.src == ("r/lib.rs", "r/Cargo.toml")


@pytest.mark.parametrize(
    ("component", "rule", "said", "line"),
    [
        ("depends = []\nsrc = []", "KCI102", "lacks the key `language`", 8),
        ('language = "cuda"\ndepends = []\nsrc = []', "KCI104", "'cuda' is not a language", 9),
        ("language = 5\ndepends = []\nsrc = []", "KCI104", "'5' is not a language", 9),
        ('language = "cpp-cpu"\nbackend = "cpu"\ndepends = []\nsrc = []', "KCI101", "says the backend", 10),
        ('language = "rust-cpu"\ndepends = []\nsrc = []', "KCI104", "with `[tvm-ffi]` only", 9),
        ('language = "cpp-cpu"\ndepends = []\nsrc = []\ncargo-manifest = "x"', "KCI101", "`cargo-manifest`", 12),
        ('language = "cpp-cpu"\nsrc = []', "KCI102", "lacks the key `depends`", 8),
    ],
)
def test_what_is_wrong_with_a_component_of_edition_6_is_said_once_and_at_its_place(
    component: str, rule: str, said: str, line: int
) -> None:
    (found,) = problems(f"{GENERAL.format(edition=6)}[torch]\n[kernel.a]\n{component}\n")
    assert (found.rule, found.line) == (rule, line)
    assert said in found.message


def test_update_leaves_a_file_of_edition_6_alone() -> None:
    assert plan_update(SIX.encode()).changes == ()
