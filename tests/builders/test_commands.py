"""The command lines of a native build, word for word, on a toolchain that is the same on every
machine.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from buildkit import CPU, CUDA, STABLE_CUDA, toolchain
from conftest import failure
from kci.builders.native.command_lines import (
    compile_command,
    host_compiler,
    link_command,
    stub_command,
    work_links,
)
from kci.builders.native.hipify import translate_units
from kci.builders.native.units import Unit
from kci.builders.toolchains.compilers import Toolchain
from kci.builders.toolchains.cuda import Toolkit, WheelFiles
from kci.builders.toolchains.cutlass import Headers
from kci.builders.toolchains.environment import Environment, tvm_ffi_environment
from kci.builders.toolchains.rocm import Rocm
from kci.config.values import Depend
from kci.errors import BuildFailedError

TVM_FFI, TVM_FFI_CUDA = "tvm-ffi01-cpu-x86_64-linux", "tvm-ffi01-cu130-x86_64-linux"
ROCM, STABLE_ROCM = "torch213-cxx11-rocm72-x86_64-linux", "torch-stable-abi211-rocm71-x86_64-linux"
ENVIRONMENT = Environment(Path("/env/python"), Path("/env/torch"), Path("/env/ninja"), Path("/env"))
CUTLASS = Headers("cutlass_3_8", Path("/cache/cutlass"), ("include", "tools/util/include"))
GCC = ["-fno-gnu-unique", "-fno-canonical-system-headers"]
DEFINES = ["-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-DUSE_RPC", "-DUSE_TENSORPIPE"]
HIP_DEFINES = ["-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"]
INCLUDES = [
    "-isystem", "torch/include", "-isystem", "torch/include/torch/csrc/api/include",
    "-isystem", "python",
]  # fmt: skip


def chain(name: str, **changes: object) -> Toolchain:
    tvm_ffi = name.startswith("tvm-ffi")
    own = tvm_ffi_environment(Path("/cache"), "0.1") if tvm_ffi else ENVIRONMENT
    return toolchain(name, own, **changes)


def compiled(unit: Unit, name: str = CPU, **changes: object) -> list[str]:
    return compile_command(chain(name, **changes), unit)


def linked(name: str = CPU, *objects: str, openmp: bool = False, **changes: object) -> list[str]:
    return link_command(chain(name, **changes), objects, openmp=openmp)


def unit(entry: str, *archs: str, flags: tuple[str, ...] = ()) -> Unit:
    language = "HIP" if "gfx" in "".join(archs) else "CUDA" if archs else "CXX"
    made, include = f"obj/000/{Path(entry).name}.o", (PurePosixPath("inc"),)
    return Unit(PurePosixPath(entry), entry, made, language, include, flags, archs)


CPP, CU = unit("csrc/a.cpp"), unit("csrc/a.cu", "8.0")


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libcudart.so.13").touch()
    return Toolkit("13.0", Path("/cuda/bin/nvcc"), tmp_path)


@pytest.fixture
def rocm(tmp_path: Path) -> Rocm:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libamdhip64.so").touch()
    return Rocm("7.2", "7.2.1", tmp_path)


# --- compiling ---


def test_a_cpp_source_of_a_full_build() -> None:
    command = compiled(replace(CPP, flags=("-DA b",)))
    assert command == [
        "g++", "-std=gnu++20", "-O3", "-DNDEBUG", "-fPIC", *GCC, "-frandom-seed=obj/000/a.cpp.o",
        "-DTORCH_EXTENSION_NAME=_k_cpu_1", "-DPy_LIMITED_API=0x03090000", "-DCPU_KERNEL", *DEFINES,
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Ikernel/csrc", *INCLUDES,
        "-DA b", "-MD", "-MF", "obj/000/a.cpp.o.d", "-c", "kernel/csrc/a.cpp", "-o",
        "obj/000/a.cpp.o",
    ]  # fmt: skip


def test_a_cpp_source_for_tvm_ffi() -> None:
    assert compiled(CPP, TVM_FFI) == [
        "g++", "-O3", "-DNDEBUG", "-fPIC", *GCC, "-frandom-seed=obj/000/a.cpp.o",
        "-DCPU_KERNEL", "-DTVM_FFI_EXTENSION_NAME=_k_cpu_1", "-Ikernel/inc", "-isystem",
        "tvm_ffi/include", "-MD", "-MF", "obj/000/a.cpp.o.d", "-c", "kernel/csrc/a.cpp", "-o",
        "obj/000/a.cpp.o",
    ]  # fmt: skip


def test_a_cuda_source_of_a_stable_abi_build(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVCC_THREADS", "2")
    source = unit("csrc/a.cu", "8.0", "9.0a", "12.0+PTX", flags=("--use_fast_math",))
    host = ("-fPIC", *GCC, "-frandom-seed=obj/000/a.cu.o")
    assert compiled(source, STABLE_CUDA, device=toolkit) == [
        "/cuda/bin/nvcc", "-ccbin", "g++", "-std=c++20", "-O3", "-DNDEBUG",
        "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DENABLE_FP8",
        "-DONNX_NAMESPACE=onnx_c2", "--threads", "2",
        "-Xcudafe", "--orig_src_path_name=/kci/kernel/csrc/a.cu", "--frandom-seed=obj/000/a.cu.o",
        "-objtemp",
        "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120,code=sm_120", "-gencode=arch=compute_120,code=compute_120",
        *(word for option in host for word in ("-Xcompiler", option)),
        "-DTORCH_EXTENSION_NAME=_k_cuda_1", "-DPy_LIMITED_API=0x03090000", "-DCUDA_KERNEL",
        "-DUSE_CUDA=1", *DEFINES, "-DUSE_C10D_NCCL", "-DUSE_NVSHMEM",
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Ikernel/csrc", *INCLUDES,
        "--use_fast_math", "-MD", "-MF", "obj/000/a.cu.o.d", "-c", "kernel/csrc/a.cu", "-o",
        "obj/000/a.cu.o",
    ]  # fmt: skip


def test_a_translated_source(rocm: Rocm) -> None:
    (made,), names = translate_units([unit("csrc/a.cu", "gfx90a", "gfx1100", flags=("-ffast",))])
    assert names == {"csrc/a.cu": "csrc/a.hip"}
    assert compiled(made, ROCM, device=rocm) == [
        f"{rocm.root}/bin/hipcc", "--rocm-path=rocm", "-std=c++20", "-O3", "-DNDEBUG",
        "--offload-arch=gfx90a", "--offload-arch=gfx1100", "-fno-gpu-rdc", "-cuid=e429c5ee97e923b8",
        "-fPIC", "-DCUDA_HAS_FP16=1", "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1", "-DENABLE_FP8",
        "-DTORCH_EXTENSION_NAME=_k_rocm_1", "-DPy_LIMITED_API=0x03090000", *HIP_DEFINES, *DEFINES,
        "-Igenerated/torch-ext", "-Ihip/inc", "-Ihip/csrc", *INCLUDES, "-isystem", "rocm/include",
        "-ffast", "-MD", "-MF", "obj/000/a.cu.o.d", "-x", "hip", "-c", "hip/csrc/a.hip", "-o",
        "obj/000/a.cu.o",
    ]  # fmt: skip


def test_what_is_not_translated_is_compiled_where_it_is(rocm: Rocm) -> None:
    """And a C++ source by g++, which sees the headers of HIP."""
    (hip, cpp), names = translate_units([unit("csrc/cuda/a.hip", "gfx942"), CPP])
    command = compiled(hip, ROCM, device=rocm)
    assert (names, command[-3]) == ({}, "kernel/csrc/cuda/a.hip")
    assert [word for word in command if word.startswith("-I")][1:] == [
        "-Ikernel/inc", "-Ikernel/csrc",
    ]  # fmt: skip
    command = compiled(cpp, ROCM, device=rocm)
    assert command[:2] == ["g++", "-std=gnu++20"]
    assert {*HIP_DEFINES, "rocm/include", "kernel/csrc/a.cpp"} <= set(command)


def test_each_source_of_a_module_has_a_cuid_of_its_own(rocm: Rocm) -> None:
    def cuid(entry: str, kernel_id: str = "_k_rocm_1") -> list[str]:
        made = replace(chain(ROCM, device=rocm), kernel_id=kernel_id)
        command = compile_command(made, unit(entry, "gfx90a"))
        return [word for word in command if word.startswith("-cuid=")]

    assert cuid("a.hip") == cuid("a.hip")
    assert len({*cuid("a.hip"), *cuid("b.hip"), *cuid("a.hip", "_other_rocm_1")}) == 3
    assert cuid("a.hip") == cuid("a.hip", "_k_rocm_2"), "a new commit compiles nothing anew"


def test_what_a_toolkit_adds(toolkit: Toolkit, rocm: Rocm) -> None:
    """The system's directory is never named as an include."""
    command = compiled(CPP, CUDA, device=toolkit)
    assert {"-DCUDA_KERNEL", "-DUSE_CUDA=1", "cuda/include", "cuda/include/cccl"} <= set(command)
    assert not any("TORCH_TARGET_VERSION" in word or "gencode" in word for word in command)
    for name, device in ((CUDA, toolkit), (ROCM, rocm)):
        system = replace(device, root=Path("/usr"))
        command = compiled(CPP, name, device=system)
        assert not any(word.startswith(("cuda/", "rocm/")) for word in command)
    command = compiled(CU, TVM_FFI_CUDA, device=toolkit)
    assert {"-DCUDA_KERNEL", "-gencode=arch=compute_80,code=sm_80"} <= set(command)
    for part in ("torch", "std=", "fp8", "expt"):
        assert not any(part in word.lower() for word in command)
    old = replace(toolkit, reproducible=False)
    command = compiled(CU, "torch213-cxx11-cu126-x86_64-linux", device=old)
    assert not any(word == "-objtemp" or word.startswith("--frandom-seed") for word in command)


