"""AMD's own compiler, as Debian 12 has it: hipcc 5.2.3, for which an overlay adds a row to the catalog.

apt-get install --no-install-recommends hipcc libamdhip64-dev rocm-device-libs libthrust-dev
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.runner import kci_process
from conftest import ROOT
from kci.tree.verify import verify

VARIANT = "torch-stable-abi211-rocm52-x86_64-linux"
OVERLAY = """\
edition = "2026-08-20"

[[row]]
torch = "2.13"
backend = "rocm"
compute = ["5.2"]
systems = ["x86_64-linux"]
"""
ARCHS = ("gfx1030", "gfx90a")
# HIP 5.2 has neither the warp functions that take a mask, nor a thrust of its own: Debian's is told to use no CUDA.
FLAGS = '["-DTWICE_FACTOR=2", "-D__shfl_xor_sync(mask,value,lane)=__shfl_xor(value,lane,32)"]'
THRUST = "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"


@pytest.fixture
def hipcc(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which("hipcc")
    if found is None:
        pytest.skip("hipcc is not installed (apt-get install hipcc libamdhip64-dev rocm-device-libs libthrust-dev)")
    monkeypatch.setenv("HIP_PLATFORM", "amd")  # an nvcc on the PATH would be taken otherwise
    told = subprocess.run(["hipconfig", "--version"], capture_output=True, text=True, check=False).stdout
    if not told.startswith("5.2."):
        pytest.skip(f"this hipcc is of HIP {told.strip()[:20]}, and the test is about Debian's 5.2")
    monkeypatch.setenv("HIPCC_COMPILE_FLAGS_APPEND", THRUST)


def for_rocm(kernel: Path) -> Path:
    """A stable-ABI kernel for CUDA, with its sources listed for ROCm as well."""
    toml = (kernel / "build.toml").read_text()
    components = toml[toml.index("[kernel.") :].split("\n\n")
    cuda = [part for part in components if 'backend = "cuda"' in part]
    kept = [
        line
        for part in cuda
        for line in [*part.splitlines(), f"rocm-archs = {[*ARCHS]}".replace("'", '"'), f"hip-flags = {FLAGS}", ""]
        if not line.startswith(("cuda-", "#"))
    ]
    head = toml[: toml.index("[kernel.")].rstrip("# \n").partition("[torch.stable-abi]")[0]
    head = head.replace('["cpu", "cuda"]', '["rocm"]').replace('stable-abi = "2.11"', "")
    text = "\n".join(kept).replace('"cuda"', '"rocm"').replace("_cuda]", "_rocm]")
    (kernel / "build.toml").write_text(f'{head}\n[torch.stable-abi]\nrocm = "2.11"\n\n{text}')
    binding = kernel / "torch-ext/torch_binding.cpp"
    binding.write_text(binding.read_text().replace("#elif defined(CUDA_KERNEL)", "#elif defined(ROCM_KERNEL) // "))
    return kernel


@pytest.mark.torch
def test_code_for_both_archs(hipcc: None, torch_cache: Path, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    kernel = Path(shutil.copytree(ROOT / "examples" / "rms-norm", tmp_path / "rms-norm", ignore=ignored))
    (kernel / "debian.toml").write_text(OVERLAY)
    (kernel / "kci.toml").write_text('catalog = "debian.toml"\n')
    arguments = ["build", for_rocm(kernel), "--variant", VARIANT, "--tier", "all", "--output", tmp_path / "out"]
    done = kci_process(*arguments, KCI_COMPILER_CACHE="off", KCI_CACHE=str(torch_cache))
    assert done.code == 0, done.stderr
    made = tmp_path / "out" / VARIANT
    assert verify(made, ignore=["KCI750"]) == []  # the code objects are those of the metadata, among the rest
    (module,) = made.glob("*.abi3.so")
    dynamic = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert "libamdhip64.so.5" in dynamic
    assert all(f"amdgcn-amd-amdhsa--{arch}".encode() in module.read_bytes() for arch in ARCHS)
    assert os.access(module, os.X_OK)
