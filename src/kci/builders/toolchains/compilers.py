"""The compilers of this machine, and the compiler cache."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from kci.builders.process.run import Log, own_program, program_output, run, silent
from kci.builders.request import Request
from kci.builders.toolchains.cuda import (
    Toolkit,
    WheelFiles,
    find_library_headers,
    find_toolkit,
    mentions_libraries,
)
from kci.builders.toolchains.cutlass import Headers, find_headers
from kci.builders.toolchains.data import Compiler, toolchains
from kci.builders.toolchains.downloads import FetchedTool
from kci.builders.toolchains.environment import (
    Environment,
    kci_environment,
    python_environment,
    python_include,
    read_torch_version,
    tvm_ffi_environment,
)
from kci.builders.toolchains.glibc import NewerParts, find_newer_parts
from kci.builders.toolchains.oneapi import SyclCode, default_extensions, find_icpx, sycl_code
from kci.builders.toolchains.rocm import Rocm, find_rocm
from kci.config.facts import BACKENDS, HOST
from kci.config.values import Backend, Depend, Version, text_of
from kci.errors import MissingToolError
from kci.matrix.variants import Kind, Variant
from kci.utils.cache import file_digest
from kci.utils.frozen import Frozen

CACHE_VARIABLE = "KCI_COMPILER_CACHE"
"""`sccache`, its path, or `off`; ccache if unset."""

_CACHES = ("ccache", "sccache")

DeviceCompiler = Toolkit | Rocm


def find_compiler_cache(cxx: Sequence[str] = ()) -> Path | None:
    """The compiler cache; None if off or `CXX` has one.

    Raises MissingToolError for an unknown or missing program.
    """
    choice = os.environ.get(CACHE_VARIABLE, "")
    if choice == "off" or (cxx and is_compiler_cache(cxx[0])):
        return None
    program = own_program(choice or "ccache")
    if choice and not (program and is_compiler_cache(choice)):
        raise MissingToolError(
            f"{CACHE_VARIABLE}={choice} names no compiler cache on this machine",
            f"set {CACHE_VARIABLE} to sccache, the path of ccache or sccache, or off",
        )
    return Path(program).absolute() if program else None


def is_compiler_cache(program: str) -> bool:
    """True for a compiler cache."""
    return Path(program).stem in _CACHES


_CXX_NAMES = ("g++", "clang++", "c++")
GCC_FLAGS = ("-fno-gnu-unique", "-fno-canonical-system-headers")
"""Statics stay separate per kernel, and header paths are not rewritten."""

_OLDER_GCC = range(30, 8, -1)
"""Versions to look for beside g++; torch's C++17 needs 9."""

_NVCC_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_ANY_COMPILER = "-allow-unsupported-compiler"
"""With this flag in a variable, nvcc accepts any compiler."""

MANYLINUX_GLIBC = Version.parse("2.28")
"""Newest glibc that published kernels may need (docs/format.md#system-libraries)."""


def cxx_compiler(cuda: str | None = None) -> Compiler:
    """The C++ compiler: `CXX`, else g++, clang++ or c++. Raises MissingToolError.

    `cuda` is the version, `13.0`, of the nvcc that calls it: `NVCC_CCBIN` then precedes `CXX`, and
    an older g++ replaces one that is too new.
    """
    for variable in ("NVCC_CCBIN" if cuda else "", "CXX"):
        if named := os.environ.get(variable):
            words = _ccbin_compiler(Path(named)) if variable == "NVCC_CCBIN" else _words(named)
            if words is None:
                wrong = f"unset {variable}, or name a compiler that exists"
                raise MissingToolError(
                    f"{variable}={named} names a C++ compiler that does not exist", wrong
                )
            return _for_nvcc(words, (), cuda)
    for name in _CXX_NAMES:
        if program := shutil.which(name):
            return _for_nvcc(
                (_absolute(program),), [f"g++-{number}" for number in _OLDER_GCC], cuda
            )
    raise MissingToolError(
        "there is no C++ compiler (looked for g++, clang++, c++)",
        "install one, for example: apt-get install g++",
    )


def variant_compiler(variant: Variant) -> Compiler:
    """The host compiler of a variant."""
    return cxx_compiler(text_of(variant.compute) if variant.backend == Backend.CUDA else None)


def build_compiler(variant: Variant) -> Compiler:
    """The compiler of a variant's C++ sources, which is the host compiler unless the backend has
    its own.
    """
    return (
        find_icpx(text_of(variant.compute))
        if variant.backend == Backend.XPU
        else variant_compiler(variant)
    )


