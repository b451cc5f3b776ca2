"""Command lines of a native build (docs/format.md#flags).

Commands run in the work directory and name only paths in it, through links. So no path of this
machine gets into a binary, and nvcc, which passes options to a shell unquoted, meets no odd
characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from kci.builders.kernel_files import KERNEL
from kci.builders.native.hipify import FOLDER, TORCH_FOLDER
from kci.builders.native.units import CXX, Unit
from kci.builders.process.machine import nvcc_threads
from kci.builders.toolchains import oneapi
from kci.builders.toolchains.compilers import Toolchain, is_compiler_cache
from kci.builders.toolchains.cuda import LINK, Toolkit
from kci.builders.toolchains.data import Compiler, toolchains
from kci.builders.toolchains.glibc import old_libraries
from kci.builders.toolchains.rocm import Rocm
from kci.config.facts import BACKENDS, floors
from kci.errors import BuildFailedError

_POISON = "@"


TORCH, TVM_FFI, PYTHON = "torch", "tvm_ffi", "python"
"""Links in the work directory; see `work_links`."""

GENERATED = "generated/torch-ext"
"""Directory of `registration.h`, which sources also include as `../torch-ext/registration.h`."""

COMPAT, COMPAT_OBJECT, OLDER = "compat", "obj/compat.o", "stub/libolder.a"
"""Headers, object and library that bind to an older glibc; see `recipe`."""

EXPORTS = "exports.map"
TORCH_NVCC = (
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "-DENABLE_FP8",
    "-DONNX_NAMESPACE=onnx_c2",
)
"""nvcc flags of torch's CMake."""

# Everything that a shell or nvcc might interpret.
_ODD = re.compile(r"[^\w./-]", re.ASCII)


def compile_command(chain: Toolchain, unit: Unit) -> list[str]:
    """Compile one source. Raises BuildFailedError for a stable ABI without a minor version."""
    device = chain.device if unit.language != CXX else None
    # GCC shortens system header paths and puts random numbers into names
    host = ["-fPIC", *chain.gcc_flags, f"-frandom-seed={unit.object}"]
    compiler, options, language = [*chain.cxx], host, []
    if isinstance(device, Toolkit):
        compiler = [str(device.nvcc), "-ccbin", host_compiler(chain.cxx)]
        options = [
            *_nvcc_options(chain, unit),
            *(word for option in host for word in ("-Xcompiler", option)),
        ]
    elif device:
        compiler = [str(device.hipcc), f"--rocm-path={device.link}"]
        options, language = _hipcc_options(chain, unit), ["-x", "hip"]
    # sccache goes by what is preprocessed, which is not what each pass of a device's compiler reads
    cached = chain.launcher and (chain.launcher.stem == "ccache" or not device)
    return [
        *([str(chain.launcher)] if cached else []),
        *compiler,
        *cxx_standard_flag(chain, gnu=not device),
        "-O3",
        "-DNDEBUG",
        *options,
        *_definitions(chain, unit),
        *_includes(chain, unit),
        *unit.flags,
        "-MD",
        "-MF",
        f"{unit.object}.d",
        *language,
        "-c",
        work_path(unit, unit.source),
        "-o",
        unit.object,
    ]


def stub_libraries(chain: Toolchain) -> tuple[str, ...]:
    """Torch libraries that empty stubs replace at link time."""
    if chain.tvm_ffi:
        return ()
    library = BACKENDS[chain.variant.backend].torch_library
    own = (library,) if library else ()
    if chain.environment.headers_only:
        return (*own, "torch_cpu")
    return own if chain.stable else ()


def stub_command(chain: Toolchain, library: str) -> list[str]:
    """Make an empty library."""
    soname = f"-Wl,-soname,lib{library}.so"
    output = ["-o", stub_path(library)]
    return [*chain.cxx, "-shared", "-fPIC", "-nostdlib", soname, "stub.cpp", *output]


def stub_path(library: str) -> str:
    """Path of an empty library in the work directory."""
    return f"stub/lib{library}.so"


