"""What decides a variant: the files that build.toml lists, those of the package, what is declared,
and no other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import CPU, variant, write_tree
from conftest import kernel
from kci.config.model import Build
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTree
from planning import refused

CUDA = "torch213-cxx11-cu130-x86_64-linux"


def build(components: str = "", torch: str = "") -> Build:
    return kernel(f"""
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
[torch]
src = ["torch-ext/binding.cpp"]
{torch}
[kernel.a]
backend = "cuda"
depends = []
src = ["csrc/a.cu"]
[kernel.b]
backend = "cpu"
depends = []
src = ["csrc/b.cpp", "csrc/b.h"]
{components}
""").build


def decided(
    root: Path, path: str, made: Build | None = None, names: tuple[str, ...] = (CUDA, CPU)
) -> set[str]:
    """The variants that a file decides."""
    inputs = KernelInputs(made or build(), root)
    return {name for name in names if path in inputs.paths_of(variant(name))}


FILES = {"csrc/a.cu": "", "csrc/b.cpp": "", "csrc/b.h": "", "torch-ext/binding.cpp": ""}


def test_tests_beside_src_are_those_of_the_kernel_in_it(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {**{f"k/src/{name}": text for name, text in FILES.items()}, "k/tests/test_a.py": ""},
    )
    inputs = KernelInputs(build(), tmp_path / "k" / "src", SourceTree(tmp_path))
    assert inputs.is_test("k/tests/test_a.py")
    assert not inputs.is_test("tests/test_a.py")


def test_a_path_out_of_the_tree_is_no_input(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "k", FILES)
    write_tree(tmp_path, {"secret.h": ""})
    (root / "csrc/link.h").symlink_to(tmp_path / "secret.h")
    made = build(
        '[kernel.c]\nbackend = "cpu"\ndepends = []\n'
        'src = ["../secret.h", "/etc/passwd", "csrc/link.h"]'
    )
    found = KernelInputs(made, root).of(variant(CPU))
    assert ("csrc/link.h", "") in found
    assert not [path for path, _ in found if path.startswith(("/", ".."))]


def test_files_of_the_package_decide_what_carries_them(tmp_path: Path) -> None:
    package = "torch-ext/some_kernel"
    files = [".hidden", "a.py", "a.json", "metadata.json"]
    write_tree(tmp_path, {f"{package}/{name}": "" for name in files})
    assert [name for name in files if decided(tmp_path, f"{package}/{name}")] == ["a.py"]
    assert decided(tmp_path, f"{package}/a.json", build(torch='pyext = ["py", "json"]')) == {
        CPU,
        CUDA,
    }
    general = (
        '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        'backends = ["cpu"]\n'
    )
    noarch = kernel(f"{general}[torch-noarch]\n").build
    assert [
        name for name in files if decided(tmp_path, f"{package}/{name}", noarch, ("torch-cpu",))
    ] == files[:3]


@pytest.mark.parametrize("declared", ["common", "./common/", "common/../common"])
@pytest.mark.rule("KCI333", triggers=False)
def test_what_is_declared_counts(tmp_path: Path, declared: str) -> None:
    write_tree(
        tmp_path, {"common/deep/a.h": "", **{f"k/{name}": text for name, text in FILES.items()}}
    )
    inputs = KernelInputs(build(), tmp_path / "k", SourceTree(tmp_path), [declared])
    assert "common/deep/a.h" in inputs.paths_of(variant(CUDA))
    assert inputs.shown("common/deep/a.h") == "../common/deep/a.h"
    assert ("common/deep/a.h",) * 2 in inputs.of(variant(CPU))


@pytest.mark.rule("KCI333", triggers=True)
@pytest.mark.parametrize("declared", ["nowhere", "../elsewhere", "/etc", ""])
def test_a_declared_input_has_to_be_there(tmp_path: Path, declared: str) -> None:
    root = write_tree(tmp_path / "k", FILES)
    refused("KCI333", KernelInputs, build(), root, SourceTree(tmp_path), [declared])