def find_device(
    backend: str, compute: str, system: str, cache: Path, log: Log = silent
) -> DeviceCompiler | None:
    """The compiler of a backend's device code; None if the C++ compiler compiles all.

    Raises MissingToolError.
    """
    if backend == Backend.CUDA:
        return find_toolkit(compute, cache, log)
    return find_rocm(compute, system, log) if backend == Backend.ROCM else None


def examine_device(backend: str, compute: str, system: str, cache: Path) -> str:
    """Where the compiler for a backend is, for people. Raises MissingToolError."""
    device = find_device(backend, compute, system, cache)
    if not device:
        return find_icpx(compute)[0]
    if backend == Backend.CUDA:
        cxx_compiler(compute)  # nvcc needs a host compiler that it accepts
    return device.found


def _words(named: str) -> Compiler | None:
    try:
        words = [_absolute(word) for word in shlex.split(named)]
    except ValueError:  # unbalanced quote
        return None
    return tuple(words) if words and shutil.which(words[0]) else None


def _ccbin_compiler(named: Path) -> Compiler | None:
    # a directory or a program, perhaps the C compiler
    program = named / "g++" if named.is_dir() else named
    for name in (program.name.replace("gcc", "g++"), program.name):
        if path := shutil.which(_absolute(str(program.with_name(name)))):
            return (_absolute(path),)
    return None


def _for_nvcc(cxx: Compiler, others: Iterable[str], cuda: str | None) -> Compiler:
    # another major version of g++, if this one is too new
    newest = toolchains().newest_gcc.get(Version.parse(cuda).minor_text) if cuda else None
    if not newest or any(_ANY_COMPILER in os.environ.get(name, "") for name in _NVCC_FLAGS):
        return cxx
    major = re.match(r"\d+", program_output(*cxx, "-dumpfullversion"))  # clang rejects the option
    if not major or int(major[0]) <= newest:
        return cxx
    for other in others:
        if int(other.rpartition("-")[2]) <= newest and (program := shutil.which(other)):
            return (_absolute(program),)
    raise MissingToolError(
        f"nvcc {cuda} takes GCC up to {newest}, and {shlex.join(cxx)} is GCC {major[0]}",
        f"install g++-{newest}, which kci takes unless CXX or NVCC_CCBIN names another; or give "
        "--container auto",
    )


def _absolute(word: str) -> str:
    # absolute, because compilers run in another directory
    return str(Path(word).absolute()) if "/" in word and Path(word).exists() else word


def gcc_flags(cxx: Compiler) -> tuple[str, ...]:
    """The supported ones of `GCC_FLAGS`; none for clang."""
    # -### only prints commands
    arguments = ("-Werror", "-fsyntax-only", "-x", "c++", os.devnull)
    return tuple(flag for flag in GCC_FLAGS if run([*cxx, "-###", flag, *arguments]).code == 0)


def cpp_library(cxx: Compiler) -> str:
    """The linker argument for the shared C++ library, even if a static one lies beside the
    compiler.
    """
    shared = program_output(*cxx, "-print-file-name=libstdc++.so")
    return "-lstdc++" if "/" in shared else "-l:libstdc++.so.6"


def version_line(cxx: Compiler) -> str:
    """The first line of a compiler's `--version`."""
    return next(iter(program_output(*cxx, "--version").splitlines()), cxx[0])


def compiler_id(cxx: Compiler) -> str:
    """CMake's name of a compiler: `Clang` or `GNU`."""
    return "Clang" if "clang" in version_line(cxx).lower() else "GNU"


def binutils_program(cxx: Compiler, name: str) -> str:
    """A binutils program of a compiler, such as `ar`."""
    path = program_output(*cxx, f"-print-prog-name={name}").strip()
    return path if shutil.which(path) else name


def linked_glibc(cxx: Compiler) -> Version | None:
    """Version of the glibc that a compiler links; None for another libc.

    Raises MissingToolError without headers.
    """
    done = run([*cxx, "-E", "-dM", "-x", "c++", "-include", "cstdlib", os.devnull])
    if done.code != 0:
        if "cstdlib" in done.output:  # g++'s and clang++'s words for a missing file
            raise MissingToolError(
                f"{shlex.join(cxx)} does not find the headers of C and C++:\n{done.tail()}",
                "install them, for example: apt-get install g++",
            )
        raise MissingToolError(f"{shlex.join(cxx)} cannot be run:\n{done.tail()}")
    macros = dict(re.findall(r"^#define __GLIBC(_MINOR)?__ (\d+)$", done.output, re.MULTILINE))
    return Version.parse(f"{macros['']}.{macros.get('_MINOR', 0)}") if "" in macros else None


