"""The command lines of a native build, word for word, on a toolchain that is the same on every
machine.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec
import pytest

from buildkit import CPU, CUDA, STABLE_CUDA, toolchain
from conftest import failure
from kci.builders.native.command_lines import (
    compile_command,
    host_compiler,
    link_command,
    stub_command,
    work_links,
)
from kci.builders.native.units import Unit
from kci.builders.toolchains.cuda import Toolkit, WheelFiles
from kci.builders.toolchains.cutlass import Headers
from kci.builders.toolchains.environment import Environment
from kci.config.values import Depend
from kci.errors import BuildFailedError

TORCH = Path("/env/torch")
ENVIRONMENT = Environment(
    python=Path("/env/python"), torch=TORCH, ninja=Path("/env/ninja"), root=Path("/env")
)


CUTLASS = Headers("cutlass_3_8", Path("/cache/cutlass"), ("include", "tools/util/include"))


def compiled(unit: Unit, name: str = CPU, **changes: object) -> list[str]:
    return compile_command(toolchain(name, ENVIRONMENT, **changes), unit)


def linked(name: str = CPU, *objects: str, openmp: bool = False, **changes: object) -> list[str]:
    return link_command(toolchain(name, ENVIRONMENT, **changes), objects, openmp=openmp)


def unit(language: str, *archs: str, flags: tuple[str, ...] = ()) -> Unit:
    name = "a.cu" if language == "CUDA" else "a.cpp"
    source, include = PurePosixPath("csrc") / name, (PurePosixPath("inc"),)
    return Unit(source, f"csrc/{name}", f"obj/000/{name}.o", language, include, flags, archs)


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libcudart.so.13").touch()
    return Toolkit("13.0", Path("/cuda/bin/nvcc"), tmp_path)


TORCH_DEFINES = ["-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-DUSE_RPC", "-DUSE_TENSORPIPE"]
TORCH_INCLUDES = [
    "-isystem", "torch/include",
    "-isystem", "torch/include/torch/csrc/api/include",
    "-isystem", "python",
]  # fmt: skip


def test_a_cpp_source_of_a_full_build() -> None:
    command = compiled(unit("CXX", flags=("-DA b",)))
    assert command == [
        "g++", "-std=gnu++20", "-O3", "-DNDEBUG", "-fPIC", "-fno-gnu-unique",
        "-fno-canonical-system-headers",
        "-frandom-seed=obj/000/a.cpp.o",
        "-DTORCH_EXTENSION_NAME=_k_cpu_1", "-DPy_LIMITED_API=0x03090000", "-DCPU_KERNEL",
        *TORCH_DEFINES,
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Ikernel/csrc", *TORCH_INCLUDES,
        "-DA b", "-MD", "-MF", "obj/000/a.cpp.o.d", "-c", "kernel/csrc/a.cpp", "-o",
        "obj/000/a.cpp.o",
    ]  # fmt: skip


def test_a_cuda_source_of_a_stable_abi_build(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = unit("CUDA", "8.0", "9.0a", "12.0+PTX", flags=("--use_fast_math",))
    monkeypatch.setenv("NVCC_THREADS", "2")
    command = compiled(source, STABLE_CUDA, device=toolkit)
    options = ("-fno-gnu-unique", "-fno-canonical-system-headers", "-frandom-seed=obj/000/a.cu.o")
    host = [word for option in ("-fPIC", *options) for word in ("-Xcompiler", option)]
    assert command == [
        "/cuda/bin/nvcc", "-ccbin", "g++", "-std=c++20", "-O3", "-DNDEBUG",
        "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DENABLE_FP8",
        "-DONNX_NAMESPACE=onnx_c2",
        "--threads", "2",
        "-Xcudafe", "--orig_src_path_name=/kci/kernel/csrc/a.cu", "--frandom-seed=obj/000/a.cu.o",
        "-objtemp",
        "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120,code=sm_120", "-gencode=arch=compute_120,code=compute_120",
        *host,
        "-DTORCH_EXTENSION_NAME=_k_cuda_1", "-DPy_LIMITED_API=0x03090000", "-DCUDA_KERNEL",
        "-DUSE_CUDA=1",
        *TORCH_DEFINES, "-DUSE_C10D_NCCL", "-DUSE_NVSHMEM",
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Ikernel/csrc", *TORCH_INCLUDES,
        "--use_fast_math", "-MD", "-MF", "obj/000/a.cu.o.d", "-c", "kernel/csrc/a.cu", "-o",
        "obj/000/a.cu.o",
    ]  # fmt: skip


def test_a_cpp_source_of_a_cuda_build_sees_the_toolkit(toolkit: Toolkit) -> None:
    """Unless it is in the system's directory, which is never named as an include."""
    command = compiled(unit("CXX"), CUDA, device=toolkit)
    assert {"-DCUDA_KERNEL", "-DUSE_CUDA=1", "cuda/include", "cuda/include/cccl"} <= set(command)
    assert not any("TORCH_TARGET_VERSION" in word or "gencode" in word for word in command)
    device = Toolkit("13.0", Path("/usr/bin/nvcc"), Path("/usr"))
    assert not any("cuda/" in word for word in compiled(unit("CXX"), CUDA, device=device))


