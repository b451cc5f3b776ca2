"""What a variant depends on: Python packages, other kernels, and the loader (docs/format.md#dependencies)."""

from __future__ import annotations

from collections.abc import Sequence

from kci.catalog.floors import floors
from kci.config.depends_table import PythonPackage, depends_table
from kci.config.model import Build, KernelDependency
from kci.config.values import Backend
from kci.errors import FindingsError
from kci.tree.findings import tree_error

_RESOLVED = (Backend.CUDA, Backend.TPU, Backend.XPU)
"""Backends whose `python-depends` reach the metadata. `general.neuron.python-depends` is read and then ignored."""


def python_depends(build: Build, backend: str) -> tuple[str, ...]:
    """The names for a variant's metadata: the general ones, then the backend's own.

    Every backend's list is checked, declared or not, because the reference resolves all of them.

    Raises:
        FindingsError: a name is not in the curated table that it was looked up in.
    """
    table = depends_table()
    general = build.general.python_depends or ()
    _require(general, table.general, "general.python-depends")
    by_backend: dict[str, tuple[str, ...]] = {}
    for name in _RESOLVED:
        part = getattr(build.general, name.value)
        names = (part.python_depends or ()) if part is not None else ()
        _require(names, table.backends.get(name.value, {}), f"general.{name.value}.python-depends")
        by_backend[name.value] = names
    return general + by_backend.get(backend, ())


def unrecorded_depends(backend: str) -> tuple[str, ...]:
    """The names that a kernel may depend on for a backend, and that no metadata can say: every one may be declared."""
    return () if backend in _RESOLVED else tuple(sorted(depends_table().backends.get(backend, ())))


def _require(names: tuple[str, ...], known: dict[str, PythonPackage], key: str) -> None:
    for name in names:
        if name not in known:
            raise _unknown(name, known, key)


def _unknown(name: str, known: dict[str, PythonPackage], key: str) -> FindingsError:
    choice = f"it can hold {', '.join(sorted(known))}" if known else "this backend has no curated names"
    return tree_error(
        "KCI601",
        f"{key} names {name!r}, which the loader does not know",
        hint=f"{choice}; no other package can be a dependency",
        path="build.toml",
    )


def kernel_depends(build: Build, backend: str) -> tuple[KernelDependency, ...]:
    """The kernels that a variant depends on: the general ones, then the backend's own (cuda, neuron, xpu)."""
    part = getattr(build.general, backend, None) if backend in ("cuda", "neuron", "xpu") else None
    own = (part.kernel_depends or ()) if part is not None else ()
    return (build.general.kernel_depends or ()) + own


def kernels_minver(kernel_depends: Sequence[KernelDependency], upstreams: int) -> str:
    """The oldest release of the `kernels` library that can load a variant (docs/format.md#later).

    Args:
        kernel_depends: the kernels that the variant depends on.
        upstreams: how many upstreams its metadata names.
    """
    oldest = floors().kernels
    if upstreams > 1:
        return oldest.several_upstreams
    return oldest.kernel_depends if kernel_depends else oldest.any
