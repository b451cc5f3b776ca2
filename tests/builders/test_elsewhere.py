"""What `--dry-run` prints of variants for other machines, held against the reference's CMake.

The expectations are the slots of the reference's generated project: its preamble, the components' templates and
compile-metal.cmake, as `docs/builders.md` names them. Nothing here was run on such a machine.
"""

from __future__ import annotations

import datetime
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from buildkit import copy_kernel, only_these, program, quiet, request, write_tree
from kci.builders import build_variant, elsewhere, plan_commands
from kci.builders.elsewhere import never_ran_digest
from kci.builders.never_ran import ran_on
from kci.builders.never_ran.ran_on import RanOn, heading, never_ran
from kci.errors import FindingsError, MissingToolError, UsageError
from kci.matrix.variants import Variant

XPU = "torch213-cxx11-xpu20260-x86_64-linux"
METAL = "torch213-metal-aarch64-darwin"
MAC = "torch213-cpu-aarch64-darwin"
WINDOWS_CPU = "torch213-cpu-x86_64-windows"
WINDOWS_CUDA = "torch213-cu130-x86_64-windows"
ARM = "torch213-cxx11-cpu-aarch64-linux"
ARM_CUDA = "torch213-cxx11-cu130-aarch64-linux"

NEVER_RAN = {XPU: "XPU", METAL: "macOS and Metal", MAC: "macOS and Metal"}
NEVER_RAN |= dict.fromkeys((WINDOWS_CPU, WINDOWS_CUDA), "Windows")

BUILD_TOML = """
    [general]
    name = "many"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cpu", "cuda", "metal", "rocm", "xpu"]

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

    [kernel.on_metal]
    backend = "metal"
    depends = ["torch"]
    include = ["metal/include"]
    src = ["metal/a.mm", "metal/a.metal", "metal/b/a.metal", "metal/c.c", "metal/a.h"]

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
    """A kernel with a component for every backend, and a PATH with nothing that compiles for another machine."""
    folder = only_these(monkeypatch, tmp_path, "git")
    program(folder, "g++", 'echo "g++ 12"')
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    names = ["torch-ext/torch_binding.cpp", "cpu/a.cpp", "cuda/a.cu", "xpu/a.cpp", "xpu/a.hpp"]
    names += ["metal/a.mm", "metal/a.metal", "metal/b/a.metal", "metal/c.c", "metal/a.h", "torch-ext/many/__init__.py"]
    files = dict.fromkeys(names, "\n") | {"torch-ext/torch_binding.cpp": "TORCH_EXTENSION_NAME\n"}
    return write_tree(tmp_path / "many", {"build.toml": BUILD_TOML, **files})


def printed(kernel: Path, name: str, tmp_path: Path) -> list[str]:
    asked = request(kernel, name, tmp_path)
    lines = plan_commands(asked, quiet)
    if what := NEVER_RAN.get(name.replace("20253", "20260")):
        assert lines.pop(0).startswith(f"# NEVER RAN: kci's commands for {what} (as of 20")
    assert lines[0].startswith("# not run by kci: ")
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
    assert "icpx 2026.0" in lines[0]
    assert lines[1].endswith("--index-url=https://download.pytorch.org/whl/xpu torch==2.13.0+xpu")
    component = words(lines, "-c kernel/xpu/a.cpp")
    sycl = [
        "-fPIC", "-fsycl", "-fhonor-nans", "-fhonor-infinities", "-fno-associative-math", "-fno-approx-func",
        "-foffload-fp32-prec-div", "-foffload-fp32-prec-sqrt", "-fno-sycl-instrument-device-code", "--offload-compress",
        "-fsycl-targets=spir64_gen,spir64",
    ]  # fmt: skip
    assert component[0] == "icpx"
    assert in_order(component, ["-std=gnu++20", "-O3", "-DNDEBUG", "-Wall", *sycl, "-DSYCL_ONLY"])
    assert {"-DXPU_KERNEL", "-DUSE_XPU", "-Ikernel/xpu/include"} <= set(component)
    assert "-fno-gnu-unique" not in component
    binding = words(lines, "-c kernel/torch-ext/torch_binding.cpp")
    assert "-fsycl" not in binding
    assert "-DTORCH_EXTENSION_NAME=_many_xpu_1a2b3c4" in binding
    link = words(lines, "-shared")
    options = (
        "-device pvc,xe-lpg,ats-m150 -options ' -cl-intel-enable-auto-large-GRF-mode "
        "-cl-poison-unsupported-fp64-kernels -cl-intel-greater-than-4GB-buffer-required'"
    )
    expected = ["-Wl,-z,noexecstack", "-fsycl", "--offload-compress", "-foffload-fp32-prec-div"]
    expected += ["-foffload-fp32-prec-sqrt", "-fsycl-targets=spir64_gen,spir64"]
    assert in_order(link, [*expected, "-Xsycl-target-backend=spir64_gen", options, "-ldnnl"])
    assert {"-lc10_xpu", "-ltorch_xpu", "-ltorch_cpu", "-ltorch", "-lc10"} <= set(link)


TLA = ["-DCUTLASS_ENABLE_SYCL=1", "-DDPCPP_SYCL_TARGET=intel_gpu_bmg_g21,intel_gpu_pvc", "-DSYCL_INTEL_TARGET=1"]
EXTENSIONS = "+SPV_INTEL_split_barrier,+SPV_INTEL_2d_block_io,+SPV_INTEL_subgroup_matrix_multiply_accumulate"


@pytest.fixture
def tla_kernel(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel with an XPU component that depends on SYCL*TLA, a checkout of which is here."""
    toml = (kernel / "build.toml").read_text()
    part = toml.index("[kernel.on_xpu]")
    (kernel / "build.toml").write_text(
        toml[:part] + toml[part:].replace('depends = ["torch"]', 'depends = ["torch", "sycl_tla"]', 1)
    )
    write_tree(tmp_path / "tla", {"include/cutlass/version.h": "", "tools/util/include/a.h": ""})
    monkeypatch.setenv("SYCL_TLA_SRC_DIR", str(tmp_path / "tla"))
    return kernel


