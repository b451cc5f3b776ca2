"""Facts about backends, oldest supported versions, and `python-depends` names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kci.config.values import C_ENDINGS, CXX_ENDINGS, HEADER_ENDINGS, Backend, Version
from kci.utils.shipped import Dated, shipped


class BackendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one backend. What is dated stands in the data files, by the backend's name."""

    title: str
    """Name for messages."""
    aliases: tuple[str, ...] = ()
    """Names that people write in its place."""
    old_names: tuple[str, ...] = ()
    """Names that loaders accept in its place for noarch variants."""
    compute_prefix: str = ""
    """Prefix of the version in variant names; empty if names have no version."""
    device: str = ""
    """Device that variants need; empty for none."""
    device_program: tuple[str, ...] = ()
    """Command that ends with 0 where there is a device."""
    device_files: tuple[str, str] = ("", "")
    """Folder and pattern of the files that a device has."""
    device_platform: str = ""
    """The `sys.platform` where there is always a device."""
    variables: tuple[str, ...] = ()
    """Environment variables with its toolkit or devices."""
    probe: str = ""
    """Python expression, true if torch is for it; empty if generated code does not ask."""
    components: bool = True
    """True if build.toml can have components for it (docs/format.md#components)."""
    archs: str = ""
    """Key of a component with its GPU architectures; empty if it lists none."""
    capabilities: bool = False
    """True if its archs are versions, which each toolkit supports some of; else they are names of one list."""
    flags: str = ""
    """Key of a component with flags for the device compiler."""
    minver: str = ""
    """Key of a component with the oldest toolkit version that it is compiled with."""
    endings: tuple[str, ...] = ()
    """Of device code."""
    depends_recorded: bool = True
    """True if `python-depends` of its own reach the metadata."""
    general_since_5: bool = False
    """True if its table of `[general]` exists from edition 5 on."""
    compiled: bool = False
    """True if the native builder supports it."""
    tvm_ffi: bool = False
    """True if the native builder supports it with tvm-ffi."""
    compiler: str = ""
    """Compiler of device code; empty if the C++ compiler compiles all."""
    compiler_id: tuple[str, str] = ("", "")
    """CMake's name of the language of `compiler`, and of its vendor; language CXX if it compiles all sources."""
    threads_variable: bool = False
    """True if its compiler has threads, which `NVCC_THREADS` sets."""
    cutlass: bool = False
    """True if CUTLASS makes its sources slow to compile."""
    headers_only: bool = False
    """True if a build takes headers alone out of torch's wheel, which is large."""
    only_index: bool = False
    """True if no index but torch's own has its wheels."""
    torch_library: str = ""
    """Torch's library for the backend."""
    torch_version: str = ""
    """Name in torch/version.py of the toolkit version."""
    minor_compatible: bool = False
    """True if newer minor versions of its toolkit run what an older one made; else only the same version does."""
    defines: tuple[str, ...] = ()
    """Macros for sources."""
    sdk: str = ""
    """Program of its SDK, where kci has no builder for it."""
    no_image: str = ""
    """Why no container image can build it."""
    templates: Mapping[str, str] = {}
    """Ending of the template of `kci init` for its source, by framework."""
    usual: tuple[str, ...] = ()
    """Frameworks with which `kci init` chooses it."""


