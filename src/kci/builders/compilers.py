"""The compilers of this machine, and what to say when one is missing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from kci.builders.process import run
from kci.builders.toolchains import toolchains
from kci.config.values import Version
from kci.errors import MissingToolError

_CXX_NAMES = ("g++", "clang++", "c++")
_GPU_COMPILERS = {
    "metal": ("xcrun", "build on macOS with Xcode's command line tools"),
}

_OLDEST_GCC = 9
"""Older ones do not have all of C++17, which torch's headers are written in."""

MANYLINUX_GLIBC = Version.parse("2.28")
"""What published kernels may need at most (docs/format.md#system-libraries)."""


def cxx_compiler(cuda: str | None = None) -> tuple[str, ...]:
    """The C++ compiler: `CXX` (it may have arguments, such as a launcher), else the first of g++, clang++, c++.

    Args:
        cuda: the CUDA version whose nvcc calls it, `13.0`: where g++ is newer than that nvcc takes, an older one that
            is here, such as g++-15, comes in its place.

    Raises:
        MissingToolError: there is none.
    """
    hint = "install one, for example: apt-get install g++"
    if explicit := os.environ.get("CXX"):
        try:
            words = [_placed(word) for word in shlex.split(explicit)]
        except ValueError:  # a quote without its end
            words = []
        if not words or shutil.which(words[0]) is None:
            raise MissingToolError(f"CXX={explicit} names a C++ compiler that is not there", hint=hint)
        return tuple(words)
    for name in _CXX_NAMES:
        if found := shutil.which(name):
            return (_placed(_older_gcc(found, cuda) if cuda else found),)
    raise MissingToolError("there is no C++ compiler (looked for g++, clang++, c++)", hint=hint)


def _older_gcc(compiler: str, cuda: str) -> str:
    """The newest GCC here that nvcc takes; the compiler itself where it is one, no GCC, or the only one."""
    if (newest := newer_than_nvcc_takes((compiler,), cuda)) is None:
        return compiler
    names = (f"g++-{major}" for major in range(newest, _OLDEST_GCC - 1, -1))
    return next(filter(None, map(shutil.which, names)), compiler)


def newer_than_nvcc_takes(cxx: tuple[str, ...], cuda: str) -> int | None:
    """The major version of the newest GCC that the nvcc of a CUDA version takes, if this compiler is a newer GCC."""
    newest = toolchains().newest_gcc.get(Version.parse(cuda).minor_text)
    # Clang does not know the option.
    said = run([*cxx, "-dumpfullversion"]) if newest else None
    major = re.match(r"\d+", said.output) if said is not None and said.code == 0 else None
    return newest if newest and major and int(major[0]) > newest else None


def _placed(word: str) -> str:
    """A path from the root on, because compilers are started in another directory; any other word as it is."""
    return str(Path(word).absolute()) if "/" in word and Path(word).exists() else word


def knows_gnu_unique(cxx: tuple[str, ...]) -> bool:
    """Whether a compiler takes -fno-gnu-unique; GCC does, clang has nothing to turn off."""
    # With -### it only says what it would run.
    return run([*cxx, "-###", "-fno-gnu-unique", "-Werror", "-fsyntax-only", "-x", "c++", os.devnull]).code == 0


def version_line(cxx: tuple[str, ...]) -> str:
    """What a compiler says it is, in one line."""
    lines = run([*cxx, "--version"]).output.splitlines()
    return lines[0] if lines else cxx[0]


def ninja_version(ninja: Path) -> tuple[int, ...]:
    """Major and minor; nothing if it does not say."""
    found = re.match(r"(\d+)\.(\d+)", run([str(ninja), "--version"]).output)
    return (int(found[1]), int(found[2])) if found else ()


def compiler_id(cxx: tuple[str, ...]) -> str:
    """What CMake calls a compiler: `Clang` or `GNU`."""
    return "Clang" if "clang" in version_line(cxx).lower() else "GNU"


def glibc_is_newer() -> bool:
    """Whether this machine's glibc is newer than what published kernels may need."""
    if sys.platform == "win32":
        return False
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return False
    version = name.rpartition(" ")[2]
    try:
        return Version.parse(version) > MANYLINUX_GLIBC
    except ValueError:
        return False


def refuse_backend(backend: str) -> NoReturn:
    """Say why a backend cannot be compiled natively here.

    Raises:
        MissingToolError: always; it names the compiler if that is missing, and kci's own limit if it is there.
    """
    tool, remedy = _GPU_COMPILERS.get(backend, ("", ""))
    if not tool:
        raise MissingToolError(f"the native builder has no compiler for {backend}", hint="try --builder nix")
    if shutil.which(tool) is None:
        raise MissingToolError(
            f"building for {backend} needs {tool}, which is not installed on this machine", hint=remedy
        )
    hint = "build it with --builder nix, or with the reference builder"
    raise MissingToolError(f"{tool} is there, but the native builder cannot build for {backend} yet", hint=hint)
