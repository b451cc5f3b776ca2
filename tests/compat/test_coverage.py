"""Expected against present variants."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import torch_kernel
from kci.catalog.rows import Catalog
from kci.compat.coverage import coverage
from kci.errors import UsageError
from kci.matrix.selection import select
from variants import make_variant

EXPECTED = {"torch212-cxx11-cpu-x86_64-linux", "torch213-cxx11-cpu-x86_64-linux"}


def tree_with(tmp_path: Path, *names: str) -> Path:
    for name in names:
        if name == "benchmarks":
            (tmp_path / name).mkdir(parents=True)
        else:
            make_variant(tmp_path, name, name="some-kernel")
    return tmp_path


def test_missing_present_and_other(tmp_path: Path, catalog: Catalog) -> None:
    matrix = select(torch_kernel(["cpu"]), catalog)
    tree = tree_with(tmp_path, "torch213-cxx11-cpu-x86_64-linux", "torch29-cxx11-cpu-x86_64-linux", "benchmarks")
    found = coverage(matrix, tree)
    assert found.present == ("torch213-cxx11-cpu-x86_64-linux",)
    assert "torch212-cxx11-cpu-x86_64-linux" in found.missing
    assert found.other == ("torch29-cxx11-cpu-x86_64-linux",)


def nothing_in_it(variant: Path) -> None:
    shutil.rmtree(variant)
    variant.mkdir()


def broken_metadata(variant: Path) -> None:
    (variant / "metadata.json").write_text("{")


def changed_after_hashing(variant: Path) -> None:
    (variant / "__init__.py").write_text("changed")


def another_version(variant: Path) -> None:
    shutil.rmtree(variant)
    make_variant(variant.parent, variant.name, name="some-kernel", version=7)


def link_out_of_the_tree(variant: Path) -> None:
    variant.rename(variant.parent.parent / "elsewhere")
    variant.symlink_to(variant.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    "spoil", [nothing_in_it, broken_metadata, changed_after_hashing, another_version, link_out_of_the_tree]
)
def test_what_no_loader_can_use_is_not_present(tmp_path: Path, catalog: Catalog, spoil: Callable[[Path], None]) -> None:
    matrix = select(torch_kernel(["cpu"]), catalog)
    tree = tree_with(tmp_path / "tree", *EXPECTED)
    spoil(tree / min(EXPECTED))
    assert set(coverage(matrix, tree).present) == EXPECTED - {min(EXPECTED)}


def test_a_kernel_directory_stands_for_its_tree(tmp_path: Path, catalog: Catalog) -> None:
    tree_with(tmp_path / "build", *EXPECTED)
    assert set(coverage(select(torch_kernel(["cpu"]), catalog), tmp_path).present) == EXPECTED
    with pytest.raises(UsageError):
        coverage(select(torch_kernel(["cpu"]), catalog), tmp_path / "nowhere")


def test_the_command_fails_on_a_gap(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(
        '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
        "[torch-noarch]\n"
    )
    tree_with(tmp_path / "build", "torch-cpu")
    assert kci("compat", "coverage", tmp_path).code == 0
    (tmp_path / "build" / "torch-cpu" / "metadata.json").unlink()
    result = kci("compat", "coverage", tmp_path, "--format", "json")
    assert result.code == 1
    assert '"missing": [\n      "torch-cpu"' in result.stdout
