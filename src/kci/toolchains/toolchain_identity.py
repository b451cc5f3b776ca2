"""Which compilers a build on this machine would use, and what of its environment they would see."""

from __future__ import annotations

import os
import platform
import shutil
from functools import cache as remembered
from pathlib import Path

from kci.errors import MissingToolError
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.processes.process import run, silent
from kci.toolchains.compilers import compiler_of, version_line
from kci.toolchains.cuda import find_toolkit, nvcc_name
from kci.toolchains.environment import own, read_torch_version
from kci.toolchains.rocm import find_rocm
from kci.toolchains.toolchain_data import toolchains


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
        return f"nix\n{_said(('nix', '--version'))}"
    if variant.kind is Kind.NOARCH:
        return ""
    lines = [
        f"{platform.system()} {platform.machine()} {_libc()}",
        *_compiler(compiler_of(variant)),
        _said(("ld", "--version")),
        _torch(variant, isolation=isolation),
    ]
    if variant.backend == "cuda" and variant.compute:
        lines.append(nvcc_name(find_toolkit(variant.compute, cache, silent)))
    if variant.backend == "rocm" and variant.compute:
        rocm = find_rocm(variant.compute, variant.system, silent)
        lines += [_said((str(rocm.hipcc), "--version")), f"ROCm {rocm.release}"]
    return "\n".join([*lines, *environment_flags()])


def environment_flags() -> list[str]:
    """The variables that compilers take flags and directories from, as far as they are set: `NAME=value`, sorted."""
    names = toolchains().environment["variables"]
    return [f"{name}={os.environ[name]}" for name in sorted(names) if os.environ.get(name)]


def _compiler(words: tuple[str, ...]) -> list[str]:
    """The compiler and its flags. Where it lies says nothing, what it says of itself does."""
    return [version_line(words), *(word for word in words if word.startswith("-"))]


def _torch(variant: Variant, *, isolation: bool) -> str:
    if variant.kind is Kind.TVM_FFI:
        return f"tvm-ffi {toolchains().tvm_ffi.get(variant.tvm_ffi or '', '')}"
    if not isolation:
        found = read_torch_version(own())
        return f"torch {found.release} of this Python, for {found.built_for}"
    return f"torch {toolchains().torch_release(variant.torch)}" if variant.torch else "no torch"


def _libc() -> str:
    return " ".join(platform.libc_ver())


@remembered
def _said(command: tuple[str, ...]) -> str:
    """The first line that a program says; empty if it is not here."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return (run(command).output.splitlines() or [""])[0]
    except MissingToolError:
        return ""