@pytest.mark.parametrize("name", [CPU, "tvm-ffi01-cpu-x86_64-linux"])
def test_an_older_glibc_comes_before_every_other_library(name: str) -> None:
    command = linked(name, glibc_compat=True)
    first = command.index("stub/libdl.so.2")
    assert command[first - 3 : first] == ["obj/compat.o", "stub/libolder.a", "-Wl,--as-needed"]
    assert first < next(place for place, word in enumerate(command) if word.startswith("-l"))
    assert not any("libdl" in word for word in linked(name))


def test_where_headers_come() -> None:
    """The compat headers before those of the system, dependencies between a component's own and
    csrc.
    """
    command = compiled(unit("CXX"), glibc_compat=True, headers=(CUTLASS,))
    assert command[command.index("-isystem") + 1] == "compat"
    assert [word for word in command if word.startswith("-I")] == [
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Icutlass_3_8/include",
        "-Icutlass_3_8/tools/util/include",
        "-Ikernel/csrc",
    ]  # fmt: skip


def test_a_component_sees_its_own_dependencies_first() -> None:
    newer = msgspec.structs.replace(CUTLASS, name="cutlass_4_5", include=("include",))
    asks = msgspec.structs.replace(unit("CXX"), depends=(Depend.TORCH, Depend("cutlass_4_5")))
    for found, order in (
        (asks, ["cutlass_4_5", "cutlass_3_8"]),
        (unit("CXX"), ["cutlass_3_8", "cutlass_4_5"]),
    ):
        command = compiled(found, headers=(CUTLASS, newer))
        named = [word[2:].partition("/")[0] for word in command if word.startswith("-Icutlass")]
        assert list(dict.fromkeys(named)) == order


def test_a_source_that_never_mentions_the_name_is_not_given_it() -> None:
    command = compiled(msgspec.structs.replace(unit("CXX"), uses_name=False))
    assert "-DTORCH_EXTENSION_NAME=@" in command
    assert not any("_k_cpu_1" in word for word in command)


def test_an_nvcc_without_the_options_for_equal_bytes_is_not_given_them(toolkit: Toolkit) -> None:
    old = msgspec.structs.replace(toolkit, reproducible=False)
    command = compiled(unit("CUDA", "8.0"), "torch213-cxx11-cu126-x86_64-linux", device=old)
    assert not any(word == "-objtemp" or word.startswith("--frandom-seed") for word in command)


def test_every_compiler_is_started_through_the_compiler_cache(toolkit: Toolkit) -> None:
    ccache = Path("/usr/bin/ccache")
    for language, program in (("CXX", "g++"), ("CUDA", "/cuda/bin/nvcc")):
        command = compiled(unit(language, "8.0"), CUDA, device=toolkit, launcher=ccache)
        assert command[:2] == [str(ccache), program]


