"""The command lines of a native build: compile, link, and the stub library.

Where a flag is not obvious the reason stands beside it; the rules are those of docs/format.md#flags.
ninja runs in the work directory, and everything that a command names lies there: the kernel, torch and the rest are
links (`links`). No path of this machine is on a command line then, so none gets into a binary, and the same C++ sources
give the same bytes wherever they are compiled (nvcc still makes some names from the directory). nvcc hands its options
to a shell unquoted, and this way it sees nothing odd.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from kci.builders.cuda import Toolkit
from kci.builders.environment import Environment
from kci.builders.header_wheels import Headers
from kci.builders.hipify import FOLDER, TORCH_FOLDER
from kci.builders.rocm import Rocm
from kci.builders.toolchains import toolchains
from kci.builders.units import Language, Unit
from kci.catalog.floors import floors
from kci.config.values import Version
from kci.errors import BuildFailedError
from kci.matrix.names import Kind
from kci.matrix.variants import Variant

KERNEL, TORCH, PYTHON, CUDA, ROCM = "kernel", "torch", "python", "cuda", "rocm"
"""Links in the work directory: to the kernel, the torch package, Python's headers, the CUDA toolkit, ROCm."""

GENERATED = "generated"
COMPAT = "compat"
COMPAT_SOURCE = "compat.cpp"
COMPAT_OBJECT = "obj/compat.o"
STUBS = {"cuda": "torch_cuda", "rocm": "torch_hip"}
"""Torch's library for a GPU backend, for which an empty one stands in; see `link_command`."""

_BACKEND_DEFINES = {
    "cpu": ("-DCPU_KERNEL",),
    "cuda": ("-DCUDA_KERNEL", "-DUSE_CUDA=1"),
    # Torch's `cpp_extension` gives the last two to the C++ sources of a ROCm extension as well.
    "rocm": ("-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"),
}
"""What a kernel's sources can ask for the backend with (docs/format.md#defines)."""


class Toolchain(msgspec.Struct, frozen=True):
    """Everything that compiles one variant."""

    cxx: tuple[str, ...]
    """The C++ compiler, possibly behind a launcher such as ccache."""
    gnu_unique: bool
    """Whether the compiler knows -fno-gnu-unique (GCC does)."""
    environment: Environment
    python_include: Path
    cuda: Toolkit | None = None
    rocm: Rocm | None = None
    headers: tuple[Headers, ...] = ()
    glibc_compat: bool = False
    """Whether this machine's libraries are newer than kernels may need, so that `COMPAT` must hold binaries back."""
    nvcc_threads: int | None = None


class Target(msgspec.Struct, frozen=True):
    """What is being built."""

    variant: Variant
    kernel_id: str

    @property
    def module(self) -> str:
        """The file name of the native module."""
        return f"{self.kernel_id}.abi3.so"


def compile_command(chain: Toolchain, target: Target, unit: Unit) -> list[str]:
    """The command that compiles one source."""
    if unit.language is Language.CUDA:
        return _nvcc(chain, target, unit)
    if unit.language is Language.HIP:
        return _hipcc(chain, target, unit)
    return [
        *chain.cxx,
        *_standard(target),
        "-O3",
        "-DNDEBUG",
        *_host_flags(chain, unit),
        *_defines(target),
        *_includes(chain, target, unit),
        *_toolkit_includes(chain),
        *unit.flags,
        *_dependencies(unit),
        "-c",
        seen(unit, unit.source),
        "-o",
        unit.object,
    ]


def compat_command(chain: Toolchain, target: Target) -> list[str]:
    """The command that compiles what an older C++ library lacks."""
    return [*chain.cxx, *_standard(target), "-O3", "-fPIC", "-c", COMPAT_SOURCE, "-o", COMPAT_OBJECT]


def stub_command(chain: Toolchain, backend: str = "cuda") -> list[str]:
    """The command that makes an empty libtorch_cuda.so or libtorch_hip.so; see `link_command`."""
    soname = f"-Wl,-soname,lib{STUBS[backend]}.so"
    return [*chain.cxx, "-shared", "-fPIC", "-nostdlib", soname, "stub.cpp", "-o", stub_path(backend)]