def pairs(found: list[str], option: str) -> list[tuple[str, str]]:
    """Options of the link that take the next word, as what stands behind `=` and that word."""
    return [(word.partition("=")[2], after) for word, after in pairwise(found) if word.startswith(f"{option}=")]


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
    assert pairs(link, "-Xsycl-target-backend") == [("spir64_gen", f"-device pvc,bmg-g21,cri {OPTIONS}")]
    said = f"-spirv-ext=<those of icpx -###>,{EXTENSIONS}"
    assert pairs(link, "-Xspirv-translator") == [("spir64_gen", said), ("spir64", said)]


def test_one_component_with_sycl_tla_decides_for_all(tla_kernel: Path, tmp_path: Path) -> None:
    plain = '[kernel.plain]\nbackend = "xpu"\ndepends = ["torch"]\nsrc = ["xpu/a.cpp"]\n'
    toml = tla_kernel / "build.toml"
    toml.write_text(f"{toml.read_text()}\n{plain}")
    assert pairs(words(printed(tla_kernel, XPU, tmp_path), "-shared"), "-Xspirv-translator")


def test_sycl_tla_with_sources_for_one_gpu_alone(tla_kernel: Path, tmp_path: Path) -> None:
    toml = (tla_kernel / "build.toml").read_text()
    (tla_kernel / "build.toml").write_text(toml.replace("-DSYCL_ONLY", "-D__SYCL_TARGET_INTEL_GPU_CRI__"))
    lines = printed(tla_kernel, XPU, tmp_path)
    targets = "-fsycl-targets=intel_gpu_pvc,intel_gpu_bmg_g21,spir64_gen,spir64"
    assert targets in words(lines, "-c kernel/xpu/a.cpp")
    link = words(lines, "-shared")
    assert targets in link
    assert pairs(link, "-Xsycl-target-backend") == [
        ("intel_gpu_pvc", OPTIONS), ("intel_gpu_bmg_g21", OPTIONS), ("spir64_gen", f"-device cri {OPTIONS}"),
    ]  # fmt: skip
    assert [name for name, _ in pairs(link, "-Xspirv-translator")] == targets.partition("=")[2].split(",")


def test_sycl_tla_of_2025_is_made_when_it_is_loaded(tla_kernel: Path, tmp_path: Path) -> None:
    lines = printed(tla_kernel, XPU.replace("20260", "20253"), tmp_path)
    assert "-fsycl-targets=spir64" in words(lines, "-c kernel/xpu/a.cpp")
    assert pairs(words(lines, "-shared"), "-Xsycl-target-backend") == []