def test_where_headers_come(toolkit: Toolkit, rocm: Rocm) -> None:
    """The compat headers before those of the system, dependencies between a component's own and
    csrc, those of CUDA's libraries behind torch's, and translated ones of torch before the others.
    """
    command = compiled(CPP, glibc_compat=True, headers=(CUTLASS,))
    assert command[command.index("-isystem") + 1] == "compat"
    assert [word for word in command if word.startswith("-I")] == [
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Icutlass_3_8/include",
        "-Icutlass_3_8/tools/util/include", "-Ikernel/csrc",
    ]  # fmt: skip
    made = chain(CUDA, device=toolkit, cuda_headers=WheelFiles(Path("/cache/libs"), ()))
    assert work_links(made)["cuda-headers"] == Path("/cache/libs")
    for source in (CPP, CU):
        command = compile_command(made, source)
        assert command[command.index("cuda-headers") - 1] == "-isystem"
        assert command.index("torch/include") < command.index("cuda-headers")
    for source in (CPP, unit("a.hip", "gfx90a")):
        command = compiled(source, STABLE_ROCM, device=rocm)
        assert "-DTORCH_TARGET_VERSION=0x020b000000000000" in command
        assert command.index("torch-hip") < command.index("torch/include")
        assert "torch-hip" not in compiled(source, ROCM, device=rocm)


