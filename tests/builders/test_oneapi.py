"""What `--dry-run` prints of XPU variants, held against the reference's CMake; and what only others
build.

The expectations are the slots of the reference's generated project: its preamble and the
components' templates, as `docs/builders.md` names them. A program stands in for icpx.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from buildkit import Bare, quiet, request, write_tree
from conftest import failure, torch_toml
from kci.builders.dispatch import build_variant, plan_commands
from kci.errors import MissingToolError
from planning import append, replace

XPU = "torch213-cxx11-xpu20260-x86_64-linux"

BUILD_TOML = torch_toml(
    {"cpu": "cpu/a.cpp", "cuda": "cuda/a.cu", "rocm": "cuda/a.cu", "xpu": "xpu/a.cpp"},
    "many",
    "torch-ext/torch_binding.cpp",
    'include = ["bind"]\n',
)
FLAGS = {
    "cpu": 'cxx-flags = ["-fvisibility=hidden"]',
    "cuda": 'cuda-capabilities = ["9.0"]\ncuda-flags = ["--use_fast_math"]',
    "rocm": 'rocm-archs = ["gfx942"]',
    "xpu": 'include = ["xpu/include"]\ncxx-flags = ["-Wall"]\nsycl-flags = ["-DSYCL_ONLY"]',
}
"""Those of one backend are of no other."""
for backend, more in FLAGS.items():
    BUILD_TOML = BUILD_TOML.replace(f'"{backend}"\nd', f'"{backend}"\n{more}\nd')
BUILD_TOML = BUILD_TOML.replace('"xpu/a.cpp"', '"xpu/a.cpp", "xpu/a.hpp"')


@pytest.fixture
def kernel(bare: Bare) -> Path:
    """A kernel with a component for every backend, and a PATH with nothing else than g++."""
    bare.add("g++", 'echo "g++ 12"')
    bare.patch.setattr("platform.machine", lambda: "x86_64")
    bare.patch.setattr("sys.platform", "linux")
    names = ["torch-ext/torch_binding.cpp", "cpu/a.cpp", "cuda/a.cu", "xpu/a.cpp", "xpu/a.hpp"]
    names += ["metal/a.metal", "torch-ext/many/__init__.py"]
    files = dict.fromkeys(names, "\n") | {"torch-ext/torch_binding.cpp": "TORCH_EXTENSION_NAME\n"}
    return write_tree(bare.place / "many", {"build.toml": BUILD_TOML, **files})


ICPX = """case "$*" in
  *-fno-gnu*|*-fno-canon*) exit 1 ;;
  *-###*) echo ' "-spirv-ext=-all,+SPV_A,+SPV_B" "-o"' ;;
  *) echo DPC++ {version}.0 ;;
