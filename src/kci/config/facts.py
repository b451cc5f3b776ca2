"""Static facts about backends, oldest supported versions, and `python-depends` names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kci.config.values import Backend, Version
from kci.utils.shipped import Dated, shipped


class BackendFacts(msgspec.Struct, frozen=True):
    """Facts about one backend."""

    title: str
    """Name for messages."""
    device: str = ""
    """Device that variants need; empty for none."""
    compute_prefix: str = ""
    """Prefix of the version in variant names; empty if names have no version."""
    components: bool = True
    """True if build.toml can have components for it (docs/format.md#components)."""
    archs: bool = False
    """True if a component lists its GPU architectures."""
    compiled: bool = False
    """True if the native builder supports it."""
    tvm_ffi: bool = False
    """True if the native builder supports it with tvm-ffi."""
    torch_library: str = ""
    """Torch's library for the backend."""
    defines: tuple[str, ...] = ()
    """Macros for sources."""


BACKENDS: Mapping[str, BackendFacts] = MappingProxyType(
    {
        Backend.CANN: BackendFacts("CANN", compute_prefix="cann", components=False),
        Backend.CPU: BackendFacts("CPU", compiled=True, tvm_ffi=True, defines=("-DCPU_KERNEL",)),
        Backend.CUDA: BackendFacts(
            "CUDA",
            device="an NVIDIA GPU",
            compute_prefix="cu",
            archs=True,
            compiled=True,
            tvm_ffi=True,
            torch_library="torch_cuda",
            defines=("-DCUDA_KERNEL", "-DUSE_CUDA=1"),
        ),
        Backend.METAL: BackendFacts("Metal", device="an Apple GPU"),
        Backend.NEURON: BackendFacts("Neuron", components=False),
        Backend.ROCM: BackendFacts(
            "ROCm",
            device="an AMD GPU",
            compute_prefix="rocm",
            archs=True,
            compiled=True,
            torch_library="torch_hip",
            # torch's `cpp_extension` passes the last two to C++ sources too
            defines=("-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"),
        ),
        Backend.TPU: BackendFacts("TPU", components=False),
        Backend.XPU: BackendFacts(
            "XPU",
            device="an Intel GPU",
            compute_prefix="xpu",
            compiled=True,
            torch_library="torch_xpu",
            defines=("-DXPU_KERNEL", "-DUSE_XPU"),
        ),
    }
)


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
    cuda: Version
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