def test_a_component_sees_its_own_dependencies_first() -> None:
    newer = replace(CUTLASS, name="cutlass_4_5", include=("include",))
    asks = replace(CPP, depends=(Depend.TORCH, Depend("cutlass_4_5")))
    for found, order in (
        (asks, ["cutlass_4_5", "cutlass_3_8"]),
        (CPP, ["cutlass_3_8", "cutlass_4_5"]),
    ):
        command = compiled(found, headers=(CUTLASS, newer))
        named = [word[2:].partition("/")[0] for word in command if word.startswith("-Icutlass")]
        assert list(dict.fromkeys(named)) == order


@pytest.mark.parametrize("name", [CPU, TVM_FFI])
def test_a_source_that_never_mentions_the_name_is_not_given_it(name: str) -> None:
    words = " ".join(compiled(replace(CPP, uses_name=False), name))
    assert "_EXTENSION_NAME=@ " in words
    assert "_k_cpu_1" not in words


def test_every_compiler_is_started_through_the_compiler_cache(toolkit: Toolkit) -> None:
    ccache = Path("/usr/bin/ccache")
    for source, program in ((CPP, "g++"), (CU, "/cuda/bin/nvcc")):
        command = compiled(source, CUDA, device=toolkit, launcher=ccache)
        assert command[:2] == [str(ccache), program]


@pytest.mark.parametrize(
    ("torch", "standard"), [("211", 17), ("212", 20), ("213", 20), ("216", 20)]
)
def test_the_standard_follows_torch(torch: str, standard: int) -> None:
    assert f"-std=gnu++{standard}" in compiled(CPP, f"torch{torch}-cxx11-cpu-x86_64-linux")