def stub_path(backend: str) -> str:
    """Where that library is, in the work directory."""
    return f"stub/lib{STUBS[backend]}.so"


def link_command(chain: Toolchain, target: Target, objects: Iterable[str]) -> list[str]:
    """The command that links the native module.

    The libraries of torch, CUDA and ROCm are linked dynamically and found by whoever imported torch first, so there is
    no RPATH. A stable-ABI CUDA module imports its stream and device functions from libtorch_cuda.so and must name that
    library, or its import fails; the CPU wheel it is compiled against has no such library, so an empty one of that
    SONAME stands in. Undefined symbols are resolved when the module is loaded, in the real library. For ROCm the same
    holds of libtorch_hip.so.

    Torch's wheels for ROCm can have a HIP runtime of their own, with the SONAME of AMD's. Their directory comes first,
    so that a full build links the runtime that will be in the process.

    Local and debugging symbols are left out. The rest of .symtab stays: the reference's ABI check reads only that table
    and would find nothing to check in a stripped file.
    """
    command = [*chain.cxx, "-shared", "-o", target.module, *objects, "-Wl,--strip-debug", "-Wl,--discard-all"]
    backend, cuda, rocm = target.variant.backend, chain.cuda, chain.rocm
    stable = target.variant.kind is Kind.STABLE_ABI
    if stable and backend in STUBS:
        command += ["-Wl,--no-as-needed", "-Lstub", f"-l{STUBS[backend]}"]
    command += ["-Wl,--as-needed", f"-L{TORCH}/lib"]
    if cuda is not None:
        command += [] if stable else ["-ltorch_cuda", "-lc10_cuda"]
        command += [f"-L{cuda.library_dir}", f"-l:{cuda.runtime}"]
    if rocm is not None:
        command += [] if stable else ["-ltorch_hip", "-lc10_hip"]
        command += [f"-L{rocm.library_dir}", "-lamdhip64"]
    return [*command, "-ltorch_cpu", *([] if stable else ["-ltorch", "-lc10"])]


def gencode(archs: Iterable[str]) -> list[str]:
    """The flags of nvcc for archs: machine code, and PTX on top with `+PTX` (docs/format.md#cuda-capabilities)."""
    flags: list[str] = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def limited_api() -> str:
    """The limited API of the oldest Python that kernels promise to work with (docs/format.md#python-abi)."""
    major, minor = (*floors().python, 0)[:2]
    return f"0x{major:02x}{minor:02x}0000"


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


def _nvcc(chain: Toolchain, target: Target, unit: Unit) -> list[str]:
    assert chain.cuda is not None  # noqa: S101  - a CUDA unit exists only in a CUDA variant
    host = [flag for option in _host_flags(chain, unit) for flag in ("-Xcompiler", option)]
    threads = ["--threads", str(chain.nvcc_threads)] if chain.nvcc_threads else []
    return [
        str(chain.cuda.nvcc),
        "-ccbin",
        host_compiler(chain.cxx),
        *_standard(target),
        "-O3",
        "-DNDEBUG",
        "--expt-relaxed-constexpr",
        "--expt-extended-lambda",
        "-DENABLE_FP8",
        *threads,
        *gencode(unit.archs),
        *host,
        *_defines(target),
        *_includes(chain, target, unit),
        *unit.flags,
        *_dependencies(unit),
        "-c",
        seen(unit, unit.source),
        "-o",
        unit.object,
    ]


