"""The rendered workflow for a system without a machine: crossed on an x86-64 runner, tested there under qemu, gated."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from act.harness import act_path, commit_all, copy_actions, installed, run_workflow
from buildkit import copy_kernel, write_tree
from cli.runner import kci
from kci.ci.run_records import TEST_FILE, TestRecord
from kci.files.bounded_json import read_json
from kci.files.cache import default_cache

VARIANT = "torch210-cxx11-cpu-aarch64-linux"
ELSEWHERE = """
catalog = "2026-03-25"  # PyPI's newest torch for the CPU of aarch64 is 2.10

[[overlay]]
keep = ["backend == cpu and torch == 2.10 and system == aarch64-linux"]

[runners.cpu.aarch64-linux]
cross = true
"""

TEST = """
import platform, subprocess, sys
import kernels, pytest, torch
pytestmark = pytest.mark.kernels_ci
def test_the_machine_is_another_one():
    assert platform.machine() == "aarch64"
    assert "CPU implementer" in open("/proc/cpuinfo").read()
    code = "import platform; print(platform.machine())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "aarch64\\n", "of each process"
def test_numbers():
    x = torch.randn(37)
    assert torch.equal(kernels.get_kernel("acme/plus-one", version=1).plus_one(x), x + 1)
"""

pytestmark = [
    pytest.mark.torch,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("KCI_MANY"), reason="an emulated torch takes minutes: KCI_MANY=1 runs it"),
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
    *(
        pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")
        for program in ("aarch64-linux-gnu-g++", "qemu-aarch64-static")
    ),
]


@pytest.mark.usefixtures("cross_compilers")
def test_a_leg_for_another_cpu_is_crossed_and_tested_by_emulation(shared_by_workers: Path, tmp_path: Path) -> None:
    """What fails under qemu keeps the gate closed as any test does (test_hardware.py)."""
    repository = tmp_path / "repository"
    kernel = repository / "plus-one"
    repository.mkdir()
    copy_kernel("plus-one", repository)
    write_tree(kernel / "tests", {"test_plus_one.py": TEST})
    (repository / "kci.toml").write_text(ELSEWHERE)
    rendered = kci("render", "--output", repository, kernel)
    assert rendered.code == 0, rendered.stderr
    commit_all(repository)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    checkout = copy_actions(tmp_path / "checkout")
    env = {"KCI_CACHE": str(default_cache()), **installed(shared_by_workers)}
    run = run_workflow(repository, ".github/workflows/kci.yml", "push", scratch, checkout=checkout, env=env)
    jobs = [f"build plus-one {VARIANT}", "merge", "test plus-one cpu-aarch64-linux", "kci", "plan"]
    assert run.jobs == dict.fromkeys(jobs, "success"), run.log
    (path,) = run.artifacts.rglob(TEST_FILE)
    record = read_json(path, TestRecord)
    assert (record.passed, record.tested) == (True, (VARIANT,))
    assert record.emulated.startswith("qemu-aarch64 version ")
