"""The compilers of this machine, and the compiler cache in front of them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache as remembered
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.build.process.run import output_of, run, silent
from kci.build.toolchains.cuda import find_toolkit, nvcc_name
from kci.build.toolchains.data import toolchains
from kci.build.toolchains.environment import own, read_torch_version
from kci.build.toolchains.rocm import find_rocm
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.variants import Kind, Variant
from kci.utils.suggest import count

CHOICE = "KCI_COMPILER_CACHE"
"""`sccache` or its path, or `off`; else it is ccache."""

_CACHES = ("ccache", "sccache")

RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,64}\Z")]


class ObjectUse(msgspec.Struct, frozen=True):
    """How many objects a build found, and how many it compiled."""

    found: Annotated[int, Meta(ge=0)]
    made: Annotated[int, Meta(ge=0)]
    runs: tuple[RunId, ...] = ()
    """The CI runs whose packs it was given, if it found any."""

    def __str__(self) -> str:
        runs = f", of run {' and '.join(self.runs)}" if self.runs else ""
        return f"{self.found} of {count(self.found + self.made, 'object')} are as they were{runs}"

    def __add__(self, other: ObjectUse) -> ObjectUse:
        runs = tuple(sorted({*self.runs, *other.runs}))
        return ObjectUse(self.found + other.found, self.made + other.made, runs)


def find_cache(cxx: Sequence[str] = ()) -> Path | None:
    """The program that compilers are started through; None for none.

    ccache is the one of kci's own environment, which has it as a dependency, else one on the PATH.

    Args:
        cxx: the C++ compiler; if `CXX` names a cache in front of it, kci adds none.

    Raises:
        MissingToolError: `KCI_COMPILER_CACHE` names a program that is not there, or none that kci knows.
    """
    choice = os.environ.get(CHOICE, "")
    if choice == "off" or (cxx and is_cache(cxx[0])):
        return None
    own = Path(sysconfig.get_path("scripts")) / "ccache"
    wanted = choice or "ccache"
    found = str(own) if wanted == "ccache" and own.is_file() else shutil.which(wanted)
    if choice and not (found and is_cache(choice)):
        hint = f"set {CHOICE} to sccache, the path of ccache or sccache, or off"
        raise MissingToolError(f"{CHOICE}={choice} names no compiler cache that is here", hint=hint)
    return Path(found).absolute() if found else None


def is_cache(program: str) -> bool:
    """True if a program starts compilers and is none."""
    return Path(program).stem in _CACHES


_CXX_NAMES = ("g++", "clang++", "c++")
GCC_FLAGS = ("-fno-gnu-unique", "-fno-canonical-system-headers")
"""So that the static data of two kernels in one process stay apart, and headers are named as they were found."""

_OLDER_GCC = range(30, 8, -1)
"""The versions that are looked for beside g++; one below 9 does not have all of C++17, which torch's headers need."""

_NVCC_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_ANY_COMPILER = "-allow-unsupported-compiler"
"""With this in one of these variables nvcc refuses no compiler."""

MANYLINUX_GLIBC = Version.parse("2.28")
"""What published kernels may need at most (docs/format.md#system-libraries)."""


def cxx_compiler(cuda: str | None = None) -> tuple[str, ...]:
    """The C++ compiler: `CXX` (it may have arguments, such as a cache), else the first of g++, clang++, c++.

    Args:
        cuda: the CUDA version whose nvcc calls it, `13.0`. Then `NVCC_CCBIN`, nvcc's own variable, comes before `CXX`;
            and where g++ is newer than that nvcc takes, an older one that is here, such as g++-15, in its place.

    Raises:
        MissingToolError: there is none, or none that nvcc takes.
    """
    for variable in ("NVCC_CCBIN" if cuda else "", "CXX"):
        if named := os.environ.get(variable) if variable else None:
            words = _of_ccbin(Path(named)) if variable == "NVCC_CCBIN" else _words(named)
            if words is None:
                wrong = f"unset {variable}, or name a compiler that is here"
                raise MissingToolError(f"{variable}={named} names a C++ compiler that does not exist", hint=wrong)
            return _for_nvcc(words, (), cuda)
    for name in _CXX_NAMES:
        if found := shutil.which(name):
            return _for_nvcc((_placed(found),), [f"g++-{number}" for number in _OLDER_GCC], cuda)
    hint = "install one, for example: apt-get install g++"
    raise MissingToolError("there is no C++ compiler (looked for g++, clang++, c++)", hint=hint)


