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
    "relu": ["torch213-cxx11-cpu-x86_64-linux"],
    "rms-norm": ["torch-stable-abi211-cpu-x86_64-linux"],
    "swiglu": ["torch-cpu", "torch-cuda", "torch-rocm"],
}
"""What this machine can build, of the release tier."""


def can_build_cuda() -> bool:
    return shutil.which("nvcc") is not None


def test_the_examples_workflow_builds_merges_and_loads(
    torch_cache: Path,
    torch_python: Path,
    shared_by_workers: Path,
    compiled_once: dict[str, str],
    tmp_path: Path,
) -> None:
    legs = {kernel: list(variants) for kernel, variants in LEGS.items()}
    if can_build_cuda():
        legs["rms-norm"].append("torch-stable-abi211-cu130-x86_64-linux")
    repository = tmp_path / "repository"
    ignored = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(ROOT / "examples", repository / "examples", ignore=ignored)
    (repository / "kci.toml").write_text('catalog = "2026-08-20"\n')  # its newest torch is the one that tests have
    rendered = kci("render", "--output", repository, repository / "examples")
    assert rendered.code == 0, rendered.stderr
    commit_all(repository)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    only = " ".join(sorted({variant for variants in legs.values() for variant in variants}))
    checkout = copy_actions(tmp_path / "checkout")
    run = run_workflow(
        repository,
        ".github/workflows/kci.yml",
        "workflow_dispatch",
        scratch,
        checkout=checkout,
        payload={"inputs": {"tier": "release", "only": only, "backends": ""}},
        env={"KCI_CACHE": str(torch_cache), **installed(shared_by_workers), **compiled_once},
    )
    built = [f"build {kernel} {variant}" for kernel, variants in legs.items() for variant in variants]
    merges = [f"merge {kernel}" for kernel in legs]
    assert run.jobs == dict.fromkeys(sorted([*built, *merges, "kci", "plan"]), "success"), run.log
    artifacts = {f"kci-{kernel}.{variant}-1" for kernel, variants in legs.items() for variant in variants}
    artifacts |= {f"{kind}.{kernel}.1" for kernel in legs for kind in ("tree", "run-record")}
    assert {path.name for path in run.artifacts.iterdir()} == {*artifacts, "run-plan.1"}
    trees = tmp_path / "trees"
    for kernel, variants in legs.items():
        with tarfile.open(run.artifacts / f"tree.{kernel}.1" / "kci-tree.tar") as archive:
            archive.extractall(trees / kernel, filter="data")
        assert sorted(path.name for path in (trees / kernel).iterdir()) == [
            *AT_TOP,
            *sorted(variants),
        ]
    loaded = subprocess.run(
        [torch_python, str(ROOT / "examples" / "check_loads.py"), str(trees)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    assert loaded.stdout.count(" ok\n") == 3


def test_a_second_push_of_the_examples_builds_and_merges_nothing(
    torch_cache: Path, shared_by_workers: Path, tmp_path: Path
) -> None:
    """A compiled one and one of Python; kci.toml takes all rows out of the catalog that this machine cannot build."""
    repository = tmp_path / "repository"
    ignored = shutil.ignore_patterns("build", "__pycache__")
    for name in ("relu", "swiglu"):
        shutil.copytree(ROOT / "examples" / name, repository / "examples" / name, ignore=ignored)
    (repository / "kci.toml").write_text(HERE_ONLY)
    rendered = kci("render", "--output", repository, repository / "examples")
    assert rendered.code == 0, rendered.stderr
    commit_all(repository)
    checkout = copy_actions(tmp_path / "checkout")
    runs: list[Run] = []
    for number in (1, 2):
        scratch = tmp_path / f"scratch-{number}"
        scratch.mkdir()
        runs.append(
            run_workflow(
                repository, ".github/workflows/kci.yml", "push", scratch, checkout=checkout,
                env={"KCI_CACHE": str(torch_cache), **installed(shared_by_workers)},
                earlier=tuple(runs),
            )
        )  # fmt: skip
        (repository / "examples/relu/README.md").write_text("# better words\n")
        (repository / "examples/flake.lock").write_text("{}\n")
        commit_all(repository)
    first, second = runs
    assert first.ok, first.log
    built = [job for job in first.jobs if job.startswith("build ")]
    assert built == ["build relu torch213-cxx11-cpu-x86_64-linux", "build swiglu torch-cpu"]
    assert second.jobs == dict.fromkeys(["kci", "plan"], "success"), second.log
    assert {path.name for path in second.artifacts.iterdir()} == {"run-plan.1"}


HERE_ONLY = """
[[overlay]]
keep = ["backend == cpu and torch == 2.13 and system == x86_64-linux"]
"""
