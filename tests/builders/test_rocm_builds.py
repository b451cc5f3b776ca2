"""A ROCm variant for the stable ABI, really translated, compiled and linked by AMD's own compiler,
without a GPU.

Debian 12 has it: hipcc of HIP 5.2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from buildkit import (
    DATA,
    built_once,
    copy_kernel,
    quiet,
    request,
    warm_cache,
    with_changes,
    write_tree,
)
from kci.builders import BuildResult, build_variant
from kci.builders.native import builder, hipify
from kci.builders.native.hipify import hip_path
from kci.builders.request import Request
from kci.builders.toolchains.environment import kci_environment
from kci.errors import MissingToolError
from kci.tree.metadata import metadata_for, seal
from kci.tree.verify import verify
from kci.tree.verify.fatbin import HIP_SECTION, hip_code

INSTALL = "apt-get install hipcc libamdhip64-dev rocm-device-libs libthrust-dev"
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the variants of these tests are for x86_64"
    ),
    pytest.mark.skipif(shutil.which("hipcc") is None, reason=f"hipcc is not installed ({INSTALL})"),
]

NAME, FULL = "torch-stable-abi211-rocm52-x86_64-linux", "torch213-cxx11-rocm52-x86_64-linux"
RUNTIME = "libamdhip64.so.5"
PLAIN = """[general]
name = "plain"
version = 1
edition = 5
license = "MIT"
backends = ["rocm"]
[torch]
src = ["binding.cpp"]
[kernel.plain]
backend = "rocm"
depends = ["torch"]
src = ["csrc/cuda/a.cu"]
rocm-archs = ["gfx90a"]
"""
"""The build.toml of kernels whose sources include nothing of torch."""


@pytest.fixture(scope="module", autouse=True)
def _hipcc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("HIP_PLATFORM", "amd")  # an nvcc on the PATH would be taken otherwise
        # Debian's HIP has no thrust of its own: Debian's thrust is told to use no CUDA.
        monkeypatch.setenv(
            "HIPCC_COMPILE_FLAGS_APPEND", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"
        )
        told = subprocess.run(
            ["hipconfig", "--version"], capture_output=True, text=True, check=False
        ).stdout
        if not told.startswith("5.2."):
            pytest.skip(
                f"this hipcc is of HIP {told.strip()[:20]}, and the test is about Debian's 5.2"
            )
        yield


def with_archs_of_hip(kernel: Path) -> None:
    """The kernel for archs that this HIP knows."""
    text = (kernel / "build.toml").read_text()
    text = text.replace('["gfx942", "gfx90a", "gfx1100", "gfx940"]', '["gfx90a", "gfx1030"]')
    (kernel / "build.toml").write_text(text.replace('["gfx942"]', '["gfx90a"]'))


@pytest.fixture(scope="module")
def halve(shared_by_workers: Path) -> Request:
    """The variant as it was built."""
    return built_once(shared_by_workers, "halve", NAME, with_archs_of_hip)


def built(what: Request) -> BuildResult:
    return build_variant(what, quiet)


def module(what: Request) -> Path:
    return what.output / f"{what.kernel_id}.abi3.so"


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def looked_at(library: Path) -> tuple[set[str], set[str], frozenset[str]]:
    """The libraries that a library needs, the symbols that it leaves open, and the GPUs that it has
    code for.
    """
    with library.open("rb") as handle:
        elf = ELFFile(handle)
        device = elf.get_section_by_name(HIP_SECTION)
        dynamic, symbols = elf.get_section_by_name(".dynamic"), elf.get_section_by_name(".dynsym")
        assert device is not None
        assert isinstance(dynamic, DynamicSection)
        assert isinstance(symbols, SymbolTableSection)
        needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
        undefined = {
            item.name for item in symbols.iter_symbols() if item.entry.st_shndx == "SHN_UNDEF"
        }
        return needed, undefined, hip_code(device.data()).binary


def test_a_stable_abi_variant_holds_code_for_the_archs_that_were_asked_for(
    halve: Request, tmp_path: Path
) -> None:
    assert files(halve.kernel_dir).keys() == files(DATA / "halve").keys(), (
        "nothing is written there"
    )
    needed, undefined, device = looked_at(module(halve))
    assert device == {"gfx1030", "gfx90a"}
    assert {"libtorch_hip.so", RUNTIME} <= needed
    assert not any("cuda" in name for name in needed)
    assert (
        "aoti_torch_get_current_cuda_stream" in undefined
    )  # so it is called in torch's libraries for ROCm, too
    assert "hipLaunchKernel" in undefined
    assert not any(name.startswith("cuda") for name in undefined)

    variant = Path(shutil.copytree(halve.output, tmp_path / NAME))
    seal(variant, metadata_for(halve.build, "rocm", "1a2b3c4", archs=tuple(sorted(device))))
    assert [
        (found.rule, found.message) for found in verify(variant, ignore=["KCI716", "KCI750"])
    ] == []


@pytest.mark.usefixtures("as_users_compile", "as_old_as_users_systems")
def test_a_rebuild_has_what_changed_in_the_sources_and_in_their_translation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = write_tree(
        tmp_path / "plain",
        {
            "build.toml": PLAIN.replace(
                'a.cu"', 'a.cu", "csrc/cuda/b.cu", "csrc/cuda/launch_cuda.cuh"'
            ),
            "torch-ext/plain/__init__.py": "",
            "binding.cpp": "void launch(float* data);\nvoid call(float* data) { launch(data); }\n",
            "csrc/cuda/b.cu": "__global__ void other(float* data) { data[threadIdx.x] = 2; }\n",
            "csrc/cuda/a.cu": """
                #include "launch_cuda.cuh"
                __global__ void kernel(float* data) { data[threadIdx.x] = 1; }
                void launch(float* data) { kernel<<<1, 32, 0, stream()>>>(data); }
            """,
            "csrc/cuda/launch_cuda.cuh": """
                #pragma once
                #include <cuda_runtime.h>
                inline cudaStream_t stream() { return nullptr; }
            """,
        },
    )
    what = request(kernel, NAME, tmp_path, cache=warm_cache(tmp_path))

    def compiled() -> int:
        use = built(what).objects
        assert use is not None
        return use.made

    every = compiled()
    assert every > 2
    first = module(what).read_bytes()
    launch = kernel / "csrc/cuda/launch_cuda.cuh"
    launch.write_text(launch.read_text().replace("return nullptr", "return (cudaStream_t)1"))
    assert compiled() == every, (
        "a header counts for each source: what a GPU's pass reads is in no list of clang's"
    )
    assert module(what).read_bytes() != first
    launch.write_text(launch.read_text().replace("return (cudaStream_t)1", "return nullptr"))
    other = kernel / "csrc/cuda/b.cu"
    text = other.read_text()
    other.write_text(
        f"{text}#if __gfx90a__\n"
        "__device__ __host__ __attribute__((used)) int more() { return 3; }\n#endif\n"
    )
    assert compiled() == 1
    edited = module(what).read_bytes()
    with monkeypatch.context() as patch:
        patch.setenv("KCI_COMPILER_CACHE", "off")
        built(what)
    assert module(what).read_bytes() == edited
    other.write_text(text)
    (kernel / "notes.txt").write_text("no source\n")
    assert compiled() == 0
    assert module(what).read_bytes() == first


@pytest.mark.usefixtures("compiles_anew")
def test_the_same_sources_give_the_same_bytes_elsewhere(halve: Request, tmp_path: Path) -> None:
    elsewhere = tmp_path / "some where" / "else"
    shutil.copytree(halve.kernel_dir, elsewhere)
    other = request(
        elsewhere, NAME, tmp_path, cache=warm_cache(tmp_path), output=tmp_path / "other" / NAME
    )
    made = built(other)
    assert made.archs == ("gfx1030", "gfx90a")
    binary = module(other).read_bytes()
    assert binary == module(halve).read_bytes()
    for folder in (tmp_path, halve.kernel_dir.parent):
        assert str(folder).encode() not in binary


def test_a_full_build_refuses_a_torch_that_is_not_for_rocm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = warm_cache(tmp_path)
    full = request(copy_kernel("halve", tmp_path), FULL, tmp_path, cache=cache, isolation=False)
    cpu = msgspec.structs.replace(kci_environment(cache, "2.13", "cpu"), root=None)
    monkeypatch.setattr(builder, "python_environment", lambda: cpu)
    with pytest.raises(
        MissingToolError, match=r"needs a torch for ROCm 5\.2, and .* is for the CPU"
    ):
        build_variant(with_changes(full, isolation=False), quiet)


def test_a_full_build_links_the_libraries_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a torch that has all that is looked at: the hipify of the real one, its version, and
    libraries to link.
    """
    environment = kci_environment(warm_cache(tmp_path), "2.13", "cpu")
    version = "__version__ = '2.13.0+rocm5.2'\ncuda = None\nhip = '5.2.21153'\n"
    stand_in = write_tree(tmp_path / "site/torch", {"__init__.py": "", "version.py": version})
    for part in ("utils", "include"):
        (stand_in / part).symlink_to(environment.torch / part)
    (stand_in / "lib").mkdir()
    # The wheel has a HIP runtime of its own, whose name tells it from the toolkit's.
    names = {"amdhip64": f"{RUNTIME}w"}
    for name in ("torch", "torch_cpu", "c10", "torch_hip", "c10_hip", "amdhip64"):
        source, library = tmp_path / "some.c", stand_in / "lib" / f"lib{name}.so"
        source.write_text(
            f"void {'hipLaunchKernel' if name in names else 'torch_hip_is_here'}(void) {{}}\n"
        )
        soname = names.get(name, library.name)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", source, "-o", library], check=True
        )
    own = msgspec.structs.replace(environment, torch=stand_in, root=None)
    monkeypatch.setattr(builder, "python_environment", lambda: own)
    binding = """
        #include "registration.h"
        extern "C" void torch_hip_is_here(void);
        void launch(float* data);
        void (*used[])(void) = {torch_hip_is_here};
        REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
    """
    device = """
        #include <cuda_runtime.h>
        #if defined(TORCH_TARGET_VERSION) || !defined(USE_ROCM)
        #error "a full build for ROCm"
        #endif
        __global__ void kernel(float* data) { data[threadIdx.x] = 1; }
        void launch(float* data) { kernel<<<1, 32>>>(data); }
    """
    kernel = write_tree(
        tmp_path / "plain",
        {
            "build.toml": PLAIN,
            "binding.cpp": binding,
            "csrc/cuda/a.cu": device,
            "torch-ext/plain/__init__.py": "",
        },
    )
    full = request(kernel, FULL, tmp_path)
    build_variant(with_changes(full, isolation=False), quiet)
    needed, undefined, device_code = looked_at(module(full))
    assert {"libtorch_hip.so", f"{RUNTIME}w"} <= needed
    assert RUNTIME not in needed
    assert "torch_hip_is_here" in undefined
    assert device_code == {"gfx90a"}


def test_the_name_of_a_translation_is_the_one_that_hipify_gives(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; from pathlib import Path\n"
        "hipify = runpy.run_path(sys.argv[1])['load'](Path(sys.argv[2]))\n"
        "print(*(hipify.get_hip_file_path(name, True) for name in sys.argv[3:]), sep='\\n')\n"
        "assert 'torch' not in sys.modules"
    )
    environment = kci_environment(warm_cache(tmp_path), "2.13", "cpu")
    names = [
        "a.cu",
        "csrc/cuda/a.cu",
        "cuda/deep/CUDA_a_cuda.cu",
        "a.b.cu",
        "THC/THC.cu",
        "torch/x.cu",
        "x/gpu/y.cu",
    ]
    done = subprocess.run(
        [environment.python, "-c", program, hipify._SCRIPT, environment.torch / "utils/hipify",
            *names],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [hip_path(name) for name in names]