esac"""


def printed(kernel: Path, name: str, bare: Bare) -> list[str]:
    bare.add("icpx", ICPX.format(version="2025.3" if "xpu20253" in name else "2026.0"))
    asked = request(kernel, name, bare.place)
    lines = plan_commands(asked, quiet)
    assert not asked.options.cache.exists()
    return lines


def words(lines: list[str], part: str) -> list[str]:
    """The words of the one command that mentions something."""
    (line,) = [line for line in lines if part in line and not line.startswith("#")]
    return shlex.split(line)


def in_order(found: list[str], expected: list[str]) -> bool:
    """Whether some words come in this order, with others in between."""
    rest = iter(found)
    return all(word in rest for word in expected)


def test_xpu(kernel: Path, bare: Bare) -> None:
    lines = printed(kernel, XPU, bare)
    (torch,) = [line for line in lines if "torch==" in line]
    assert torch.endswith("--index-url https://download.pytorch.org/whl/xpu torch==2.13.0+xpu")
    component = words(lines, "-c kernel/xpu/a.cpp")
    sycl = [
        "-fPIC", "-fsycl", "-fhonor-nans", "-fhonor-infinities", "-fno-associative-math",
        "-fno-approx-func",
        "-foffload-fp32-prec-div", "-foffload-fp32-prec-sqrt", "-fno-sycl-instrument-device-code",
        "--offload-compress",
        "-fsycl-targets=spir64_gen,spir64",
    ]  # fmt: skip
    assert component[0] == str(bare.folder / "icpx")
    assert in_order(component, ["-std=gnu++20", "-O3", "-DNDEBUG", "-Wall", *sycl, "-DSYCL_ONLY"])
    assert {"-DXPU_KERNEL", "-DUSE_XPU", "-Ikernel/xpu/include"} <= set(component)
    assert "-fno-gnu-unique" not in component
    binding = words(lines, "-c kernel/torch-ext/torch_binding.cpp")
    assert "-fsycl" not in binding
    assert "-DTORCH_EXTENSION_NAME=_many_xpu_1a2b3c4" in binding
    link = words(lines, "-shared")
    options = f"-device pvc,xe-lpg,ats-m150 {OPTIONS}"
    expected = ["-Wl,-z,noexecstack", "-fsycl", "--offload-compress", "-foffload-fp32-prec-div"]
    expected += ["-foffload-fp32-prec-sqrt", "-fsycl-targets=spir64_gen,spir64"]
    assert in_order(link, [*expected, "-Xsycl-target-backend=spir64_gen", options, "-ldnnl"])
    assert {"-lc10_xpu", "-ltorch_xpu", "-ltorch_cpu", "-ltorch", "-lc10"} <= set(link)


TLA = [
    "-DCUTLASS_ENABLE_SYCL=1",
    "-DDPCPP_SYCL_TARGET=intel_gpu_bmg_g21,intel_gpu_pvc",
    "-DSYCL_INTEL_TARGET=1",
]
EXTENSIONS = (
    "+SPV_INTEL_split_barrier,+SPV_INTEL_2d_block_io,+SPV_INTEL_subgroup_matrix_multiply_accumulate"
)


@pytest.fixture
def tla_kernel(kernel: Path, bare: Bare) -> Path:
    """The kernel with an XPU component that depends on SYCL*TLA, a checkout of which is here."""
    head, xpu, rest = (kernel / "build.toml").read_text().partition("[kernel.on_xpu]")
    rest = rest.replace('["torch"]', '["torch", "sycl_tla"]', 1)
    (kernel / "build.toml").write_text(head + xpu + rest)
    tla = {"include/cutlass/version.h": "", "tools/util/include/a.h": ""}
    bare.set(SYCL_TLA_SRC_DIR=write_tree(bare.place / "tla", tla))
    return kernel


def pairs(found: list[str], option: str) -> list[tuple[str, str]]:
    """Options of the link that take the next word, as what stands behind `=` and that word."""
    return [
        (word.partition("=")[2], after)
        for word, after in pairwise(found)
        if word.startswith(f"{option}=")
    ]


OPTIONS = (
    "-options ' -cl-intel-enable-auto-large-GRF-mode -cl-poison-unsupported-fp64-kernels "
    "-cl-intel-greater-than-4GB-buffer-required'"
)


def test_sycl_tla_of_2026_and_of_2025(tla_kernel: Path, bare: Bare) -> None:
    lines = printed(tla_kernel, XPU, bare)
    for source in ("kernel/xpu/a.cpp", "kernel/torch-ext/torch_binding.cpp"):
        found = words(lines, f"-c {source}")
        assert {*TLA, "-Isycl_tla/include", "-Isycl_tla/tools/util/include"} <= set(found)
        assert found.index("-Isycl_tla/include") < found.index("-Ikernel/csrc")
    link = words(lines, "-shared")
    target = f"-device pvc,bmg-g21,cri {OPTIONS}"
    assert pairs(link, "-Xsycl-target-backend") == [("spir64_gen", target)]
    said = f"-spirv-ext=+SPV_A,+SPV_B,{EXTENSIONS}"
    assert pairs(link, "-Xspirv-translator") == [("spir64_gen", said), ("spir64", said)]
    # One component with SYCL*TLA decides for all.
    plain = '\n[kernel.plain]\nbackend = "xpu"\ndepends = ["torch"]\nsrc = ["xpu/a.cpp"]\n'
    append("build.toml", plain)(tla_kernel)
    assert pairs(words(printed(tla_kernel, XPU, bare), "-shared"), "-Xspirv-translator")
    # That of 2025 is made when it is loaded.
    lines = printed(tla_kernel, XPU.replace("20260", "20253"), bare)
    assert "-fsycl-targets=spir64" in words(lines, "-c kernel/xpu/a.cpp")
    assert pairs(words(lines, "-shared"), "-Xsycl-target-backend") == []


def test_sycl_tla_with_sources_for_one_gpu_alone(tla_kernel: Path, bare: Bare) -> None:
    replace("build.toml", "-DSYCL_ONLY", "-D__SYCL_TARGET_INTEL_GPU_CRI__")(tla_kernel)
    lines = printed(tla_kernel, XPU, bare)
    targets = "-fsycl-targets=intel_gpu_pvc,intel_gpu_bmg_g21,spir64_gen,spir64"
    assert targets in words(lines, "-c kernel/xpu/a.cpp")
    link = words(lines, "-shared")
    assert targets in link
    assert pairs(link, "-Xsycl-target-backend") == [
        ("intel_gpu_pvc", OPTIONS), ("intel_gpu_bmg_g21", OPTIONS),
        ("spir64_gen", f"-device cri {OPTIONS}"),
    ]  # fmt: skip
    listed = targets.partition("=")[2].split(",")
    assert [name for name, _ in pairs(link, "-Xspirv-translator")] == listed


def test_an_icpx_that_does_not_fit_is_told(tla_kernel: Path, bare: Bare) -> None:
    asked = request(tla_kernel, XPU, bare.place)
    for version, says in (
        (None, r"needs icpx 2026\.0, which is not installed"),
        ("DPC++ 2025.3.0", r"is oneAPI 2025\.3, and the variant needs 2026\.0"),
        ("", "no version"),
        ("DPC++ 2026.0.0", "does not say which SPIR-V extensions"),
    ):
        if version is not None:
            bare.add("icpx", f"echo {version}")
        failure(MissingToolError, says, plan_commands, asked)


@pytest.mark.parametrize(
    "target", ["metal-aarch64-darwin", "cpu-aarch64-darwin", "cu130-x86_64-windows"]
)
def test_what_the_native_builder_does_not_compile_names_who_does(
    kernel: Path, tmp_path: Path, target: str
) -> None:
    says = f"the native builder does not compile torch213-{target}"
    for call in (plan_commands, lambda asked: build_variant(asked, quiet)):
        asked = request(kernel, f"torch213-{target}", tmp_path)
        caught = failure(MissingToolError, says, call, asked)
        assert "--builder nix" in caught.hint
        assert "kci pack" in caught.hint
