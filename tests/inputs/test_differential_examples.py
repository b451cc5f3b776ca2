"""Fingerprints of the example kernels held against compilers: every file of the examples is changed, and removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from buildkit import CPU, STABLE_CPU, STABLE_CUDA, variant, warm_cache, with_changes
from conftest import ROOT
from kci.builders import native
from kci.config.settings import Settings
from kci.matrix.names import Kind
from kci.processes.process import silent
from witness import Compiler, files_of, judge, planned, request_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

TVM = "tvm-ffi01-cpu-x86_64-linux"
CASES = [
    ("relu", CPU),
    ("relu-tvm-ffi", TVM),
    ("rms-norm", STABLE_CPU),
    ("swiglu", "torch-cpu"),
]
if os.environ.get(
    "KCI_DIFFERENTIAL"
):  # two minutes of nvcc; test_differential_cuda.py asks the same of smaller kernels
    CASES.append(("rms-norm", STABLE_CUDA))
NOISE = (
    "flake.lock",
    "flake.nix",
    "Makefile",
    "pyproject.toml",
    "nohup.out",
    "csrc/a.cu~",
    "venv/include/relu_check.h",
)


@pytest.mark.parametrize(("name", "wanted"), CASES, ids=[f"{name} {wanted}" for name, wanted in CASES])
def test_a_fingerprint_moves_if_and_only_if_the_variant_does(name: str, wanted: str, tmp_path: Path) -> None:
    if "-cu" in wanted and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    ignored = shutil.ignore_patterns("build", "__pycache__", ".*_cache")
    root = Path(shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignored))
    kernel = root / name
    for noise in NOISE:
        (kernel / noise).parent.mkdir(parents=True, exist_ok=True)
        (kernel / noise).write_text("x = 1\n")
    made = variant(wanted)
    # One arch is enough: all of them are compiled from the same text, but for what it asks of the arch.
    archs = ("9.0",) if made.backend == "cuda" else ()
    request = with_changes(request_for(tmp_path, kernel, made, warm_cache(tmp_path)), archs=archs)
    if made.kind is not Kind.NOARCH:
        environment = native.plan(request, silent).chain.environment
        environment.ensure(environment.python, silent)
    judged = judge(files_of(root), lambda: planned(root, kernel, made, Settings())[0], Compiler(request).content, print)
    print(f"{name} {wanted}: {judged.changes} changes, {len(judged.stale)} stale, {len(judged.needless)} needless")
    assert judged.stale == []
    assert judged.needless == []
    assert judged.changes > 80
