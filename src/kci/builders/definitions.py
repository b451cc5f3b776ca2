"""The macros that a kernel's sources are compiled with (docs/format.md#defines), and who is given the kernel's id.

Every commit changes the id, and it reaches the sources as a macro. Most of them never mention that macro, and their
objects stay as they are if the id is not on their command lines. They get `_POISON` instead: it is no C++ token, so
that a mention which `with_name` did not find stops the compiler, unless it is made a string.
"""

from __future__ import annotations

from kci.catalog.floors import floors
from kci.config.values import Version
from kci.errors import BuildFailedError
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.toolchains.toolchain_data import toolchains

_POISON = "@"
_OF_BACKEND = {
    "cpu": ("-DCPU_KERNEL",),
    "cuda": ("-DCUDA_KERNEL", "-DUSE_CUDA=1"),
    # Torch's `cpp_extension` gives the last two to the C++ sources of a ROCm extension as well.
    "rocm": ("-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"),
    "xpu": ("-DXPU_KERNEL", "-DUSE_XPU"),
}
"""What a kernel's sources can ask for the backend with."""

TVM_FFI_BACKENDS = ("cpu", "cuda")
"""What kci compiles tvm-ffi kernels for."""


def torch_definitions(variant: Variant, kernel_id: str, *, named: bool) -> list[str]:
    """The macros of a source of a `[torch]` kernel; `named` says that it may mention the name of the extension.

    Raises:
        BuildFailedError: as `stable_abi_define`.
    """
    major, minor = (*floors().python, 0)[:2]  # of the oldest Python (docs/format.md#python-abi)
    defines = [
        f"-DTORCH_EXTENSION_NAME={kernel_id if named else _POISON}",
        f"-DPy_LIMITED_API=0x{major:02x}{minor:02x}0000",
    ]
    defines += _OF_BACKEND[variant.backend]
    defines += toolchains().torch_defines(variant.backend)
    if variant.kind is Kind.STABLE_ABI and variant.stable_abi is not None:
        defines.append(stable_abi_define(variant.stable_abi))
    return defines


def tvm_ffi_definitions(backend: str, kernel_id: str, *, named: bool) -> list[str]:
    """The same for a source of a `[tvm-ffi]` kernel."""
    return [_OF_BACKEND[backend][0], f"-DTVM_FFI_EXTENSION_NAME={kernel_id if named else _POISON}"]


def stable_abi_define(stable_abi: str) -> str:
    """The define that limits torch's headers to the stable ABI of a version: major and minor in the top two bytes.

    Raises:
        BuildFailedError: the version has no minor; `3.0` cannot be told from an unset one.
    """
    version = Version.parse(stable_abi)
    if len(version) < 2:
        hint = "name a version with a minor other than 0, such as 2.11"
        raise BuildFailedError(f"the stable ABI version {stable_abi} cannot be built for", hint=hint)
    return f"-DTORCH_TARGET_VERSION=0x{(version[0] << 56) | (version[1] << 48):016x}"