def test_the_extensions_that_icpx_has_stay(tla_kernel: Path, tmp_path: Path) -> None:
    said = 'case "$*" in *-###*) echo \' "-spirv-ext=-all,+SPV_A,+SPV_B" "-o"\' ;; *) echo DPC++ 2026.0.0 ;; esac'
    icpx = program(Path(tmp_path / "only-these"), "icpx", said)
    asked = request(tla_kernel, XPU, tmp_path)
    lines = plan_commands(asked)
    wanted = f"-spirv-ext=+SPV_A,+SPV_B,{EXTENSIONS}"
    assert {word for _, word in pairs(words(lines, "-Xspirv-translator"), "-Xspirv-translator")} == {wanted}
    program(icpx.parent, "icpx", "echo DPC++ 2026.0.0")
    assert "does not say which SPIR-V extensions" in plan_commands(asked)[1]


def test_xpu_with_its_compiler_here_is_built_as_any_other(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(Path(tmp_path / "only-these"), "icpx", "echo 'oneAPI DPC++/C++ Compiler 2026.0.0'")
    asked = request(kernel, XPU, tmp_path)
    lines = plan_commands(asked, quiet)
    assert not lines[0].startswith("# not run")
    assert words(lines, "-c kernel/xpu/a.cpp")[0] == str(tmp_path / "only-these/icpx")


def test_metal(kernel: Path, tmp_path: Path) -> None:
    lines = printed(kernel, METAL, tmp_path)
    shaders = [line for line in lines if line.startswith('"$METAL"/metal ')]
    assert len(shaders) == 2
    assert all("-std=metal4.0 -O2 -Ikernel/bind -Ikernel/metal/include -c kernel/metal/" in line for line in shaders)
    airs = [line.split()[-1] for line in shaders]
    assert len(set(airs)) == 2  # shaders of one base name overwrite each other in the reference
    assert f'"$METAL"/metallib {" ".join(airs)} -o _many_metal_1a2b3c4.metallib' in lines
    host = words(lines, "-c kernel/metal/a.mm")
    assert host[:3] == ["c++", "-x", "objective-c++"]
    assert in_order(host, ["-std=gnu++20", "-O3", "-DNDEBUG", "-arch", "arm64", "-mmacosx-version-min=26.0", "-fPIC"])
    assert {"-DMETAL_KERNEL", "-DEMBEDDED_METALLIB_NAMESPACE=_many_metal_1a2b3c4_metal", "-I."} <= set(host)
    assert '-DEMBEDDED_METALLIB_HEADER="_many_metal_1a2b3c4_metallib.h"' in host
    plain = words(lines, "-c kernel/metal/c.c")
    assert plain[0] == "cc"
    assert not any(word.startswith("-std") for word in plain)
    link = words(lines, "-bundle")
    assert "_many_metal_1a2b3c4.abi3.so" in link
    assert not any("rpath" in word for word in link)


def test_macos_cpu(kernel: Path, tmp_path: Path) -> None:
    lines = printed(kernel, MAC, tmp_path)
    assert "torch==2.13.0" in lines[1]  # torch's index has no +cpu for macOS
    host = words(lines, "-c kernel/cpu/a.cpp")
    assert in_order(host, ["c++", "-std=gnu++20", "-mmacosx-version-min=15.0", "-DCPU_KERNEL", "-fvisibility=hidden"])
    assert not any("metal" in line.lower() for line in lines)
    assert in_order(words(lines, "-bundle"), ["-undefined", "dynamic_lookup", "-ltorch_cpu", "-ltorch", "-lc10"])


def test_windows_cpu(kernel: Path, tmp_path: Path) -> None:
    lines = printed(kernel, WINDOWS_CPU, tmp_path)
    assert "# after: vcvarsall.bat x64" in lines
    host = words(lines, "/c kernel/cpu/a.cpp")
    assert host[0] == "cl"
    slots = ["/O2", "/Ob2", "/DNDEBUG", "/MD", "-std:c++20", "/permissive-", "/EHsc", "/bigobj"]
    assert set(slots) <= set(host)
    assert {word for word in host if word.startswith("-DUSE_")} == {"-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"}
    link = words(lines, "/DLL")
    assert "/OUT:_many_cpu_1a2b3c4.pyd" in link  # no abi3 part in its name
    assert {"torch.lib", "torch_cpu.lib", "c10.lib", "python3.lib"} <= set(link)
    objects = {word.removeprefix("/Fo") for line in lines for word in shlex.split(line) if word.startswith("/Fo")}
    assert objects <= set(link)


def test_windows_cuda(kernel: Path, tmp_path: Path) -> None:
    lines = printed(kernel, WINDOWS_CUDA, tmp_path)
    device = words(lines, "-c kernel/cuda/a.cu")
    assert in_order(device, ["nvcc", "-forward-unknown-to-host-compiler", "-std=c++20", "--expt-relaxed-constexpr"])
    assert "-gencode=arch=compute_90,code=sm_90" in device
    assert "--use_fast_math" in device
    assert {"torch_cuda.lib", "c10_cuda.lib", "cudart.lib"} <= set(words(lines, "/DLL"))


def test_another_architecture_by_a_cross_compiler(kernel: Path, tmp_path: Path) -> None:
    lines = printed(kernel, ARM, tmp_path)
    assert "--platform=manylinux_2_28_aarch64" in lines[1]
    assert words(lines, "-c kernel/cpu/a.cpp")[0] == "aarch64-linux-gnu-g++"
    assert words(lines, "-shared")[0] == "aarch64-linux-gnu-g++"
    cuda = printed(kernel, ARM_CUDA, tmp_path)
    device = words(cuda, "-c kernel/cuda/a.cu")
    assert in_order(device, ["-ccbin", "aarch64-linux-gnu-g++", "--target-directory", "sbsa-linux"])
    assert "-L/usr/local/cuda-13.0/targets/sbsa-linux/lib" in words(cuda, "-shared")


def test_toolkits_that_are_missing_are_assumed_at_their_usual_places(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: not str(self).startswith("/usr/local/cuda") and is_file(self))
    cuda = printed(kernel, "torch213-cxx11-cu126-x86_64-linux", tmp_path)
    assert words(cuda, "-c kernel/cuda/a.cu")[0] == "/usr/local/cuda-12.6/bin/nvcc"
    monkeypatch.setattr("kci.toolchains.rocm.OPT", tmp_path)
    rocm = printed(kernel, "torch213-cxx11-rocm72-x86_64-linux", tmp_path)
    device = words(rocm, "--offload-arch=gfx942")
    assert device[0] == "/opt/rocm-7.2/bin/hipcc"


def test_what_kci_has_no_commands_for_is_refused_as_before(kernel: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="needs a machine of x86_64-windows"):
        printed(kernel, "torch213-xpu20260-x86_64-windows", tmp_path)


def test_a_shader_belongs_to_metal_alone(kernel: Path, tmp_path: Path) -> None:
    text = (kernel / "build.toml").read_text().replace('src = ["cpu/a.cpp"]', 'src = ["metal/a.metal"]')
    (kernel / "build.toml").write_text(text)
    with pytest.raises(FindingsError, match=r"metal/a\.metal"):
        printed(kernel, MAC, tmp_path)


def test_tvm_ffi_for_cuda_is_printed_without_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these(monkeypatch, tmp_path)
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: not str(self).startswith("/usr/local/cuda") and is_file(self))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    kernel = copy_kernel("plus-one", tmp_path)
    text = (kernel / "build.toml").read_text()
    assert "[torch]" in text
    text = text.replace("[torch]", "[tvm-ffi]")
    text = text.replace('backend = "cpu"', 'backend = "cuda"').replace("csrc/plus_one.cpp", "csrc/plus_one.cu")
    (kernel / "build.toml").write_text(text)
    (kernel / "csrc/plus_one.cpp").rename(kernel / "csrc/plus_one.cu")
    (kernel / "torch-ext").rename(kernel / "tvm-ffi-ext")
    (kernel / "build.toml").write_text((kernel / "build.toml").read_text().replace("torch-ext/", "tvm-ffi-ext/"))
    lines = printed(kernel, "tvm-ffi01-cu130-x86_64-linux", tmp_path)
    assert "apache-tvm-ffi==0.1.15.post2" in lines[1]
    device = words(lines, "kernel/csrc/plus_one.cu")
    assert device[0] == "/usr/local/cuda-13.0/bin/nvcc"
    assert not any(word.startswith("-std") or "torch" in word for word in device)
    assert in_order(
        words(lines, "-shared"), ["-lcudadevrt", "-lcudart_static", "-ltvm_ffi", "-lrt", "-lpthread", "-ldl"]
    )


