"""The files that a build sees: a folder with copies of what build.toml lists
(docs/format.md#visible-files).

Compilers search includes beside a copy, so they do not find an unlisted file, and an edit during a
build has no effect.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from kci.builders.request import Request
from kci.config.facts import BACKENDS, HOST
from kci.config.values import python_name
from kci.diagnostics import finding, rules
from kci.errors import BuildFailedError, FindingsError, KciError, UnsafeError
from kci.plan.inputs.kernel_inputs import SEALED, is_installed, package_path
from kci.plan.inputs.source_tree import SourceTree
from kci.utils.cache import file_digest
from kci.utils.walk import is_bytecode

BUILD_TOML = "build.toml"

KERNEL = "kernel"
"""Link to the copies of the kernel's files in the work directory."""

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that would break lines of a build file."""
# ninja cannot escape `|`, and nvcc's shell expands the others inside double quotes
_UNQUOTABLE = re.compile(rf'{CONTROL.pattern}|[|"$`\\]')


def resolve_inside(kernel_dir: Path, entry: str, key: str) -> Path:
    """Resolve a path of build.toml, which need not exist; `key` names it there.

    Raises UnsafeError, FindingsError.
    """
    pure, windows = PurePosixPath(entry), PureWindowsPath(entry)
    if pure.is_absolute() or windows.drive or windows.root:
        raise _escape(f"{key} names the absolute path {entry!r}")
    if not entry or _UNQUOTABLE.search(entry):
        raise kernel_error(
            "KCI506", f"{key} names the path {entry!r}, which cannot be written into a build file"
        )
    root = kernel_dir.resolve()
    real = (root / entry).resolve()
    if not real.is_relative_to(root):
        raise _escape(f"{key} names {entry!r}, which leads out of the kernel's directory")
    return real


def kernel_error(
    rule: str, message: str, path: str = BUILD_TOML, kind: type[KciError] = FindingsError
) -> KciError:
    """Make the error of a rule about the kernel's files."""
    diagnostic = finding(rule, message, path, hint=rules()[rule].fix)
    return kind(message, hint=diagnostic.hint, diagnostics=[diagnostic])


def _escape(message: str, path: str = BUILD_TOML) -> KciError:
    return kernel_error("KCI503", message, path, UnsafeError)


def package_files(request: Request, *, compiled: bool) -> dict[str, Path]:
    """Map package files to real files: `pyext` if compiled, else all.

    Raises FindingsError or UnsafeError.
    """
    relative, root = package_path(request.build), request.kernel_dir.resolve()
    name = python_name(request.build.name)
    package = request.kernel_dir / relative
    if not package.is_dir():
        raise kernel_error("KCI504", f"the Python package {relative}/ does not exist", relative)
    if not package.resolve().is_relative_to(root):
        raise _escape(
            f"the Python package {relative} leads out of the kernel's directory", relative
        )
    if not (package / "__init__.py").is_file():
        raise kernel_error("KCI504", f"the Python package {relative}/ has no __init__.py", relative)
    if os.path.lexists(package / name):
        raise kernel_error(
            "KCI505",
            f"the Python package {relative}/ has an entry {name!r} inside",
            f"{relative}/{name}",
        )
    return {
        inside: real
        for path, real in _walk(package, package, root)
        if is_installed(
            inside := path.relative_to(package).as_posix(), request.build, compiled=compiled
        )
    }


def write_package(into: Path, files: Mapping[str, Path], ops: str, visible: VisibleFiles) -> None:
    """Copy files without modes, which depend on the checkout, then write the generated `_ops.py`.

    Raises as `copy`.
    """
    into.mkdir(parents=True, exist_ok=True)
    for name, real in files.items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        visible.copy(real, target)
        target.chmod(0o644)
    generated = into / "_ops.py"
    generated.write_text(ops, encoding="utf-8")
    generated.chmod(0o644)


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
            raise _escape(f"{shown} is neither a file nor a directory", shown)