def test_a_stable_abi_without_a_minor_is_refused() -> None:
    name = "torch-stable-abi30-cpu-x86_64-linux"
    failure(BuildFailedError, r"3\.0 cannot be built", compiled, CPP, name)


def test_nvcc_gets_the_compiler_behind_a_launcher() -> None:
    for words in ("*g++", "ccache *g++-12", "/usr/bin/sccache */opt/g++ -m64"):
        compiler = words.partition("*")[2].partition(" ")[0]
        assert host_compiler(tuple(words.replace("*", "").split())) == compiler


# --- linking ---


def test_linking_a_full_cpu_build() -> None:
    end = ["-Wl,--strip-debug", "-Wl,--discard-all", "-Wl,--version-script=exports.map",
           "-Wl,--as-needed", "-lstdc++"]  # fmt: skip
    begin = ["g++", "-shared", "-o", "_k_cpu_1.abi3.so", "a.o", "b.o", *end]
    assert linked(CPU, "a.o", "b.o") == [*begin, "-Ltorch/lib", "-ltorch_cpu", "-ltorch", "-lc10"]
    begin = ["g++", "-shared", "-Wl,-soname,_k_cpu_1.so", "-o", "_k_cpu_1.so", "a.o", *end]
    assert linked(TVM_FFI, "a.o") == [*begin, "-Ltvm_ffi/lib", "-ltvm_ffi"]
    assert linked(openmp=True)[-1] == "-l:libgomp.so.1"
    assert not any("gomp" in word for word in linked())


def test_which_libraries_of_a_device_are_linked(toolkit: Toolkit, rocm: Rocm) -> None:
    """Stubs stand for those that the wheel lacks or that are large; order matters."""
    stub, needed = ["-Wl,--no-as-needed", "-Lstub"], ["-Wl,--as-needed", "-lstdc++", "-Ltorch/lib"]
    cudart = [f"-L{toolkit.root / 'lib64'}", "-l:libcudart.so.13"]
    hip = [f"-L{rocm.root / 'lib'}", "-lamdhip64", "-ltorch_cpu"]
    only = replace(ENVIRONMENT, headers_only=True)
    for made, words in (
        (chain(STABLE_CUDA, device=toolkit),
            [*stub, "-ltorch_cuda", *needed, *cudart, "-ltorch_cpu"]),
        (toolchain(CUDA, only, device=toolkit),
            [*stub, "-ltorch_cuda", "-ltorch_cpu", *needed, "-lc10_cuda", *cudart, "-ltorch",
             "-lc10"]),
        (chain(STABLE_ROCM, device=rocm), [*stub, "-ltorch_hip", *needed, *hip]),
        (chain(ROCM, device=rocm),
            [*needed, "-ltorch_hip", "-lc10_hip", *hip, "-ltorch", "-lc10"]),
    ):  # fmt: skip
        assert link_command(made, ["a.o"])[-len(words) :] == words
    assert work_links(made)["rocm"] == rocm.root
    command = stub_command(made, "torch_hip")
    assert "-Wl,-soname,libtorch_hip.so" in command
    assert command[-1] == "stub/libtorch_hip.so"


@pytest.mark.parametrize("name", [CPU, TVM_FFI])
def test_an_older_glibc_comes_before_every_other_library(name: str) -> None:
    command = linked(name, glibc_compat=True)
    first = command.index("stub/libdl.so.2")
    assert command[first - 3 : first] == ["obj/compat.o", "stub/libolder.a", "-Wl,--as-needed"]
    assert first < next(place for place, word in enumerate(command) if word.startswith("-l"))
    assert not any("libdl" in word for word in linked(name))


def test_tvm_ffi_links_the_static_runtime_of_cuda(toolkit: Toolkit) -> None:
    command = linked(TVM_FFI_CUDA, "a.o", device=toolkit)
    assert command[-3:] == ["-lrt", "-lpthread", "-ldl"]
    assert not any("torch" in word for word in command)
    # What stands in for newer functions has to come behind the static runtime that calls them.
    behind = linked(TVM_FFI_CUDA, "a.o", device=toolkit, glibc_compat=True)
    order = ("-lcudart_static", "stub/libolder.a", "stub/libpthread.so.0")
    places = [behind.index(word) for word in order]
    assert places == sorted(places)