def glibc_is_newer(cxx: Compiler) -> bool:
    """True if kernels linked here would need a newer glibc than allowed."""
    version = linked_glibc(cxx)
    return version is not None and version > MANYLINUX_GLIBC


class Toolchain(Frozen):
    """The compilers, torch and libraries of one variant."""

    variant: Variant
    kernel_id: str
    cxx: Compiler
    """With the compiler cache, if any."""
    gcc_flags: tuple[str, ...]
    """The supported ones of `GCC_FLAGS`."""
    environment: Environment
    python_include: Path
    device: DeviceCompiler | None = None
    headers: tuple[Headers, ...] = ()
    cuda_headers: WheelFiles | None = None
    ar: str = "ar"
    glibc_compat: bool = False
    """True if the machine's glibc is newer than kernels may need."""
    newer_parts: NewerParts | None = None
    """Parts of the C++ library to link statically."""
    sycl: SyclCode | None = None
    versions: tuple[str, ...] = ()
    """Version lines of the tools and variables that they read; a change recompiles everything."""
    cpp_library: str = "-lstdc++"
    """See `cpp_library`."""
    launcher: Path | None = None
    """The compiler cache."""

    @property
    def module(self) -> str:
        """File name of the native module."""
        return f"{self.kernel_id}.so" if self.tvm_ffi else f"{self.kernel_id}.abi3.so"

    @property
    def stable(self) -> bool:
        return self.variant.kind is Kind.STABLE_ABI

    @property
    def tvm_ffi(self) -> bool:
        return self.variant.kind is Kind.TVM_FFI

    def downloads(self) -> list[FetchedTool]:
        """Tools that may have to be downloaded."""
        tools = (self.environment, self.device, self.cuda_headers, *self.headers)
        return [part for part in tools if part is not None]


def find_toolchain(
    request: Request, depends: Iterable[Depend], sources: Iterable[Path], log: Log
) -> Toolchain:
    """The toolchain of a variant with dependencies and sources, perhaps to be downloaded.

    Raises MissingToolError.
    """
    variant, cache, compute = (
        request.variant,
        request.options.cache,
        text_of(request.variant.compute),
    )
    environment = _environment(request)
    headers = find_headers(depends, cache, log, compute=compute)
    cxx = build_compiler(variant)
    device = find_device(variant.backend, compute, variant.system, cache, log)
    sycl = sycl_code(request.build, variant)
    if sycl and sycl.extensions:
        sycl = replace(sycl, extensions=(default_extensions(cxx), *sycl.extensions))
    cuda_headers = None
    if isinstance(device, Toolkit) and (variant.kind is Kind.FULL or mentions_libraries(sources)):
        cuda_headers = find_library_headers(device, cache)
    release = environment.release or read_torch_version(environment.torch).release
    versions = [version_line(cxx), environment.requirement or f"torch {release}"]
    versions += [*(device.versions() if device else ()), *environment_flags()]
    newer_glibc, ar = glibc_is_newer(cxx), binutils_program(cxx, "ar")
    return Toolchain(
        variant=variant,
        kernel_id=request.kernel_id,
        cxx=cxx,
        gcc_flags=gcc_flags(cxx),
        cpp_library=cpp_library(cxx),
        environment=environment,
        python_include=python_include(),
        device=device,
        cuda_headers=cuda_headers,
        ar=ar,
        sycl=sycl,
        headers=headers,
        glibc_compat=newer_glibc,
        newer_parts=find_newer_parts(cxx, ar) if newer_glibc else None,
        versions=tuple(versions),
        launcher=find_compiler_cache(cxx),
    )


def _environment(request: Request) -> Environment:
    # the CPU wheel has torch's stable headers for all backends; a full build needs the toolkit's
    # own wheel
    variant = request.variant
    if variant.kind is Kind.TVM_FFI:
        return tvm_ffi_environment(request.options.cache, text_of(variant.tvm_ffi))
    if not request.options.isolation:
        return python_environment()
    assert variant.torch is not None  # noqa: S101  - every torch variant has a torch
    backend = variant.backend if variant.kind is Kind.FULL else HOST
    return kci_environment(
        request.options.cache,
        variant.wheel or variant.torch.text,
        toolchains().flavour(backend, variant.compute),
        headers_only=BACKENDS[backend].headers_only,
    )


