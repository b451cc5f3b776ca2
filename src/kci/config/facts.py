"""Facts about backends, oldest supported versions, and `python-depends` names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kci.config.values import C_ENDINGS, CXX_ENDINGS, HEADER_ENDINGS, Backend, Version
from kci.utils.shipped import Dated, shipped


class BackendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one backend. What is dated stands in the data files, by the backend's name."""

    title: str
    # names in its place: that people write, and that loaders accept in names of noarch variants
    aliases: tuple[str, ...] = ()
    old_names: tuple[str, ...] = ()
    compute_prefix: str = ""
    """Prefix of the version in variant names; empty if names have no version."""
    # what variants need, if anything; a command that succeeds where it is, or a pattern of its files below /dev
    device: str = ""
    device_program: tuple[str, ...] = ()
    device_files: str = ""
    macos: bool = False
    """True if it is built and run on macOS alone."""
    variables: tuple[str, ...] = ()
    """Environment variables that lead to its toolkit or devices."""
    components: bool = True
    """True if build.toml can have components for it (docs/format.md#components)."""
    # keys of a component, if it has them: its architectures, flags of the device compiler, oldest toolkit version
    archs: str = ""
    flags: str = ""
    minver: str = ""
    capabilities: bool = False
    """True if its archs are versions, which each toolkit supports some of; else they are names."""
    endings: tuple[str, ...] = ()
    """Of device code."""
    depends_recorded: bool = True
    """True if its own `python-depends` reach the metadata."""
    general_since_5: bool = False
    """True if its table of `[general]` exists from edition 5 on."""
    # whether the native builder supports it, also with tvm-ffi
    compiled: bool = False
    tvm_ffi: bool = False
    compiler: str = ""
    """Of device code; empty if the C++ compiler compiles all."""
    compiler_id: tuple[str, str] = ("", "")
    """CMake's names of that compiler's language and vendor; of a C++ compiler of its own if there is no other."""
    defines: tuple[str, ...] = ()
    minor_compatible: bool = False
    """True if newer minor versions of its toolkit run what an older one made."""
    probe: str = ""
    """Python expression that is true if torch is for it; empty if generated code does not ask."""
    torch_library: str = ""
    torch_version: str = ""
    """Name in torch/version.py of the toolkit version."""
    headers_only: bool = False
    """True if a build takes only the headers out of torch's wheel."""
    only_index: bool = False
    """True if no index but torch's own has its wheels."""
    loads: bool = False
    """True if there are wheels of torch for it on Linux, with which a kernel can be loaded without a device."""
    driver: str = ""
    """The driver's library, which few kernels link and only a machine with a device has."""
    # for `kci init`: endings of the templates for its source, by framework; frameworks that it is usual with
    templates: Mapping[str, str] = {}
    usual: tuple[str, ...] = ()


BACKENDS: Mapping[str, BackendFacts] = {
    # in the order in which the reference's generated Python asks torch
    Backend.TPU: BackendFacts(
        title="TPU", device="a device for tpu", components=False, general_since_5=True,
        probe='hasattr(torch.backends, "tpu")',
    ),
    Backend.NEURON: BackendFacts(
        title="Neuron", device="a device for neuron", components=False, depends_recorded=False,
        probe='hasattr(torch, "neuron")',
    ),
    Backend.CUDA: BackendFacts(
        title="CUDA", aliases=("nvidia",), compute_prefix="cu",
        device="an NVIDIA GPU", device_program=("nvidia-smi", "--list-gpus"),
        variables=("CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
        archs="cuda-capabilities", capabilities=True, flags="cuda-flags", minver="cuda-minver", endings=(".cu",),
        compiled=True, tvm_ffi=True, compiler="nvcc", compiler_id=("CUDA", "NVIDIA"), minor_compatible=True,
        defines=("-DCUDA_KERNEL", "-DUSE_CUDA=1"),
        probe="torch.version.cuda is not None", torch_library="torch_cuda", torch_version="cuda", headers_only=True,
        loads=True, driver="libcuda.so.1",
        templates={"torch": ".cu", "tvm-ffi": ".cu"}, usual=("torch", "torch-noarch"),
    ),
    Backend.ROCM: BackendFacts(
        title="ROCm", aliases=("amd", "hip"), compute_prefix="rocm",
        device="an AMD GPU", device_files="kfd", variables=("HIP_VISIBLE_DEVICES", "ROCM_PATH"),
        archs="rocm-archs", flags="hip-flags", endings=(".cu", ".hip"),
        compiled=True, compiler="hipcc", compiler_id=("HIP", "Clang"),
        # torch's `cpp_extension` passes the last two to C++ sources too
        defines=("-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"),
        probe="torch.version.hip is not None", torch_library="torch_hip", torch_version="hip", only_index=True,
        loads=True, templates={"torch": ".cu"}, usual=("torch-noarch",),
    ),
    Backend.METAL: BackendFacts(
        title="Metal", aliases=("mps",), device="an Apple GPU", macos=True, endings=(".metal", ".mm"),
        probe="torch.backends.mps.is_available()",
    ),
    Backend.XPU: BackendFacts(
        title="XPU", aliases=("intel", "sycl"), compute_prefix="xpu",
        device="an Intel GPU", device_files="dri/renderD*", flags="sycl-flags",
        compiled=True, compiler_id=("CXX", "IntelLLVM"), defines=("-DXPU_KERNEL", "-DUSE_XPU"),
        probe='getattr(torch.version, "xpu", None) is not None', torch_library="torch_xpu", loads=True,
    ),
    Backend.CANN: BackendFacts(
        title="CANN", old_names=("npu",), compute_prefix="cann", device="a device for cann", components=False
    ),
    Backend.CPU: BackendFacts(
        title="CPU", compiled=True, tvm_ffi=True, defines=("-DCPU_KERNEL",),
        templates={"torch": "_cpu.cpp", "tvm-ffi": ".cpp"}, usual=("torch", "torch-noarch", "tvm-ffi"),
    ),
}  # fmt: skip

HOST = Backend.CPU
"""The backend that every machine has, and for which kci has torch itself."""

VERSIONED = tuple(str(name) for name in Backend if BACKENDS[name].compute_prefix and BACKENDS[name].components)
"""Backends whose compute version an expression can name."""

_DEVICE_ENDINGS = tuple(ending for facts in BACKENDS.values() for ending in facts.endings)
SOURCE_ENDINGS = (*C_ENDINGS, *CXX_ENDINGS, *_DEVICE_ENDINGS, *HEADER_ENDINGS)
"""All files that a preprocessor reads."""

_COMPILED = (
    *CXX_ENDINGS,
    *HEADER_ENDINGS,
    *(one for facts in BACKENDS.values() if facts.compiled for one in facts.endings),
)


def has_compiler(source: str) -> bool:
    """True for a header, and for a source that a compiler of kci takes."""
    return source.lower().endswith(_COMPILED)


def needs_device(backend: str) -> bool:
    """True if a machine needs a device for it; the legacy name `universal` of noarch variants needs none."""
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