def _linked_file(path: Path, root: Path, shown: str) -> Path:
    # links to directories can be endless, and the loader has none
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise kernel_error("KCI501", f"{shown} is a link to nothing", shown) from error
    if not real.is_relative_to(root):
        raise _escape(f"{shown} is a link that leads out of the kernel's directory", shown)
    if not real.is_file():
        raise _escape(f"{shown} is a link to something other than a file", shown)
    return real


_TREE = "tree"
"""Folder of copies in the repository's layout: `..` reaches declared inputs."""


class VisibleFiles:
    """The files that one build may read, as they were when its fingerprint was taken."""

    def __init__(self, request: Request, *, everything: bool = False) -> None:
        """Hash the files, or take the digests that the fingerprint has.

        Raises FindingsError if one is unreadable.
        """
        self.inputs = request.files()
        self.variant = request.variant
        self._files = self.inputs.everything() if everything else self.inputs.of(self.variant)
        self._digests = {real: self.inputs.tree.digest(real) for _, real in self._files if real}

    def copy(self, real: Path, target: Path) -> None:
        """Copy a file, with its time.

        Raises BuildFailedError (KCI511) if it has changed, and OSError.
        """
        name = os.path.relpath(os.path.realpath(real), self.inputs.tree.root)
        try:
            shutil.copy2(real, target)
        except FileNotFoundError:
            if real.exists():
                raise
            raise self._changed(name) from None
        if file_digest(target) != self._digests.get(name):
            raise self._changed(name)

    def lay_out(self, work: Path) -> None:
        """Copy the files into a work directory; an edit after that is in no object.

        Raises as `copy`.
        """
        tree, root = work / _TREE, Path(self.inputs.tree.root)
        shutil.rmtree(tree, ignore_errors=True)
        (tree / self.inputs.kernel).mkdir(parents=True)
        places = {place: real for path, real in self._files if real for place in (path, real)}
        for place, real in places.items():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            self.copy(root / real, tree / place)
        kernel = work / KERNEL
        kernel.unlink(missing_ok=True)
        kernel.symlink_to(Path(_TREE, self.inputs.kernel))

    def require_unchanged(self) -> None:
        """Raise BuildFailedError (KCI511) if a file is another one now, for a builder that reads in
        place.
        """
        now = SourceTree(Path(self.inputs.tree.root))
        for real, digest in sorted(self._digests.items()):
            if now.file(real) is None or now.digest(real) != digest:
                raise self._changed(real)

    def _changed(self, real: str) -> KciError:
        return kernel_error(
            "KCI511",
            f"{self.inputs.shown(real)} changed while {self.variant.name} was built from it",
            self.inputs.shown(real),
            BuildFailedError,
        )


REGISTRATION_H = """\
// Generated by kci. What a kernel's binding file needs to register its operators.
#pragma once

#include <Python.h>

// The name of the extension arrives as a macro (TORCH_EXTENSION_NAME). Torch's own macros paste
// their arguments, so these wrappers let the preprocessor expand the name first.
#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) STABLE_TORCH_LIBRARY(NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) \\
  STABLE_TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)

#define KCI_PASTE_(LEFT, RIGHT) LEFT##RIGHT
#define KCI_PASTE(LEFT, RIGHT) KCI_PASTE_(LEFT, RIGHT)
#define KCI_TEXT_(NAME) #NAME
#define KCI_TEXT(NAME) KCI_TEXT_(NAME)

// Importing the library is all it takes to register the operators (static initialisers do it);
// Python asks for an init function on top, which makes an empty module.
#define REGISTER_EXTENSION(NAME)                                    \\
  PyMODINIT_FUNC KCI_PASTE(PyInit_, NAME)(void) {                   \\
    static struct PyModuleDef definition = {                        \\
        PyModuleDef_HEAD_INIT, KCI_TEXT(NAME), nullptr, 0, nullptr, \\
        nullptr, nullptr, nullptr, nullptr};                        \\
    return PyModule_Create(&definition);                            \\
  }
"""

