"""What verification comes to, in words, as a table and as badges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import write_noarch
from kci.plan.plan import KernelPlan, Plan
from kci.tree.merge import merge
from kci.tree.verify import verify
from kci.tree.verify.requirements import Compliance, compliance, shields
from variants import make_artifact, make_variant

NAMES = ("torch-cpu", "torch-cuda", "torch-rocm")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = [make_artifact(tmp_path / name, make_variant(tmp_path / "src" / name, name)) for name in NAMES[:2]]
    planned = Plan(1, "release", (KernelPlan("gated-norm", ".", 1, NAMES),))
    merge(files, tmp_path / "build", planned, allow_partial=True)
    return tmp_path / "build"


def state(path: Path) -> Compliance:
    return compliance([str(path)], verify(path))


def test_every_backend_and_system_is_counted(tree: Path) -> None:
    assert state(tree).lines() == [
        "compliant for CPU: 1 of 1",
        "compliant for CUDA: 1 of 1",
        "compliant for ROCm: 0 of 1",
    ]
    (tree / "torch-cuda" / "__init__.py").write_text("import numpy\n")
    found = state(tree)
    assert found.lines()[1] == "compliant for CUDA: 0 of 1"
    assert found.compliant is False
    assert [item.compliant for item in found.variants] == [True, False, False]


def test_systems_are_told_apart(tmp_path: Path) -> None:
    for system in ("x86_64", "aarch64"):
        make_variant(tmp_path / "build", f"torch213-cxx11-cpu-{system}-linux")
    ignore = ["KCI74", "KCI75", "KCI723"]
    found = compliance([str(tmp_path)], verify(tmp_path, ignore=ignore))
    assert found.lines() == ["compliant for CPU aarch64-linux: 1 of 1", "compliant for CPU x86_64-linux: 1 of 1"]
    assert found.compliant is True


def test_errors_of_no_variant_count_against_the_whole(tree: Path) -> None:
    data = json.loads((tree / "kci-manifest.json").read_text())
    (tree / "kci-manifest.json").write_text(json.dumps(data | {"missing": [], "complete": True}))
    found = state(tree)
    assert found.others == 2
    assert found.message == "2 of 3 variants, 2 errors"


def test_what_a_badge_is_made_of(tree: Path) -> None:
    assert shields(state(tree)) == {
        "schemaVersion": 1, "label": "kernel requirements", "message": "2 of 3 variants", "color": "red",
    }  # fmt: skip
    assert shields(Compliance(()))["color"] == "lightgrey"


def test_the_command_prints_them(tree: Path) -> None:
    done = kci("verify", tree, "--format", "shields")
    assert (done.code, json.loads(done.stdout)["message"]) == (1, "2 of 3 variants")
    shown = kci("verify", tree, "--format", "table").stdout
    assert "torch-rocm" in shown
    assert "missing" in shown
    assert "compliant for CUDA: 1 of 1" in kci("verify", tree, "-v").stdout
    assert "- compliant for CUDA: 1 of 1" in kci("verify", tree, "--format", "markdown").stdout


def test_one_variant_and_a_folder_of_trees(tree: Path, tmp_path: Path) -> None:
    assert state(tree / "torch-cpu").message == "1 of 1 variants"
    (tmp_path / "trees").mkdir()
    tree.rename(tmp_path / "trees" / "a")
    assert state(tmp_path / "trees").message == "2 of 3 variants"


def test_what_a_kernel_has_besides_code(tmp_path: Path) -> None:
    write_noarch(tmp_path, "gated-norm")
    found = state(tmp_path)
    assert (found.compliant, found.message) == (True, "sources")
    assert found.lines() == [f"{tmp_path}: card no, tests no, benchmark no"]
    for name in ("CARD.md", "tests/test_a.py", "benchmarks/benchmark_a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert state(tmp_path).lines() == [f"{tmp_path}: card yes, tests yes, benchmark yes"]
