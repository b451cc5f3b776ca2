"""A kernel's sources: what can be said about them before anything is built (docs/format.md#source-rules)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kci.config.model import Build
from kci.config.reader import read_kernel
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.walk import walk
from kci.verify.cpp_rules import SUFFIXES, check_cpp
from kci.verify.python_rules import OPS, check_package, package_of


def check_sources(kernel_dir: Path, shown: str) -> Iterator[Diagnostic]:
    """The rules about a kernel directory: its build.toml can be read, its package is in place, its Python is fine."""
    try:
        kernel = read_kernel(shown)
    except FindingsError as error:
        yield from error.diagnostics
        return
    yield from kernel.diagnostics
    build = kernel.build
    tvm_ffi = build.framework_name == "tvm-ffi"
    name = python_name(build.name)
    relative = f"{'tvm-ffi-ext' if tvm_ffi else 'torch-ext'}/{name}"
    where = relative if shown == "." else f"{shown.rstrip('/')}/{relative}"
    root = kernel_dir / relative
    if not (root / "__init__.py").is_file():
        yield finding("KCI774", f"there is no {relative}/__init__.py", path=where)
        return
    if os.path.lexists(root / name):
        yield finding("KCI703", f"the package holds an entry called {name}, as it is called itself", path=where)
    package = package_of(build.name, _depends(build), tvm_ffi=tvm_ffi)
    yield from check_package(walk(root), where, package, (OPS,))
    yield from check_cpp(_native_sources(kernel_dir, shown, build))


def _native_sources(kernel_dir: Path, shown: str, build: Build) -> list[tuple[Path, str]]:
    """The C++ and CUDA files that build.toml names, with their paths for diagnostics."""
    listed = {*(build.torch.src if build.torch else ()), *(build.tvm_ffi.src if build.tvm_ffi else ())}
    listed |= {name for component in build.kernel.values() for name in component.src}
    root = kernel_dir.resolve()
    found = []
    for name in sorted(listed):
        path = kernel_dir / name
        if name.endswith(SUFFIXES) and path.is_file() and path.resolve().is_relative_to(root):
            found.append((path, name if shown == "." else f"{shown.rstrip('/')}/{name}"))
    return found


def _depends(build: Build) -> list[tuple[str, str]]:
    """Every declared dependency with the backend it is for; a file may be meant for any of them."""
    found = [(name, "") for name in build.general.python_depends or ()]
    for backend in ("cuda", "neuron", "tpu", "xpu"):
        part = getattr(build.general, backend)
        found += [(name, backend) for name in (part.python_depends if part else None) or ()]
    return found