def test_openmp_is_linked_as_torch_links_it_and_only_where_it_is_used() -> None:
    assert linked(openmp=True)[-1] == "-l:libgomp.so.1"
    assert not any("gomp" in word for word in linked())


@pytest.mark.parametrize(
    ("torch", "standard"), [("211", 17), ("212", 20), ("213", 20), ("216", 20)]
)
def test_the_standard_follows_torch(torch: str, standard: int) -> None:
    assert f"-std=gnu++{standard}" in compiled(unit("CXX"), f"torch{torch}-cxx11-cpu-x86_64-linux")


def test_linking_a_full_cpu_build() -> None:
    assert linked(CPU, "a.o", "b.o") == [
        "g++", "-shared", "-o", "_k_cpu_1.abi3.so", "a.o", "b.o", "-Wl,--strip-debug",
        "-Wl,--discard-all",
        "-Wl,--version-script=exports.map",
        "-Wl,--as-needed", "-lstdc++", "-Ltorch/lib", "-ltorch_cpu", "-ltorch", "-lc10",
    ]  # fmt: skip


def test_linking_a_stable_abi_cuda_build_names_the_stub(toolkit: Toolkit) -> None:
    assert linked(STABLE_CUDA, "a.o", device=toolkit) == [
        "g++", "-shared", "-o", "_k_cuda_1.abi3.so", "a.o", "-Wl,--strip-debug",
        "-Wl,--discard-all",
        "-Wl,--version-script=exports.map",
        "-Wl,--no-as-needed", "-Lstub", "-ltorch_cuda", "-Wl,--as-needed", "-lstdc++",
        "-Ltorch/lib",
        f"-L{toolkit.root / 'lib64'}", "-l:libcudart.so.13", "-ltorch_cpu",
    ]  # fmt: skip
    stub = stub_command(toolchain(STABLE_CUDA, ENVIRONMENT), "torch_cuda")
    assert "-Wl,-soname,libtorch_cuda.so" in stub


def test_linking_a_full_cuda_build_against_headers_alone(toolkit: Toolkit) -> None:
    headers = msgspec.structs.replace(ENVIRONMENT, headers_only=True)
    command = link_command(toolchain(CUDA, headers, device=toolkit), ["a.o"])
    assert command[command.index("-Wl,--no-as-needed") :] == [
        "-Wl,--no-as-needed", "-Lstub", "-ltorch_cuda", "-ltorch_cpu", "-Wl,--as-needed",
        "-lstdc++", "-Ltorch/lib",
        "-lc10_cuda", f"-L{toolkit.root / 'lib64'}", "-l:libcudart.so.13", "-ltorch", "-lc10",
    ]  # fmt: skip


def test_the_headers_of_cudas_libraries_come_after_torchs(toolkit: Toolkit) -> None:
    files = WheelFiles(Path("/cache/libs"), ())
    made = toolchain(CUDA, ENVIRONMENT, device=toolkit, cuda_headers=files)
    for language in ("CXX", "CUDA"):
        command = compile_command(made, unit(language, "8.0"))
        assert command[command.index("cuda-headers") - 1] == "-isystem"
        assert command.index("torch/include") < command.index("cuda-headers")
    assert work_links(made)["cuda-headers"] == Path("/cache/libs")


def test_a_stable_abi_without_a_minor_is_refused() -> None:
    name = "torch-stable-abi30-cpu-x86_64-linux"
    failure(BuildFailedError, r"3\.0 cannot be built", compiled, unit("CXX"), name)


def test_nvcc_gets_the_compiler_behind_a_launcher() -> None:
    for words in ("*g++", "ccache *g++-12", "/usr/bin/sccache */opt/g++ -m64"):
        compiler = words.partition("*")[2].partition(" ")[0]
        assert host_compiler(tuple(words.replace("*", "").split())) == compiler