def link_command(chain: Toolchain, objects: Iterable[str], *, openmp: bool = False) -> list[str]:
    """The command that links the native module.

    There is no RPATH: whoever imports torch first loads the libraries. Stubs with the right SONAME
    replace libraries that the wheel lacks or that are large; symbols are resolved on import. Order
    matters: torch's ROCm wheels may carry a HIP runtime, whose directory precedes AMD's; libstdc++
    precedes torch, which exports parts of it without versions. OpenMP is the one of torch's wheels,
    so that a process has one thread pool. .symtab stays, because the reference's ABI check reads
    it.
    """
    soname = [f"-Wl,-soname,{chain.module}"] if chain.tvm_ffi else []
    command = [*chain.cxx, "-shared", *soname, "-o", chain.module, *objects]
    command += ["-Wl,--strip-debug", "-Wl,--discard-all", f"-Wl,--version-script={EXPORTS}"]
    older = []
    if chain.glibc_compat:
        libraries = (library.path for library in old_libraries(chain.variant.system))
        older = [COMPAT_OBJECT, OLDER, "-Wl,--as-needed", *libraries]
    older += ["-Wl,--as-needed", chain.cpp_library]
    cuda = chain.device if isinstance(chain.device, Toolkit) else None
    if chain.tvm_ffi:
        # there may be no torch to bring CUDA's runtime
        static = [f"-L{cuda.library_dir}", "-lcudadevrt", "-lcudart_static"] if cuda else []
        needed = ["-lrt", "-lpthread", "-ldl"] if cuda else []
        return [*command, *static, *older, f"-L{TVM_FFI}/lib", "-ltvm_ffi", *needed]
    if stand_ins := stub_libraries(chain):
        command += ["-Wl,--no-as-needed", "-Lstub", *(f"-l{library}" for library in stand_ins)]
    command += [*older, f"-L{TORCH}/lib"]
    if cuda:
        command += [] if chain.stable else ["-ltorch_cuda", "-lc10_cuda"][1 if stand_ins else 0 :]
        command += [f"-L{cuda.library_dir}", f"-l:{cuda.runtime}"]
    if isinstance(rocm := chain.device, Rocm):
        command += [] if chain.stable else ["-ltorch_hip", "-lc10_hip"]
        command += [f"-L{rocm.library_dir}", "-lamdhip64"]
    if chain.sycl:
        command += [] if chain.stable else ["-lc10_xpu", "-ltorch_xpu"]
        command += oneapi.link_flags(chain.sycl)
    command += [] if "torch_cpu" in stand_ins else ["-ltorch_cpu"]
    command += [] if chain.stable else ["-ltorch", "-lc10"]
    return [*command, f"-l:{toolchains().openmp}"] if openmp else command


def _nvcc_options(chain: Toolchain, unit: Unit) -> list[str]:
    options = [] if chain.tvm_ffi else [*TORCH_NVCC]
    options += ["--threads", str(threads)] if (threads := nvcc_threads()) else []
    if isinstance(chain.device, Toolkit) and chain.device.reproducible:
        # nvcc hashes the source's path and a process id into names
        place = f"--orig_src_path_name=/kci/{_ODD.sub('_', work_path(unit, unit.source))}"
        options += ["-Xcudafe", place, f"--frandom-seed={unit.object}", "-objtemp"]
    # machine code, and PTX for `+PTX` (docs/format.md#cuda-capabilities)
    for arch in unit.archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        kinds = ("sm", "compute") if arch.endswith("+PTX") else ("sm",)
        options += [f"-gencode=arch=compute_{number},code={kind}_{number}" for kind in kinds]
    return options


def _hipcc_options(chain: Toolchain, unit: Unit) -> list[str]:
    # defines as in the reference: `cpp_extension`'s, and half precision operators; cuid: clang
    # would hash the path
    kernel = chain.kernel_id.rpartition("_")[0]  # the rest changes with every commit
    cuid = hashlib.sha256(f"{kernel}\0{unit.object}".encode()).hexdigest()[:16]
    return [
        *(f"--offload-arch={arch}" for arch in unit.archs),
        "-fno-gpu-rdc",
        f"-cuid={cuid}",
        "-fPIC",
        "-DCUDA_HAS_FP16=1",
        "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1",
        "-DENABLE_FP8",
    ]


