"""A kernel's sources: what can be said about them before anything is built (docs/format.md#source-rules)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kci.config.find_settings import FoundSettings
from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.suppression import apply_settings, apply_source_comments
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.walk import is_lfs_pointer, walk
from kci.sources.op_rules import SUFFIXES, check_cpp
from kci.sources.package_rules import OPS, PackageFacts, check_package, package_of

FETCH_LFS = "fetch it: `git lfs pull`; workflows that `kci render` writes do where .gitattributes says so"


def source_findings(kernel: Kernel, settings: FoundSettings, remember: Path | None = None) -> list[Diagnostic]:
    """The findings about a kernel's sources, without suppressed ones; `remember` as for `check_sources`."""
    found = apply_source_comments(check_sources(kernel, remember), kernel.document)
    kept = apply_settings(found, settings, (), verification=True)
    told = set(found)
    return [item for item in kept if item in told]  # what is wrong with the entries of kci.toml is said elsewhere


def check_sources(kernel: Kernel, remember: Path | None = None) -> Iterator[Diagnostic]:
    """The rules about a kernel directory: its package is in place, its Python is fine, its C++ names no namespace.

    In the folder `remember`, facts about files are kept from run to run; without it every file is parsed.
    """
    build, shown = kernel.build, kernel.directory
    kernel_dir = Path(shown)
    tvm_ffi = build.framework_name == "tvm-ffi"
    name = python_name(build.name)
    relative = f"{'tvm-ffi-ext' if tvm_ffi else 'torch-ext'}/{name}"
    where = relative if shown == "." else f"{shown.rstrip('/')}/{relative}"
    root = kernel_dir / relative
    if not (root / "__init__.py").is_file():
        yield kernel.document.at_value(("general", "name"), "KCI774", f"there is no {relative}/__init__.py")
        return
    if os.path.lexists(root / name):
        yield finding("KCI703", f"the package holds an entry called {name}, as it is called itself", path=where)
    package = package_of(build.name, _depends(build), build.general.backends, tvm_ffi=tvm_ffi)
    try:
        files = walk(root)
    except FindingsError as error:
        yield finding("KCI700", error.message, path=where)
        return
    listed = list(_listed(kernel_dir, shown, build))
    packaged = [(f"{where}/{item.name}", str(item.path)) for item in files if item.regular and not item.link]
    for path, file in [*packaged, *listed]:
        if is_lfs_pointer(file):
            yield finding("KCI732", "it is a pointer of Git LFS, and not the file", path=path, hint=FETCH_LFS)
    yield from check_package(files, where, package, (OPS,), PackageFacts(remember, root))
    yield from check_cpp((file, path) for path, file in listed if path.endswith(SUFFIXES))


def listed_sources(build: Build) -> set[str]:
    """The sources that build.toml names, relative to the kernel's directory."""
    listed = {*(build.torch.src if build.torch else ()), *(build.tvm_ffi.src if build.tvm_ffi else ())}
    return listed | {name for component in build.kernel.values() for name in component.src}


def _listed(kernel_dir: Path, shown: str, build: Build) -> Iterator[tuple[str, str]]:
    """The files of `src` lists that are inside of the kernel, by their paths for diagnostics, and where they are."""
    root, inside = os.path.realpath(kernel_dir), dict[str, str]()
    for name in sorted(listed_sources(build)):
        path = f"{root}/{name}"
        folder, _, base = path.rpartition("/")
        real = inside.get(folder) or inside.setdefault(folder, os.path.realpath(folder))
        place = f"{real}/{base}"
        with suppress(OSError, ValueError):
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                place = os.path.realpath(place)
                mode = os.lstat(place).st_mode
            if stat.S_ISREG(mode) and place.startswith(f"{root}/"):
                yield name if shown == "." else f"{shown.rstrip('/')}/{name}", place


def _depends(build: Build) -> list[tuple[str, str]]:
    """Every declared dependency with the backend it is for; a file may be meant for any of them."""
    found = [(name, "") for name in build.general.python_depends or ()]
    for backend in ("cuda", "neuron", "tpu", "xpu"):
        part = getattr(build.general, backend)
        found += [(name, backend) for name in (part.python_depends if part else None) or ()]
    return found