def toolchain_identity(
    variant: Variant,
    cache: Path,
    *,
    builder: str = "auto",
    isolation: bool = True,
    flags: Iterable[str] = (),
    outside: Callable[..., list[str]] | None = None,
) -> str:
    """Lines that identify the compilers for a fingerprint; empty if nothing compiles.

    Raises MissingToolError.

    `flags` are those of build.toml; `outside` is `outside_files`, or a function that remembers its
    answers.
    """
    if builder == "nix":
        return f"nix\n{version_line(('nix',))}"
    if variant.kind is Kind.NOARCH:
        return ""
    cxx = variant_compiler(variant)
    libc, compiler = linked_glibc(cxx), build_compiler(variant)
    # a launcher and the path do not count; the version and each word after it do
    program = next((at for at, word in enumerate(compiler) if not is_compiler_cache(word)), 0)
    lines = [
        f"{variant.system} {f'glibc {libc.text}' if libc else ''}",
        version_line(compiler),
        *compiler[program + 1 :],
        version_line((binutils_program(cxx, "ld"),)),
        _torch(variant, isolation=isolation),
    ]
    device = find_device(variant.backend, text_of(variant.compute), variant.system, cache)
    lines += device.versions() if device else []
    # a toolkit of wheels is as its version says, and may not be here yet
    of_machine = None if isinstance(device, Toolkit) and device.wheels else device
    lines += (outside or outside_files)(
        compiler, of_machine, tuple(flag for flag in flags if "/" in flag), contents=True
    )
    return "\n".join([*lines, *environment_flags()])


def environment_flags() -> list[str]:
    """Compiler variables that are set, as sorted `NAME=value`."""
    names = sorted(toolchains().compiler_variables)
    return [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]


_PARTS_OF_CXX = ("cc1plus", "as")
_SEARCHED = re.compile(r"^ (/.*)$", re.MULTILINE)
_NAMES_FILES = re.compile(
    r"(?:.*,)?(?:--?(?:[a-z-]+=|I|isystem|iquote|idirafter|include|imacros|B))?(/.+)"
)


def outside_files(
    cxx: Sequence[str], device: DeviceCompiler | None, flags: Iterable[str] = (), *, contents: bool
) -> list[str]:
    """List what compilers are and read outside of the kernel: programs, header folders, and what
    words and flags name.

    A file counts with its digest: a driver that is as it was may start another compiler. In a
    folder names say that a header is new or gone; with `contents` sizes and times count too.
    """
    programs = [program_output(*cxx, f"-print-prog-name={part}").strip() for part in _PARTS_OF_CXX]
    found = map(shutil.which, (*(word for word in cxx if not is_compiler_cache(word)), *programs))
    paths = {Path(os.path.realpath(path)) for path in found if path}
    folders = []
    if device:
        parts = (path for part in device.parts for path in device.root.glob(part))
        paths |= {path for path in parts if path.is_file()}
        folders = [f"{device.root}/{folder}" for folder in device.include]
    lines = sorted(f"{path.name} {file_digest(path)}" for path in paths)
    # the search list has the folders of CXX's words and of CPATH
    output = run([*cxx, "-E", "-v", "-x", "c++", os.devnull]).output
    named = [match[1] for word in (*cxx[1:], *flags) if (match := _NAMES_FILES.fullmatch(word))]
    for place in dict.fromkeys((*_SEARCHED.findall(output), *folders, *named)):
        path = Path(place)
        lines.append(
            f"{place} {file_digest(path) if path.is_file() else _listed(path, contents=contents)}"
        )
    return lines


def _listed(folder: Path, *, contents: bool) -> str:
    total = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            total.update(os.fsencode(f"{place}/{name}\0"))
            if contents:
                with suppress(OSError):  # a link to nothing
                    about = Path(place, name).stat()
                    total.update(
                        f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode()
                    )
    return total.hexdigest()


def _torch(variant: Variant, *, isolation: bool) -> str:
    if variant.kind is Kind.TVM_FFI:
        return f"tvm-ffi {toolchains().tvm_ffi.get(text_of(variant.tvm_ffi), '')}"
    if not isolation:
        torch = read_torch_version(python_environment().torch)
        return f"torch {torch.release} of this Python, for {torch.device}"
    return (
        f"torch {variant.wheel or toolchains().torch_release(variant.torch.text)}"
        if variant.torch
        else "no torch"
    )