def host_compiler(cxx: Compiler) -> str:
    """The compiler without cache and flags, as nvcc requires."""
    programs = [word for word in cxx if not word.startswith("-") and not is_compiler_cache(word)]
    return programs[0] if programs else cxx[0]


def cxx_standard_flag(chain: Toolchain, *, gnu: bool = False) -> list[str]:
    """The C++ standard flag; host sources get GNU extensions, as with CMake."""
    if chain.tvm_ffi:
        return []
    assert chain.variant.torch is not None  # noqa: S101  - every torch variant has a torch
    return [f"-std={'gnu' if gnu else 'c'}++{toolchains().cxx_standard(chain.variant.torch)}"]


def _definitions(chain: Toolchain, unit: Unit) -> list[str]:
    variant = chain.variant
    facts, name = BACKENDS[variant.backend], chain.kernel_id if unit.uses_name else _POISON
    if chain.tvm_ffi:
        return [facts.defines[0], f"-DTVM_FFI_EXTENSION_NAME={name}"]
    # limited API of the oldest Python (docs/format.md#python-abi)
    major, minor = (*floors().python, 0)[:2]
    defines = [f"-DTORCH_EXTENSION_NAME={name}", f"-DPy_LIMITED_API=0x{major:02x}{minor:02x}0000"]
    of_torch = toolchains().defines
    names = (*of_torch["torch"], *of_torch.get(variant.backend, ()))
    defines += [*facts.defines, *(f"-D{name}" for name in names)]
    if abi := variant.stable_abi:
        if len(abi) < 2:
            raise BuildFailedError(
                f"the stable ABI version {abi} cannot be built for",
                "name a version with a minor other than 0, such as 2.11",
            )
        defines.append(f"-DTORCH_TARGET_VERSION=0x{(abi[0] << 56) | (abi[1] << 48):016x}")
    return [*defines, *(f"-D{define}" for define in (chain.sycl.defines if chain.sycl else ()))]


def _includes(chain: Toolchain, unit: Unit) -> list[str]:
    # the reference's order: component, dependencies, `csrc`, system
    # every component's dependencies, the source's own first: versions of one may differ
    ordered = sorted(chain.headers, key=lambda headers: headers.name not in unit.depends)
    own = [work_path(unit, path) for path in unit.include]
    own += [f"{headers.name}/{path}" for headers in ordered for path in headers.include]
    if chain.tvm_ffi:  # the reference gives tvm-ffi no `csrc`
        system = [f"{TVM_FFI}/include"]
    else:
        own = [GENERATED, *own, work_path(unit, PurePosixPath("csrc"))]
        system = [f"{TORCH}/include", f"{TORCH}/include/torch/csrc/api/include", PYTHON]
    if isinstance(chain.device, Rocm) and chain.stable:
        system.insert(0, TORCH_FOLDER)
    if chain.cuda_headers and not chain.tvm_ffi:
        system.append(LINK)
    if chain.glibc_compat:
        system.insert(0, COMPAT)
    # nvcc knows its own; never /usr/include: it must stay behind the C++ library's headers
    device = chain.device
    if device and unit.language != "CUDA" and device.root != Path("/usr"):
        system += [f"{device.link}/{path}" for path in device.include]
    return [f"-I{path}" for path in own] + [part for path in system for part in ("-isystem", path)]


def work_links(chain: Toolchain) -> dict[str, Path]:
    """Links in the work directory, besides the kernel's."""
    package = TVM_FFI if chain.environment.requirement else TORCH
    targets = {package: chain.environment.torch, PYTHON: chain.python_include}
    if chain.device:
        targets[chain.device.link] = chain.device.root
    if chain.cuda_headers:
        targets[LINK] = chain.cuda_headers.folder
    return {**targets, **{headers.name: headers.folder for headers in chain.headers}}


def work_path(unit: Unit, path: PurePosixPath) -> str:
    """A path of a unit, relative to the work directory."""
    return ((FOLDER if unit.translated else KERNEL) / path).as_posix()