def _hipcc(chain: Toolchain, target: Target, unit: Unit) -> list[str]:
    """The command for device code of ROCm.

    The defines are those of torch's own `cpp_extension`, without the two that take the operators of half precision
    away, and ENABLE_FP8: so does the reference. clang makes some names out of the source's real path unless it is given
    a `-cuid`, which must differ between the sources of one module.
    """
    assert chain.rocm is not None  # noqa: S101  - a HIP unit exists only in a ROCm variant
    cuid = hashlib.sha256(f"{target.kernel_id}\0{unit.object}".encode()).hexdigest()[:16]
    return [
        str(chain.rocm.hipcc),
        f"--rocm-path={ROCM}",
        *_standard(target),
        "-O3",
        "-DNDEBUG",
        *(f"--offload-arch={arch}" for arch in unit.archs),
        "-fno-gpu-rdc",
        f"-cuid={cuid}",
        "-fPIC",
        "-DCUDA_HAS_FP16=1",
        "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1",
        "-DENABLE_FP8",
        *_defines(target),
        *_includes(chain, target, unit),
        *unit.flags,
        *_dependencies(unit),
        "-x",
        "hip",
        "-c",
        seen(unit, unit.source),
        "-o",
        unit.object,
    ]


def host_compiler(cxx: tuple[str, ...]) -> str:
    """The compiler itself, without launcher and flags: nvcc takes only that."""
    programs = [word for word in cxx if not word.startswith("-") and Path(word).name not in ("ccache", "sccache")]
    return programs[0] if programs else cxx[0]


def _standard(target: Target) -> list[str]:
    assert target.variant.torch is not None  # noqa: S101  - every torch variant has a torch
    return [f"-std=c++{toolchains().cxx_standard(target.variant.torch)}"]


def _host_flags(chain: Toolchain, unit: Unit) -> list[str]:
    """Flags of the C++ compiler for both languages.

    -fno-gnu-unique keeps the static data of two kernels in one process apart. The seed replaces a random number that
    would be part of some names.
    """
    unique = ["-fno-gnu-unique"] if chain.gnu_unique else []
    return ["-fPIC", *unique, f"-frandom-seed={unit.object}"]


def _defines(target: Target) -> list[str]:
    variant = target.variant
    defines = [f"-DTORCH_EXTENSION_NAME={target.kernel_id}", f"-DPy_LIMITED_API={limited_api()}"]
    defines += _BACKEND_DEFINES[variant.backend]
    if variant.kind is Kind.STABLE_ABI and variant.stable_abi is not None:
        defines.append(stable_abi_define(variant.stable_abi))
    return defines


def _includes(chain: Toolchain, target: Target, unit: Unit) -> list[str]:
    own = [GENERATED, seen(unit, PurePosixPath("csrc")), *(seen(unit, path) for path in unit.include)]
    system = [f"{headers.name}/{path}" for headers in chain.headers for path in headers.include]
    system += [f"{TORCH}/include", f"{TORCH}/include/torch/csrc/api/include", PYTHON]
    if chain.rocm is not None and target.variant.kind is Kind.STABLE_ABI:
        system.insert(0, TORCH_FOLDER)
    if chain.glibc_compat:
        system.insert(0, COMPAT)
    return [f"-I{path}" for path in own] + [part for path in system for part in ("-isystem", path)]


def _toolkit_includes(chain: Toolchain) -> list[str]:
    """The toolkit's headers for C++ sources. /usr/include must not be named: the C++ library's own come before it."""
    if chain.rocm is not None and chain.rocm.root != Path("/usr"):
        return ["-isystem", f"{ROCM}/include"]
    if chain.cuda is None or chain.cuda.root == Path("/usr"):
        return []
    return ["-isystem", f"{CUDA}/include", "-isystem", f"{CUDA}/include/cccl"]


def links(chain: Toolchain, kernel_dir: Path) -> dict[str, Path]:
    """The links of the work directory."""
    found = {KERNEL: kernel_dir.resolve(), TORCH: chain.environment.torch, PYTHON: chain.python_include}
    if chain.cuda is not None:
        found[CUDA] = chain.cuda.root
    if chain.rocm is not None:
        found[ROCM] = chain.rocm.root
    return {**found, **{headers.name: headers.folder for headers in chain.headers}}


def seen(unit: Unit, path: PurePosixPath) -> str:
    """A path of a unit as seen from the work directory: in the kernel, or in its translation."""
    return ((FOLDER if unit.translated else KERNEL) / path).as_posix()


def _dependencies(unit: Unit) -> list[str]:
    return ["-MD", "-MF", f"{unit.object}.d"]