@pytest.mark.parametrize("system", ["x86_64-linux", "aarch64-linux", "aarch64-darwin", "x86_64-windows"])
@pytest.mark.parametrize("compute", ["cpu", "cu130", "rocm72", "xpu20260", "metal"])
def test_a_tvm_ffi_variant_has_commands_or_a_reason(kernel: Path, tmp_path: Path, compute: str, system: str) -> None:
    text = BUILD_TOML.replace("[torch]\n", "[tvm-ffi]\n").replace('depends = ["torch"]', "depends = []")
    write_tree(kernel, {"build.toml": text, "tvm-ffi-ext/many/__init__.py": "\n"})
    asked = request(kernel, f"tvm-ffi01-{compute}-{system}", tmp_path)
    if compute in ("cpu", "cu130") and system.endswith("linux"):
        assert any(" -c kernel/" in line for line in plan_commands(asked, quiet))
    else:
        with pytest.raises(MissingToolError) as caught:
            plan_commands(asked, quiet)
        assert caught.value.hint


def variant_of(kernel: Path, name: str, tmp_path: Path) -> Variant:
    return request(kernel, name, tmp_path).variant


def test_the_hash_of_what_never_ran_is_the_same_in_every_checkout(kernel: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(kernel, tmp_path / "far" / "away")
    for name in NEVER_RAN:
        one = never_ran_digest(request(kernel, name, tmp_path))
        other = request(copy, name, tmp_path / "far", cache=tmp_path / "other", kernel_id=f"_other_{name[:4]}")
        assert one == never_ran_digest(other), name
    (copy / "build.toml").write_text(BUILD_TOML.replace('["-Wall"]', '["-Wextra"]'))
    assert never_ran_digest(request(copy, XPU, tmp_path)) != never_ran_digest(request(kernel, XPU, tmp_path))
    assert never_ran_digest(request(kernel, ARM, tmp_path)) == ""


@pytest.mark.parametrize(("name", "ending"), [(METAL, ".abi3.so"), (MAC, ".abi3.so"), (WINDOWS_CUDA, ".pyd")])
def test_a_module_that_was_made_by_hand_becomes_a_variant(kernel: Path, tmp_path: Path, name: str, ending: str) -> None:
    made = tmp_path / "out.so"
    asked = request(kernel, name, tmp_path, module=made)
    with pytest.raises(FindingsError, match="is not a file"):
        build_variant(asked, quiet)
    made.write_bytes(b"the module")
    asked.output.mkdir(parents=True, exist_ok=True)
    assert build_variant(asked, quiet).builder == "by-hand"
    assert (asked.output / f"{asked.kernel_id}{ending}").read_bytes() == b"the module"
    assert asked.kernel_id in (asked.output / "_ops.py").read_text()
    assert (asked.output / "__init__.py").is_file()


@pytest.mark.parametrize("name", [XPU, ARM])
def test_what_kci_builds_itself_is_not_taken(kernel: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"kci builds .* itself"):
        build_variant(request(kernel, name, tmp_path, module=kernel / "build.toml"), quiet)


def test_a_record_turns_never_ran_into_ran_on(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the very commands; those of another kernel never ran."""
    one, data = request(kernel, XPU, tmp_path), never_ran()
    hashed = never_ran_digest(one)
    told = RanOn(
        "xpu", "many", XPU, hashed, "Intel Max 1100", "2.13.0+xpu", datetime.date(2026, 12, 1), "records/1.json"
    )
    monkeypatch.setattr(ran_on, "never_ran", lambda: msgspec.structs.replace(data, ran=(told,)))
    assert heading(one.variant, hashed) == ["# ran on Intel Max 1100 with torch 2.13.0+xpu, 2026-12-01: records/1.json"]
    (other,) = heading(one.variant, "0" * 64)
    assert other.startswith(
        "# NEVER RAN: kci's commands for XPU; others of the kind ran for many on Intel Max 1100, 2026"
    )
    (windows,) = heading(variant_of(kernel, WINDOWS_CPU, tmp_path), hashed)
    assert windows.startswith("# NEVER RAN: kci's commands for Windows (as of ")
    assert heading(variant_of(kernel, ARM, tmp_path), hashed) == []
    assert any(line.startswith("XPU: ran for many on Intel Max 1100") for line in ran_on.never_ran_text())


def test_what_never_ran_has_one_place() -> None:
    """Flags of these compilers stand nowhere else."""
    package = Path(elsewhere.__file__).parent.parent
    texts = {path: path.read_text() for path in package.rglob("*.py") if path.parent.name != "never_ran"}
    for word in ("-fsycl", "-mmacosx-version-min", "metallib -o", "/permissive-", '"cl"', "-Xsycl-target-backend"):
        assert [str(path) for path, text in texts.items() if word in text] == []
