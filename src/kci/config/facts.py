"""What is known of each backend, of the oldest versions that kernels are made for, and of `python-depends`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kci.config.values import Backend, Version
from kci.utils.shipped import Dated, shipped


class BackendFacts(msgspec.Struct, frozen=True):
    """The facts about one backend."""

    title: str
    """Its name for people."""
    device: str = ""
    """The device that its variants need, in words; empty for none."""
    compute_prefix: str = ""
    """What comes before the version in the compute part of a variant's name; empty where that part has none."""
    components: bool = True
    """True if a component can be for it (docs/format.md#components)."""
    archs: bool = False
    """True if a component lists the architectures that it is compiled for."""
    compiled: bool = False
    """True if kci's native builder compiles for it."""
    tvm_ffi: bool = False
    """True if the native builder compiles tvm-ffi kernels for it."""
    torch_library: str = ""
    """Torch's library for it, besides those of the CPU."""
    defines: tuple[str, ...] = ()
    """With which macros sources can ask for it."""


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
            # Torch's `cpp_extension` gives the last two to the C++ sources of a ROCm extension as well.
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
"""By name, sorted."""


class LoaderFloors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Releases of the `kernels` library, as metadata.json writes them: three numbers."""

    any: str
    """Loads any variant that asks for nothing special."""
    kernel_depends: str
    """The first that loads a variant which depends on other kernels."""
    several_upstreams: str
    """The first that reads a list of upstreams."""


class Floors(Dated, frozen=True):
    """`floors.toml`."""

    python: Version
    torch: Version
    cuda: Version
    cxx_standard: dict[str, int]
    """The oldest C++ standard that torch's headers accept, by the version of torch from which on it holds."""
    kernels: LoaderFloors


floors = shipped("matrix/catalog/data/floors.toml", Floors)
"""The data that kci ships."""


class PythonPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a curated name stands for: the package to install and the modules to import."""

    package: str
    imports: tuple[str, ...]


class DependsTable(Dated, frozen=True):
    """The curated names, general and by backend."""

    general: dict[str, PythonPackage]
    backends: dict[str, dict[str, PythonPackage]]

    def lookup(self, name: str, backend: str) -> PythonPackage | None:
        """What the loader finds for a name: the general table first, then the backend's own."""
        return self.general.get(name) or self.backends.get(backend, {}).get(name)


depends_table = shipped("config/data/python-depends.toml", DependsTable)
"""The curated names that the reference's loader knows."""
