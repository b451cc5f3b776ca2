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

from buildkit import only_these, program, quiet, request, write_tree
from kci.builders import build_variant, plan_commands
from kci.errors import MissingToolError

XPU = "torch213-cxx11-xpu20260-x86_64-linux"

BUILD_TOML = """
    [general]
    name = "many"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cpu", "cuda", "rocm", "xpu"]

    [torch]
    src = ["torch-ext/torch_binding.cpp"]
    include = ["bind"]

    [kernel.on_cpu]
    backend = "cpu"
    depends = ["torch"]
    src = ["cpu/a.cpp"]
    cxx-flags = ["-fvisibility=hidden"]

    [kernel.on_cuda]
    backend = "cuda"
    depends = ["torch"]
    src = ["cuda/a.cu"]
    cuda-capabilities = ["9.0"]
    cuda-flags = ["--use_fast_math"]

    [kernel.on_rocm]
    backend = "rocm"
    depends = ["torch"]
    src = ["cuda/a.cu"]
    rocm-archs = ["gfx942"]

    [kernel.on_xpu]
    backend = "xpu"
    depends = ["torch"]
    include = ["xpu/include"]
    src = ["xpu/a.cpp", "xpu/a.hpp"]
    cxx-flags = ["-Wall"]
    sycl-flags = ["-DSYCL_ONLY"]
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel with a component for every backend, and a PATH with nothing else than g++
    and git.
    """
    folder = only_these(monkeypatch, tmp_path, "git")
    program(folder, "g++", 'echo "g++ 12"')
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    names = ["torch-ext/torch_binding.cpp", "cpu/a.cpp", "cuda/a.cu", "xpu/a.cpp", "xpu/a.hpp"]
    names += ["metal/a.metal", "torch-ext/many/__init__.py"]
    files = dict.fromkeys(names, "\n") | {"torch-ext/torch_binding.cpp": "TORCH_EXTENSION_NAME\n"}
    return write_tree(tmp_path / "many", {"build.toml": BUILD_TOML, **files})


def icpx(tmp_path: Path, version: str) -> None:
    """Put a program that answers as that version of icpx on the PATH."""
    asked = (
        '*-fno-gnu*|*-fno-canon*) exit 1 ;; *-###*) echo \' "-spirv-ext=-all,+SPV_A,+SPV_B" '
        '"-o"\' ;;'
    )
    program(
        tmp_path / "only-these", "icpx", f'case "$*" in {asked} *) echo DPC++ {version}.0 ;; esac'
    )


def printed(kernel: Path, name: str, tmp_path: Path) -> list[str]:
    icpx(tmp_path, "2025.3" if "xpu20253" in name else "2026.0")
    asked = request(kernel, name, tmp_path)
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


