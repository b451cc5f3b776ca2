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

from binaries import Binary
from buildkit import (
    DATA,
    asked,
    built,
    built_once,
    copy_kernel,
    module,
    output_of,
    quiet,
    request,
    warm_cache,
    with_changes,
    write_tree,
)
from conftest import failure, torch_toml
from kci.builders.dispatch import build_variant
from kci.builders.native import hipify
from kci.builders.native.hipify import hip_path
from kci.builders.request import Request
from kci.builders.toolchains import compilers
from kci.builders.toolchains.environment import kci_environment
from kci.errors import MissingToolError
from kci.tree.metadata import metadata_for, seal
from kci.tree.verify import verify
from planning import append, replace

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
PLAIN = torch_toml({"rocm": "csrc/cuda/a.cu"}, "plain", "binding.cpp") + 'rocm-archs = ["gfx90a"]\n'
"""The build.toml of kernels whose sources include nothing of torch."""
WITHOUT_HEADERS = """
#define threads() __builtin_amdgcn_workitem_id_x()
struct dim3 { unsigned x, y, z; dim3(unsigned all) : x(all), y(1), z(1) {} };
extern "C" int hipLaunchKernel(const void*, dim3, dim3, void**, unsigned long, cudaStream_t);
extern "C" int __hipPushCallConfiguration(dim3, dim3, unsigned long, cudaStream_t);
"""
"""What a launch is compiled to, which HIP's headers have; those take two seconds to compile."""


@pytest.fixture(scope="module", autouse=True)
def _hipcc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIP_PLATFORM", "amd")  # an nvcc on the PATH would be taken otherwise
        # Debian's HIP has no thrust of its own: Debian's thrust is told to use no CUDA.
        thrust = "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"
        patch.setenv("HIPCC_COMPILE_FLAGS_APPEND", thrust)
        asks = ["hipconfig", "--version"]
        done = subprocess.run(asks, capture_output=True, text=True, check=False)
        told = done.stdout.strip()[:20]
        if not told.startswith("5.2."):
            pytest.skip(f"this hipcc is of HIP {told}, and the test is about Debian's 5.2")
        yield


def with_archs_of_hip(kernel: Path) -> None:
    """The kernel for archs that this HIP knows."""
    every = '["gfx942", "gfx90a", "gfx1100", "gfx940"]'
    replace("build.toml", every, '["gfx90a", "gfx1030"]')(kernel)
    replace("build.toml", '["gfx942"]', '["gfx90a"]')(kernel)


@pytest.fixture(scope="module")
def halve(shared_by_workers: Path) -> Request:
    """The variant as it was built."""
    return built_once(shared_by_workers, "halve", NAME, with_archs_of_hip)


def files(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}


def test_a_stable_abi_variant_holds_code_for_the_archs_that_were_asked_for(
    halve: Request, tmp_path: Path
) -> None:
    assert files(halve.kernel_dir) == files(DATA / "halve"), "nothing is written there"
    binary = Binary(module(halve))
    assert binary.gpus == {"gfx1030", "gfx90a"}
    assert {"libtorch_hip.so", RUNTIME} <= binary.needed
    assert not any("cuda" in name for name in binary.needed)
    # So it is called in torch's libraries for ROCm, too.
    assert {"aoti_torch_get_current_cuda_stream", "hipLaunchKernel"} <= binary.undefined
    assert not any(name.startswith("cuda") for name in binary.undefined)
    variant = Path(shutil.copytree(halve.output, tmp_path / NAME))
    seal(variant, metadata_for(halve.build, "rocm", "1a2b3c4", archs=tuple(sorted(binary.gpus))))
    found = verify(variant, ignore=["KCI716", "KCI750"])
    assert [(item.rule, item.message) for item in found] == []


