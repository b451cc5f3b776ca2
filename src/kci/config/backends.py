"""What is known of each backend: the one table that a new backend begins in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kci.config.values import Backend


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