EXPORTS_MAP = """\
# Generated by kci. Inline functions of the C++ library that were compiled into this module stay
# inside: exported, they could replace those of another library in the same process, or be replaced.
{
  local:
    _ZNSt*;
    _ZNKSt*;
    _ZSt*;
    _ZTh*_NSt*;
    _ZTv*_NSt*;
    _ZN9__gnu_cxx*;
    _ZNK9__gnu_cxx*;
};
"""

STUB_CPP = (
    "// Generated by kci. An empty library; see the comment on `stub_library` in kci's native "
    "builder.\n"
)

COMPILED_OPS = '''\
"""Generated by kci: the operators of this kernel."""

import torch

from . import {id}  # noqa: F401  - importing the library registers its operators

ops = torch.ops.{id}


def add_op_namespace_prefix(op_name: str) -> str:
    """The full name of one of this kernel's operators."""
    return f"{id}::{{op_name}}"
'''

TVM_FFI_OPS = '''\
"""Generated by kci: the functions of this kernel."""

import platform
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import tvm_ffi

_ENDING = {{"Darwin": "dylib", "Windows": "dll"}}.get(platform.system(), "so")

ops = tvm_ffi.load_module(Path(__file__).parent / f"{id}.{{_ENDING}}")

has_torch = find_spec("torch")
has_jax = find_spec("jax") and find_spec("jax_tvm_ffi")


def torch_add_op_namespace_prefix(op_name: str) -> str:
    """The full name of one of this kernel's operators for torch."""
    return f"{id}::{{op_name}}"


def jax_add_ffi_target_name_prefix(name: str) -> str:
    """The full name of one of this kernel's functions for JAX."""
    return f"{id}.{{name}}"


def jax_register_ffi_target(name, *args, **kwargs):
    """Register a function with JAX, if JAX is there."""
    if has_jax:
        register = import_module("jax_tvm_ffi").register_ffi_target
        return register(jax_add_ffi_target_name_prefix(name), *args, **kwargs)
    return None


def jax_ffi_call(name, *args, **kwargs):
    """Call a function by way of JAX."""
    if not has_jax:
        raise RuntimeError("jax or jax_tvm_ffi is not installed")
    return import_module("jax.ffi").ffi_call(jax_add_ffi_target_name_prefix(name), *args, **kwargs)
'''

_NOARCH_OPS = '''\
"""Generated by kci: the operator namespace of this kernel."""

import torch


def _backend() -> str:
{probes}    return "{host}"


_NAMESPACE = f"_{python_name}_{{_backend()}}_{unique}"

ops = getattr(torch.ops, _NAMESPACE)


def add_op_namespace_prefix(op_name: str) -> str:
    """The full name of one of this kernel's operators."""
    return f"{{_NAMESPACE}}::{{op_name}}"
'''


def noarch_ops(kernel_name: str, backend: str, kernel_id: str) -> str:
    """Generate `_ops.py` for a noarch variant, which detects the backend on import."""
    require_id(kernel_id)
    unique = kernel_id.removeprefix(f"_{python_name(kernel_name)}_{backend}_")
    probed = ((name, facts.probe) for name, facts in BACKENDS.items() if facts.probe)
    probes = "".join(f'    if {probe}:\n        return "{name}"\n' for name, probe in probed)
    return _NOARCH_OPS.format(
        python_name=python_name(kernel_name), unique=unique, probes=probes, host=HOST
    )


def require_id(kernel_id: str) -> None:
    """Raise BuildFailedError for an id that is not safe in generated code."""
    if not (kernel_id.isascii() and kernel_id.isidentifier()):
        raise BuildFailedError(
            f"{kernel_id!r} is not a kernel id",
            "an id has ASCII letters, digits and underscores only",
        )