def compiler_of(variant: Variant) -> tuple[str, ...]:
    """The C++ compiler of a variant's host code, as `cxx_compiler` finds it: for CUDA one that nvcc takes."""
    return cxx_compiler(variant.compute if variant.backend == "cuda" else None)


def _words(named: str) -> tuple[str, ...] | None:
    try:
        words = [_placed(word) for word in shlex.split(named)]
    except ValueError:  # a quote without its end
        return None
    return tuple(words) if words and shutil.which(words[0]) else None


def _of_ccbin(named: Path) -> tuple[str, ...] | None:
    # a directory or a program, which for nvcc may be the compiler for C
    program = named / "g++" if named.is_dir() else named
    for name in (program.name.replace("gcc", "g++"), program.name):
        if found := shutil.which(_placed(str(program.with_name(name)))):
            return (_placed(found),)
    return None


def _for_nvcc(cxx: tuple[str, ...], others: Iterable[str], cuda: str | None) -> tuple[str, ...]:
    # or the newest of other major versions of g++ where this is a GCC that is too new for nvcc
    newest = toolchains().newest_gcc.get(Version.parse(cuda).minor_text) if cuda else None
    if cuda is None or newest is None or any(_ANY_COMPILER in os.environ.get(name, "") for name in _NVCC_FLAGS):
        return cxx
    major = re.match(r"\d+", output_of(*cxx, "-dumpfullversion"))  # Clang does not know the option
    if major is None or int(major[0]) <= newest:
        return cxx
    for other in others:
        if int(other.rpartition("-")[2]) <= newest and (found := shutil.which(other)):
            return (_placed(found),)
    hint = f"install g++-{newest}, which kci takes unless CXX or NVCC_CCBIN names another; or give --container auto"
    raise MissingToolError(f"nvcc {cuda} takes GCC up to {newest}, and {shlex.join(cxx)} is GCC {major[0]}", hint=hint)


def _placed(word: str) -> str:
    # from the root on, because compilers are started in another directory
    return str(Path(word).absolute()) if "/" in word and Path(word).exists() else word


def gcc_flags(cxx: tuple[str, ...]) -> tuple[str, ...]:
    """Which of `GCC_FLAGS` a compiler takes; GCC does, clang has nothing to turn off."""
    # With -### it only says what it would run.
    asked = ("-Werror", "-fsyntax-only", "-x", "c++", os.devnull)
    return tuple(flag for flag in GCC_FLAGS if run([*cxx, "-###", flag, *asked]).code == 0)


def cpp_library(cxx: tuple[str, ...]) -> str:
    """The linker's argument for the shared C++ library.

    A compiler that comes with the static one only takes that for `-lstdc++`, and a module must not have its own copy:
    then it is the library of the system, by its file name.
    """
    return "-lstdc++" if "/" in output_of(*cxx, "-print-file-name=libstdc++.so") else "-l:libstdc++.so.6"


def version_line(cxx: tuple[str, ...]) -> str:
    """What a compiler says it is, in one line."""
    return next(iter(output_of(*cxx, "--version").splitlines()), cxx[0])


def ninja_version(ninja: Path) -> tuple[int, ...]:
    """Major and minor; nothing if it does not say."""
    found = re.match(r"(\d+)\.(\d+)", run([str(ninja), "--version"]).output)
    return (int(found[1]), int(found[2])) if found else ()


def compiler_id(cxx: tuple[str, ...]) -> str:
    """What CMake calls a compiler: `Clang` or `GNU`."""
    return "Clang" if "clang" in version_line(cxx).lower() else "GNU"


