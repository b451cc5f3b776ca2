"""Expected against present variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import kci
from conftest import torch_kernel
from kci.catalog.rows import Catalog
from kci.compat.coverage import coverage
from kci.errors import UsageError
from kci.matrix.selection import select

EXPECTED = {"torch212-cxx11-cpu-x86_64-linux", "torch213-cxx11-cpu-x86_64-linux"}


def tree_with(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metadata.json").write_text("{}")
    return tmp_path


def test_missing_present_and_other(tmp_path: Path, catalog: Catalog) -> None:
    matrix = select(torch_kernel(["cpu"]), catalog)
    tree = tree_with(tmp_path, "torch213-cxx11-cpu-x86_64-linux", "torch29-cxx11-cpu-x86_64-linux", "benchmarks")
    (tmp_path / "torch212-cxx11-cpu-x86_64-linux").mkdir()  # no metadata: a loader would not take it
    found = coverage(matrix, tree)
    assert found.present == ("torch213-cxx11-cpu-x86_64-linux",)
    assert "torch212-cxx11-cpu-x86_64-linux" in found.missing
    assert found.other == ("torch29-cxx11-cpu-x86_64-linux",)


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
