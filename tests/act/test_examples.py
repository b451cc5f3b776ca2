"""The rendered workflow of the examples, run for real: compilers, artifacts up and down, one tree each, loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from act.harness import Run, act_path, commit_all, copy_actions, installed, run_workflow
from cli.runner import kci
from conftest import AT_TOP, ROOT

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
]

LEGS = {
    "relu": "torch213-cxx11-cpu-x86_64-linux",
    "rms-norm": "torch-stable-abi211-cpu-x86_64-linux",
    "swiglu": "torch-cpu",
}
HERE_ONLY = """
catalog = "2026-08-20"  # its newest torch is the one that tests have

[[overlay]]
keep = ["backend == cpu and torch == 2.13 and system == x86_64-linux"]
"""
"""Leaves in the catalog what this machine can build; `make demo`, which has a test too, builds one for CUDA."""


def test_the_examples_workflow_builds_merges_and_loads_and_a_second_push_builds_nothing(
    torch_cache: Path,
    torch_python: Path,
    shared_by_workers: Path,
    compiled_once: dict[str, str],
    tmp_path: Path,
) -> None:
    repository = tmp_path / "repository"
    ignored = shutil.ignore_patterns("build", "__pycache__")
    for name in LEGS:
        shutil.copytree(ROOT / "examples" / name, repository / "examples" / name, ignore=ignored)
    (repository / "kci.toml").write_text(HERE_ONLY)
    rendered = kci("render", "--output", repository, repository / "examples")
    assert rendered.code == 0, rendered.stderr
    checkout = copy_actions(tmp_path / "checkout")

    def push(number: int, *earlier: Run) -> Run:
        commit_all(repository)
        scratch = tmp_path / f"scratch-{number}"
        scratch.mkdir()
        env = {"KCI_CACHE": str(torch_cache), **installed(shared_by_workers), **compiled_once}
        workflow = ".github/workflows/kci.yml"
        return run_workflow(repository, workflow, "push", scratch, checkout=checkout, env=env, earlier=earlier)

    first = push(1)
    built = [f"build {kernel} {variant}" for kernel, variant in LEGS.items()]
    merges = [f"merge {kernel}" for kernel in LEGS]
    assert first.jobs == dict.fromkeys([*built, *merges, "kci", "plan"], "success"), first.log
    artifacts = {f"kci-{kernel}.{variant}-1" for kernel, variant in LEGS.items()}
    artifacts |= {f"{kind}.{kernel}.1" for kernel in LEGS for kind in ("tree", "run-record")}
    artifacts |= {
        f"objects.{kernel}.{variant}-1" for kernel, variant in LEGS.items() if kernel != "swiglu"
    }  # no compiler
    assert {path.name for path in first.artifacts.iterdir()} == {*artifacts, "run-plan.1"}
    trees = tmp_path / "trees"
    for kernel, variant in LEGS.items():
        with tarfile.open(first.artifacts / f"tree.{kernel}.1" / "kci-tree.tar") as archive:
            archive.extractall(trees / kernel, filter="data")
        assert sorted(path.name for path in (trees / kernel).iterdir()) == [*AT_TOP, variant]
    loaded = subprocess.run(
        [torch_python, str(ROOT / "examples" / "check_loads.py"), str(trees)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    assert loaded.stdout.count(" ok\n") == 3

    (repository / "examples/relu/README.md").write_text("# better words\n")
    (repository / "examples/flake.lock").write_text("{}\n")
    second = push(2, first)
    assert second.jobs == dict.fromkeys(["kci", "plan"], "success"), second.log
    assert {path.name for path in second.artifacts.iterdir()} == {"run-plan.1"}
