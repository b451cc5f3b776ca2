"""The kernel's Python package: which of its files go into a variant directory."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from kci.builders.paths import escape, refused
from kci.config.model import Build
from kci.config.values import python_name
from kci.files.walk import is_bytecode
from kci.inputs.kernel_inputs import SEALED, is_installed, package_path


def package_dir(kernel_dir: Path, build: Build) -> Path:
    """Where the package lies: `torch-ext/<python name>`, or `tvm-ffi-ext/<python name>` (docs/format.md#visible-files).

    Raises:
        FindingsError: it is missing, has no `__init__.py`, or holds an entry with its own name (docs/format.md#tree).
        UnsafeError: it is a link that leads out of the kernel's directory.
    """
    relative = package_path(build)
    name = python_name(build.name)
    package = kernel_dir / relative
    if not package.is_dir():
        raise refused("KCI504", f"the Python package {relative}/ does not exist", relative)
    if not package.resolve().is_relative_to(kernel_dir.resolve()):
        raise escape(f"the Python package {relative} leads out of the kernel's directory", relative)
    if not (package / "__init__.py").is_file():
        raise refused("KCI504", f"the Python package {relative}/ has no __init__.py", relative)
    if os.path.lexists(package / name):
        raise refused("KCI505", f"the Python package {relative}/ has an entry {name!r} inside", f"{relative}/{name}")
    return package


def all_files(kernel_dir: Path, package: Path) -> dict[str, Path]:
    """Every file of a package but bytecode: what a noarch variant carries.

    Returns:
        The path inside the package (with `/`) to the real file, sorted.

    Raises:
        UnsafeError: a link leads out of the kernel's directory, or to a directory, or an entry is no regular file.
    """
    root = kernel_dir.resolve()
    return {path.relative_to(package).as_posix(): real for path, real in _walk(package, package, root)}


def installed_files(kernel_dir: Path, package: Path, build: Build) -> dict[str, Path]:
    """What a compiled variant carries: `*.py`, and the data extensions of `pyext`; no `.pyi` (docs/format.md#tree)."""
    return {
        name: real for name, real in all_files(kernel_dir, package).items() if is_installed(name, build, compiled=True)
    }


def write_package(into: Path, files: Mapping[str, Path], generated: Mapping[str, str]) -> None:
    """Copy files into a directory and write the generated ones over them.

    Modes and times are not copied, so that a variant does not depend on the checkout it was built from.
    """
    into.mkdir(parents=True, exist_ok=True)
    for name, real in files.items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(real, target)
        target.chmod(0o644)
    for name, text in generated.items():
        (into / name).write_text(text, encoding="utf-8")
        (into / name).chmod(0o644)


def _walk(directory: Path, package: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    for path in sorted(directory.iterdir()):
        shown = path.relative_to(package.parent.parent).as_posix()
        if is_bytecode(path.name) or (directory == package and path.name in SEALED):
            continue
        if path.is_symlink():
            yield path, _linked_file(path, root, shown)
        elif path.is_dir():
            yield from _walk(path, package, root)
        elif stat.S_ISREG(path.stat().st_mode):
            yield path, path
        else:
            raise escape(f"{shown} is neither a file nor a directory", shown)


def _linked_file(path: Path, root: Path, shown: str) -> Path:
    """The file behind a link. Links to directories are refused: they can be endless, and the loader sees no links."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise refused("KCI501", f"{shown} is a link to nothing", shown) from error
    if not real.is_relative_to(root):
        raise escape(f"{shown} is a link that leads out of the kernel's directory", shown)
    if not real.is_file():
        raise escape(f"{shown} is a link to something other than a file", shown)
    return real