def program_of(cxx: tuple[str, ...], name: str) -> str:
    """A program of binutils that goes with a compiler, such as `ar`."""
    found = output_of(*cxx, f"-print-prog-name={name}").strip()
    return found if shutil.which(found) else name


def glibc_of(cxx: tuple[str, ...]) -> Version | None:
    """The version of the glibc that a compiler links against; None for another C library.

    Raises:
        MissingToolError: it does not find the headers of C or C++.
    """
    done = run([*cxx, "-E", "-dM", "-x", "c++", "-include", "cstdlib", os.devnull])
    if done.code != 0:
        if "cstdlib" in done.output:  # as g++ and clang++ say it of a file that is not there
            hint = "install them, for example: apt-get install g++"
            message = f"{shlex.join(cxx)} does not find the headers of C and C++:\n{done.tail()}"
            raise MissingToolError(message, hint=hint)
        raise MissingToolError(f"{shlex.join(cxx)} cannot be run:\n{done.tail()}")
    found = dict(re.findall(r"^#define __GLIBC(_MINOR)?__ (\d+)$", done.output, re.MULTILINE))
    return Version.parse(f"{found['']}.{found.get('_MINOR', 0)}") if "" in found else None


def glibc_is_newer(cxx: tuple[str, ...]) -> bool:
    """True if the glibc that a compiler links against is newer than what published kernels may need."""
    version = glibc_of(cxx)
    return version is not None and version > MANYLINUX_GLIBC


def toolchain_identity(variant: Variant, cache: Path, *, builder: str = "auto", isolation: bool = True) -> str:
    """What compiles a variant here, as lines of text: equal where nothing about the compilers differs.

    It is for the fingerprint of a build without an image, whose compilers are whatever the machine has.

    Args:
        variant: which one.
        cache: the cache directory, in which toolkits can be.
        builder: one of `BUILDERS`.
        isolation: whether it is compiled against a torch of kci's own.

    Returns:
        the lines; empty for a variant that nothing compiles.

    Raises:
        MissingToolError: a compiler, toolkit or torch that it needs is not here.
    """
    if builder == "nix":
        return f"nix\n{_first_line('nix', '--version')}"
    if variant.kind is Kind.NOARCH:
        return ""
    cxx = compiler_of(variant)
    libc = glibc_of(cxx)
    lines = [
        f"{variant.system} {f'glibc {libc.text}' if libc else ''}",
        *_compiler(cxx),
        _first_line(program_of(cxx, "ld"), "--version"),
        _torch(variant, isolation=isolation),
    ]
    if variant.backend == "cuda" and variant.compute:
        lines.append(nvcc_name(find_toolkit(variant.compute, cache, silent)))
    if variant.backend == "rocm" and variant.compute:
        rocm = find_rocm(variant.compute, variant.system, silent)
        lines += [_first_line(str(rocm.hipcc), "--version"), f"ROCm {rocm.release}"]
    return "\n".join([*lines, *environment_flags()])


def environment_flags() -> list[str]:
    """The variables that compilers take flags and directories from, as far as they are set: `NAME=value`, sorted."""
    names = toolchains().environment["variables"]
    return [f"{name}={os.environ[name]}" for name in sorted(names) if os.environ.get(name)]


def _compiler(words: tuple[str, ...]) -> list[str]:
    # where the compiler lies says nothing, what it says of itself does
    return [version_line(words), *(word for word in words if word.startswith("-"))]


def _torch(variant: Variant, *, isolation: bool) -> str:
    if variant.kind is Kind.TVM_FFI:
        return f"tvm-ffi {toolchains().tvm_ffi.get(variant.tvm_ffi or '', '')}"
    if not isolation:
        found = read_torch_version(own().torch)
        return f"torch {found.release} of this Python, for {found.built_for}"
    return f"torch {toolchains().torch_release(variant.torch)}" if variant.torch else "no torch"


@remembered
def _first_line(*command: str) -> str:
    return next(iter(output_of(*command).splitlines()), "")
