"""The command lines of a tvm-ffi kernel, which needs neither torch nor Python's headers (docs/builders.md).

They are the reference's: the compiler's own standard, no `csrc` on the path, and a library with a SONAME.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kci.builders.extension_name import POISON

LINK = "tvm_ffi"
"""The link in the work directory to the package of that name."""

_DEFINES = {"cpu": "-DCPU_KERNEL", "cuda": "-DCUDA_KERNEL"}
BACKENDS = tuple(_DEFINES)


def module_name(kernel_id: str) -> str:
    """The file name of the native module."""
    return f"{kernel_id}.so"


def flags(backend: str, kernel_id: str, include: Iterable[str], system: Iterable[str], *, named: bool) -> list[str]:
    """What every source is compiled with, behind the compiler's own flags.

    Args:
        backend: `cpu` or `cuda`.
        kernel_id: the name of the extension.
        include: the component's directories, and those of its dependencies.
        system: directories that come before those of tvm-ffi.
        named: whether the source may mention the name; see `kci.builders.extension_name`.
    """
    made = [_DEFINES[backend], f"-DTVM_FFI_EXTENSION_NAME={kernel_id if named else POISON}"]
    made += [f"-I{path}" for path in include]
    return made + [part for path in (*system, f"{LINK}/include") for part in ("-isystem", path)]


def link_command(
    cxx: Sequence[str],
    kernel_id: str,
    objects: Iterable[str],
    exports: str,
    *,
    older: Sequence[str] = (),
    cuda_libraries: str | None = None,
) -> list[str]:
    """The command that links the module.

    Args:
        cxx: the C++ compiler.
        kernel_id: the name of the extension.
        objects: what to link.
        exports: the version script.
        older: what stands in for newer functions of the C library, for everything before it on the command line.
        cuda_libraries: where the CUDA runtime is. It is linked statically, because no torch need be there to bring it.
    """
    name = module_name(kernel_id)
    static = [] if cuda_libraries is None else [f"-L{cuda_libraries}", "-lcudadevrt", "-lcudart_static"]
    command = [*cxx, "-shared", f"-Wl,-soname,{name}", "-o", name, *objects, "-Wl,--strip-debug", "-Wl,--discard-all"]
    command += [f"-Wl,--version-script={exports}", *static, *older]
    command += ["-Wl,--as-needed", "-lstdc++", f"-L{LINK}/lib", "-ltvm_ffi"]
    return command + (["-lrt", "-lpthread", "-ldl"] if static else [])
