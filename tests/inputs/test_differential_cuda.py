"""Fingerprints held against nvcc: what only the device code includes is found, and confirmed, as well."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from buildkit import variant, write_tree
from kci.builders.read_files import Watch
from kci.config.settings import Settings
from kci.inputs.kernel_inputs import KernelInputs
from kci.inputs.source_tree import SourceTree
from witness import Compiler, confirm, planned, request_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("g++") is None, reason="needs nvcc and g++"),
]

CUDA = "torch-stable-abi211-cu130-x86_64-linux"
FILES = {
    "build.toml": """
        [general]
        name = "kk"
        version = 1
        edition = 5
        license = "MIT"
        backends = ["cpu", "cuda"]
        [torch]
        stable-abi = "2.11"
        src = ["torch-ext/binding.cpp"]
        [kernel.gpu]
        backend = "cuda"
        depends = []
        cuda-capabilities = ["8.0", "9.0"]
        src = ["csrc/a.cu", "csrc/never.h"]
        [kernel.cpu]
        backend = "cpu"
        depends = []
        src = ["csrc/cpu.cpp", "csrc/cpu.h"]
    """,
    "torch-ext/binding.cpp": "int bound;\n",
    "torch-ext/kk/__init__.py": "",
    "csrc/a.cu": """
        #if defined(__CUDA_ARCH__)
        #include "device.h"
        #if __CUDA_ARCH__ >= 900
        #include "hopper.h"
        #endif
        #else
        #include "host.h"
        #endif
        #define IMPL "impl.cu"
        #include IMPL
        #if 0
        #include "never.h"
        #endif
    """,
    "csrc/device.h": "#define DEVICE_VALUE 1\n",
    "csrc/hopper.h": "#define HOPPER_VALUE 1\n",
    "csrc/host.h": "int host_value = 1;\n",
    "csrc/impl.cu": """
        __global__ void work(int *out) {
          out[1] = 1;
        #ifdef DEVICE_VALUE
          out[2] += DEVICE_VALUE;
        #endif
        #ifdef HOPPER_VALUE
          out[3] -= HOPPER_VALUE;
        #endif
        }
    """,
    "csrc/never.h": "int never = 1;\n",
    "csrc/cpu.cpp": '#include "cpu.h"\n',
    "csrc/cpu.h": "int cpu = 1;\n",
    "flake.lock": "1\n",
}
READ = {"csrc/a.cu", "csrc/device.h", "csrc/hopper.h", "csrc/host.h", "csrc/impl.cu", "torch-ext/binding.cpp"}


def test_it_moves_with_device_code_and_not_with_that_of_another_backend(tmp_path: Path) -> None:
    kernel = write_tree(tmp_path / "kk", FILES)
    wanted = variant(CUDA)

    request = request_for(kernel, kernel, wanted, tmp_path / "cache")
    seen, objects = Compiler(request), Compiler(request, objects=True)

    def fingerprint() -> str:
        return planned(kernel, kernel, wanted, Settings())[0]

    first, text, binary = fingerprint(), seen.content(), objects.content()
    assert not text.startswith(("refused", "failed"))
    moved, differs = set(), set()
    for name in FILES:
        path = kernel / name
        before = path.read_text()
        if name not in ("build.toml", "csrc/a.cu", "torch-ext/kk/__init__.py"):
            path.write_text(before.replace("1", "5").replace("bound", "bound_2"))
            moved |= {name} if fingerprint() != first else set()
            differs |= {name} if seen.content() != text else set()
            if name == "csrc/hopper.h":
                assert objects.content() != binary, "what only the code of one arch reads is in the object"
            path.write_text(before)
    assert differs - moved == set(), "stale"
    assert moved - differs == {"csrc/never.h"}, "needless: it is listed, and left out by a condition"
    assert differs == READ - {"csrc/a.cu"}


def test_nvcc_lists_what_each_of_its_passes_reads(tmp_path: Path) -> None:
    kernel = write_tree(tmp_path / "kk", FILES)
    request = request_for(tmp_path, kernel, variant(CUDA), tmp_path / "cache")
    watch = Watch(msgspec.structs.replace(request, inputs=KernelInputs(request.build, kernel, SourceTree(kernel))))
    assert set(confirm(request, watch)) == {*READ, "torch-ext/kk/__init__.py"}