BACKENDS: Mapping[str, BackendFacts] = MappingProxyType(
    {
        # in the order in which the reference's generated Python asks torch
        Backend.TPU: BackendFacts(
            title="TPU",
            device="a device for tpu",
            probe='hasattr(torch.backends, "tpu")',
            components=False,
            general_since_5=True,
        ),
        Backend.NEURON: BackendFacts(
            title="Neuron",
            device="a device for neuron",
            probe='hasattr(torch, "neuron")',
            components=False,
            depends_recorded=False,
        ),
        Backend.CUDA: BackendFacts(
            title="CUDA",
            aliases=("nvidia",),
            compute_prefix="cu",
            device="an NVIDIA GPU",
            device_program=("nvidia-smi", "--list-gpus"),
            variables=("CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
            probe="torch.version.cuda is not None",
            archs="cuda-capabilities",
            capabilities=True,
            flags="cuda-flags",
            minver="cuda-minver",
            endings=(".cu",),
            compiled=True,
            tvm_ffi=True,
            compiler="nvcc",
            compiler_id=("CUDA", "NVIDIA"),
            threads_variable=True,
            cutlass=True,
            headers_only=True,
            torch_library="torch_cuda",
            torch_version="cuda",
            minor_compatible=True,
            defines=("-DCUDA_KERNEL", "-DUSE_CUDA=1"),
            templates={"torch": ".cu", "tvm-ffi": ".cu"},
            usual=("torch", "torch-noarch"),
        ),
        Backend.ROCM: BackendFacts(
            title="ROCm",
            aliases=("amd", "hip"),
            compute_prefix="rocm",
            device="an AMD GPU",
            device_files=("/dev", "kfd"),
            variables=("HIP_VISIBLE_DEVICES", "ROCM_PATH"),
            probe="torch.version.hip is not None",
            archs="rocm-archs",
            flags="hip-flags",
            endings=(".cu", ".hip"),
            compiled=True,
            compiler="hipcc",
            compiler_id=("HIP", "Clang"),
            only_index=True,
            torch_library="torch_hip",
            torch_version="hip",
            # torch's `cpp_extension` passes the last two to C++ sources too
            defines=("-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"),
            templates={"torch": ".cu"},
            usual=("torch-noarch",),
        ),
        Backend.METAL: BackendFacts(
            title="Metal",
            aliases=("mps",),
            device="an Apple GPU",
            device_platform="darwin",
            probe="torch.backends.mps.is_available()",
            endings=(".metal", ".mm"),
            sdk="xcrun",
            no_image="Metal is built on macOS",
        ),
        Backend.XPU: BackendFacts(
            title="XPU",
            aliases=("intel", "sycl"),
            compute_prefix="xpu",
            device="an Intel GPU",
            device_files=("/dev/dri", "renderD*"),
            probe='getattr(torch.version, "xpu", None) is not None',
            flags="sycl-flags",
            compiled=True,
            compiler_id=("CXX", "IntelLLVM"),
            torch_library="torch_xpu",
            defines=("-DXPU_KERNEL", "-DUSE_XPU"),
        ),
        Backend.CANN: BackendFacts(
            title="CANN", old_names=("npu",), compute_prefix="cann", device="a device for cann", components=False
        ),
        Backend.CPU: BackendFacts(
            title="CPU",
            compiled=True,
            tvm_ffi=True,
            defines=("-DCPU_KERNEL",),
            templates={"torch": "_cpu.cpp", "tvm-ffi": ".cpp"},
            usual=("torch", "torch-noarch", "tvm-ffi"),
        ),
    }
)

HOST = Backend.CPU
"""The backend that every machine has, and for which kci has torch itself."""

VERSIONED = tuple(str(name) for name in Backend if BACKENDS[name].compute_prefix and BACKENDS[name].components)
"""Backends whose compute version an expression can name."""

SOURCE_ENDINGS = (
    *C_ENDINGS,
    *CXX_ENDINGS,
    *(ending for facts in BACKENDS.values() for ending in facts.endings),
    *HEADER_ENDINGS,
)
"""All files that a preprocessor reads."""


def needs_device(backend: str) -> bool:
    """True if a machine needs a device for it, which no variant of the legacy name `universal` does."""
    return backend in BACKENDS and bool(BACKENDS[backend].device)


class LoaderFloors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Releases of the `kernels` library, as `major.minor.patch`."""

    any: str
    """For variants without special needs."""
    kernel_depends: str
    """For variants that depend on other kernels."""
    several_upstreams: str
    """For metadata with a list of upstreams."""


class Floors(Dated, frozen=True):
    """`floors.toml`: the oldest supported versions."""

    python: Version
    torch: Version
    compute: dict[str, Version]
    """Oldest compute version, by each backend that `[general]` can bound."""
    cxx_standard: dict[str, int]
    """Oldest C++ standard of torch's headers, by the first torch version that needs it."""
    kernels: LoaderFloors


floors = shipped("matrix/catalog/data/floors.toml", Floors)


class PythonPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The package and modules of a `python-depends` name."""

    package: str
    imports: tuple[str, ...]


class DependsTable(Dated, frozen=True):
    """`python-depends.toml`: the reference's curated names."""

    general: dict[str, PythonPackage]
    backends: dict[str, dict[str, PythonPackage]]

    def lookup(self, name: str, backend: str) -> PythonPackage | None:
        """Resolve a name in the general table, then in the backend's."""
        return self.general.get(name) or self.backends.get(backend, {}).get(name)


depends_table = shipped("config/data/python-depends.toml", DependsTable)