@pytest.mark.usefixtures("as_users_compile", "as_old_as_users_systems")
def test_what_changed_is_compiled_again_and_elsewhere_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, header = "csrc/cuda/a.cu", "csrc/cuda/launch_cuda.cuh"
    kernel = write_tree(
        tmp_path / "plain",
        {
            "build.toml": PLAIN.replace('a.cu"', f'a.cu", "{header}"')
            + "hip-flags = ['-nogpuinc']\n",
            "torch-ext/plain/__init__.py": "",
            "binding.cpp": "void launch(float* data);\nvoid call(float* data) { launch(data); }\n",
            device: f"""
                #include "launch_cuda.cuh"
                {WITHOUT_HEADERS}
                __attribute__((global)) void kernel(float* data) {{ data[threads()] = 1; }}
                const void* launched = (const void*)&kernel;
                void launch(float*) {{ hipLaunchKernel(launched, 1, 32, nullptr, 0, stream()); }}
            """,
            header: """
                #pragma once
                typedef struct anything* cudaStream_t;
                inline __attribute__((used)) const char* place() { return __FILE__; }
                inline cudaStream_t stream() { return nullptr; }
            """,
        },
    )
    what = asked(NAME, kernel, tmp_path)

    def compiled() -> int:
        use = built(what).objects
        assert use is not None
        return use.made

    assert compiled() == 2
    first, text = module(what).read_bytes(), (kernel / device).read_text()
    more = "__attribute__((device, host, used)) int more() { return 3; }"
    append(device, f"#if __gfx90a__\n{more}\n#endif\n")(kernel)
    assert compiled() == 1
    elsewhere = Path(shutil.copytree(kernel, tmp_path / "some where" / "else"))
    other = with_changes(asked(NAME, elsewhere, tmp_path), output=tmp_path / "other" / NAME)
    with monkeypatch.context() as patch:
        patch.setenv("KCI_COMPILER_CACHE", "off")
        built(other)
    binary = module(other).read_bytes()
    assert binary == module(what).read_bytes()
    assert str(tmp_path).encode() not in binary
    (kernel / device).write_text(text)
    (kernel / "notes.txt").write_text("no source\n")
    assert compiled() == 0
    assert module(what).read_bytes() == first
    replace(header, "return nullptr", "return (cudaStream_t)1")(kernel)
    # What a GPU's pass reads is in no list of clang's.
    assert compiled() == 2, "a header counts for each source"
    assert module(what).read_bytes() != first


def test_a_full_build_refuses_a_torch_that_is_not_for_rocm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = with_changes(asked(FULL, copy_kernel("halve", tmp_path), tmp_path), isolation=False)
    cpu = kci_environment(full.options.cache, "2.13", "cpu")
    own = msgspec.structs.replace(cpu, root=None)
    monkeypatch.setattr(compilers, "python_environment", lambda: own)
    says = r"needs a torch for ROCm 5\.2, and .* is for the CPU"
    failure(MissingToolError, says, build_variant, full, quiet)


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
        function = "hipLaunchKernel" if name in names else "torch_hip_is_here"
        source.write_text(f"void {function}(void) {{}}\n")
        soname = f"-Wl,-soname,{names.get(name, library.name)}"
        output_of("gcc", "-shared", "-fPIC", soname, source, "-o", library)
    own = msgspec.structs.replace(environment, torch=stand_in, root=None)
    monkeypatch.setattr(compilers, "python_environment", lambda: own)
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
    texts = {"build.toml": PLAIN, "binding.cpp": binding, "csrc/cuda/a.cu": device}
    kernel = write_tree(tmp_path / "plain", {**texts, "torch-ext/plain/__init__.py": ""})
    full = request(kernel, FULL, tmp_path)
    built(with_changes(full, isolation=False))
    binary = Binary(module(full))
    assert {"libtorch_hip.so", f"{RUNTIME}w"} <= binary.needed
    assert RUNTIME not in binary.needed
    assert "torch_hip_is_here" in binary.undefined
    assert binary.gpus == {"gfx90a"}


def test_the_name_of_a_translation_is_the_one_that_hipify_gives(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; from pathlib import Path\n"
        "hipify = runpy.run_path(sys.argv[1])['load'](Path(sys.argv[2]))\n"
        "print(*(hipify.get_hip_file_path(name, True) for name in sys.argv[3:]), sep='\\n')\n"
        "assert 'torch' not in sys.modules"
    )
    environment = kci_environment(warm_cache(tmp_path), "2.13", "cpu")
    names = "a.cu csrc/cuda/a.cu cuda/deep/CUDA_a_cuda.cu a.b.cu THC/THC.cu torch/x.cu x/gpu/y.cu"
    script, folder = hipify._SCRIPT, environment.torch / "utils/hipify"
    told = output_of(environment.python, "-c", program, str(script), folder, *names.split())
    assert told.split() == [hip_path(name) for name in names.split()]