def test_xpu(kernel: Path, tmp_path: Path) -> None:
    lines = printed(kernel, XPU, tmp_path)
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
    assert component[0] == str(tmp_path / "only-these/icpx")
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
def tla_kernel(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel with an XPU component that depends on SYCL*TLA, a checkout of which is here."""
    toml = (kernel / "build.toml").read_text()
    part = toml.index("[kernel.on_xpu]")
    (kernel / "build.toml").write_text(
        toml[:part]
        + toml[part:].replace('depends = ["torch"]', 'depends = ["torch", "sycl_tla"]', 1)
    )
    write_tree(tmp_path / "tla", {"include/cutlass/version.h": "", "tools/util/include/a.h": ""})
    monkeypatch.setenv("SYCL_TLA_SRC_DIR", str(tmp_path / "tla"))
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


def test_sycl_tla_of_2026(tla_kernel: Path, tmp_path: Path) -> None:
    lines = printed(tla_kernel, XPU, tmp_path)
    for source in ("kernel/xpu/a.cpp", "kernel/torch-ext/torch_binding.cpp"):
        found = words(lines, f"-c {source}")
        assert {*TLA, "-Isycl_tla/include", "-Isycl_tla/tools/util/include"} <= set(found)
        assert found.index("-Isycl_tla/include") < found.index("-Ikernel/csrc")
    link = words(lines, "-shared")
    assert pairs(link, "-Xsycl-target-backend") == [
        ("spir64_gen", f"-device pvc,bmg-g21,cri {OPTIONS}")
    ]
    said = f"-spirv-ext=+SPV_A,+SPV_B,{EXTENSIONS}"
    assert pairs(link, "-Xspirv-translator") == [("spir64_gen", said), ("spir64", said)]


def test_one_component_with_sycl_tla_decides_for_all(tla_kernel: Path, tmp_path: Path) -> None:
    plain = '[kernel.plain]\nbackend = "xpu"\ndepends = ["torch"]\nsrc = ["xpu/a.cpp"]\n'
    toml = tla_kernel / "build.toml"
    toml.write_text(f"{toml.read_text()}\n{plain}")
    assert pairs(words(printed(tla_kernel, XPU, tmp_path), "-shared"), "-Xspirv-translator")


def test_sycl_tla_with_sources_for_one_gpu_alone(tla_kernel: Path, tmp_path: Path) -> None:
    toml = (tla_kernel / "build.toml").read_text()
    (tla_kernel / "build.toml").write_text(
        toml.replace("-DSYCL_ONLY", "-D__SYCL_TARGET_INTEL_GPU_CRI__")
    )
    lines = printed(tla_kernel, XPU, tmp_path)
    targets = "-fsycl-targets=intel_gpu_pvc,intel_gpu_bmg_g21,spir64_gen,spir64"
    assert targets in words(lines, "-c kernel/xpu/a.cpp")
    link = words(lines, "-shared")
    assert targets in link
    assert pairs(link, "-Xsycl-target-backend") == [
        ("intel_gpu_pvc", OPTIONS), ("intel_gpu_bmg_g21", OPTIONS),
        ("spir64_gen", f"-device cri {OPTIONS}"),
    ]  # fmt: skip
    assert [name for name, _ in pairs(link, "-Xspirv-translator")] == targets.partition("=")[
        2
    ].split(",")


def test_sycl_tla_of_2025_is_made_when_it_is_loaded(tla_kernel: Path, tmp_path: Path) -> None:
    lines = printed(tla_kernel, XPU.replace("20260", "20253"), tmp_path)
    assert "-fsycl-targets=spir64" in words(lines, "-c kernel/xpu/a.cpp")
    assert pairs(words(lines, "-shared"), "-Xsycl-target-backend") == []


def test_an_icpx_that_does_not_say_its_extensions_is_refused(
    tla_kernel: Path, tmp_path: Path
) -> None:
    program(tmp_path / "only-these", "icpx", "echo DPC++ 2026.0.0")
    with pytest.raises(MissingToolError, match="does not say which SPIR-V extensions"):
        plan_commands(request(tla_kernel, XPU, tmp_path))


def test_an_icpx_that_is_missing_or_of_another_version_is_told(
    kernel: Path, tmp_path: Path
) -> None:
    with pytest.raises(MissingToolError, match=r"needs icpx 2026\.0, which is not installed"):
        plan_commands(request(kernel, XPU, tmp_path))
    icpx(tmp_path, "2025.3")
    with pytest.raises(MissingToolError, match=r"is oneAPI 2025\.3, and the variant needs 2026\.0"):
        plan_commands(request(kernel, XPU, tmp_path))
    program(tmp_path / "only-these", "icpx", "echo")
    with pytest.raises(MissingToolError, match="no version"):
        plan_commands(request(kernel, XPU, tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "torch213-metal-aarch64-darwin",
        "torch213-cpu-aarch64-darwin",
        "torch213-cu130-x86_64-windows",
    ],
)
def test_what_the_native_builder_does_not_compile_names_who_does(
    kernel: Path, tmp_path: Path, name: str
) -> None:
    for call in (plan_commands, lambda asked: build_variant(asked, quiet)):
        with pytest.raises(
            MissingToolError, match=f"the native builder does not compile {name}"
        ) as caught:
            call(request(kernel, name, tmp_path))
        assert "--builder nix" in caught.value.hint
        assert "kci pack" in caught.value.hint
