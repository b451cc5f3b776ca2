"""What decides a variant: the files that build.toml lists, those of the package, what is declared,
and no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buildkit import CPU, CUDA, variant, write_tree
from conftest import kernel, noarch_kernel, torch_toml
from kci.config.model import Build
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTree
from planning import refused

SOURCES = {"cuda": "csrc/a.cu", "cpu": 'csrc/b.cpp", "csrc/b.h'}


def build(components: str = "", torch: str = "") -> Build:
    return kernel(
        torch_toml(SOURCES, binding="torch-ext/binding.cpp", more=torch) + components
    ).build


def decided(
    root: Path, path: str, made: Build | None = None, names: tuple[str, ...] = (CUDA, CPU)
) -> set[str]:
    """The variants that a file decides."""
    inputs = KernelInputs(made or build(), root)
    return {name for name in names if path in inputs.paths_of(variant(name))}


FILES = {"csrc/a.cu": "", "csrc/b.cpp": "", "csrc/b.h": "", "torch-ext/binding.cpp": ""}


def test_tests_beside_src_are_those_of_the_kernel_in_it(tmp_path: Path) -> None:
    write_tree(tmp_path / "k", {"tests/test_a.py": ""})
    write_tree(tmp_path / "k" / "src", FILES)
    inputs = KernelInputs(build(), tmp_path / "k" / "src", SourceTree(tmp_path))
    assert inputs.is_test("k/tests/test_a.py")
    assert not inputs.is_test("tests/test_a.py")


def test_a_path_out_of_the_tree_is_no_input(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "k", FILES)
    write_tree(tmp_path, {"secret.h": ""})
    (root / "csrc/link.h").symlink_to(tmp_path / "secret.h")
    listed = 'src = ["../secret.h", "/etc/passwd", "csrc/link.h"]'
    made = build(f'[kernel.c]\nbackend = "cpu"\ndepends = []\n{listed}')
    found = KernelInputs(made, root).of(variant(CPU))
    assert ("csrc/link.h", "") in found
    assert not [path for path, _ in found if path.startswith(("/", ".."))]


def test_files_of_the_package_decide_what_carries_them(tmp_path: Path) -> None:
    package = "torch-ext/some_kernel"
    files = [".hidden", "a.py", "a.json", "metadata.json"]
    write_tree(tmp_path / package, dict.fromkeys(files, ""))
    noarch = noarch_kernel(["cpu"], name="some-kernel").build

    def carried(*of: Any) -> list[str]:
        return [name for name in files if decided(tmp_path, f"{package}/{name}", *of)]

    assert carried() == ["a.py"]
    more = build(torch='pyext = ["py", "json"]\n')
    assert decided(tmp_path, f"{package}/a.json", more) == {CPU, CUDA}
    assert carried(noarch, ("torch-cpu",)) == files[:3]


@pytest.mark.parametrize("declared", ["common", "./common/", "common/../common"])
@pytest.mark.rule("KCI333", triggers=False)
def test_what_is_declared_counts(tmp_path: Path, declared: str) -> None:
    write_tree(tmp_path, {"common/deep/a.h": ""})
    write_tree(tmp_path / "k", FILES)
    inputs = KernelInputs(build(), tmp_path / "k", SourceTree(tmp_path), [declared])
    assert "common/deep/a.h" in inputs.paths_of(variant(CUDA))
    assert inputs.shown("common/deep/a.h") == "../common/deep/a.h"
    assert ("common/deep/a.h",) * 2 in inputs.of(variant(CPU))


@pytest.mark.rule("KCI333", triggers=True)
@pytest.mark.parametrize("declared", ["nowhere", "../elsewhere", "/etc", ""])
def test_a_declared_input_has_to_be_there(tmp_path: Path, declared: str) -> None:
    root = write_tree(tmp_path / "k", FILES)
    refused("KCI333", KernelInputs, build(), root, SourceTree(tmp_path), [declared])
