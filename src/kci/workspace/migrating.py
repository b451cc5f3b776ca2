"""The migrations of the kernels of a workspace: what each needs for an edition of the catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from kci.catalog.overlay import for_kernel
from kci.catalog.rows import Catalog
from kci.config.document import read_bytes
from kci.config.model import Torch
from kci.config.reader import BUILD_TOML, Kernel, shown_file
from kci.inputs.include_scan import READ_AT_MOST, scan
from kci.matrix.migrations import Migration, plan_migrations
from kci.workspace.workspace import Workspace

_STABLE = ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/")
_FULL = ("torch/", "ATen/", "c10/", "caffe2/", "pybind11/")


class KernelMigrations(msgspec.Struct, frozen=True):
    """What one kernel needs."""

    kernel: str
    directory: str
    migrations: tuple[Migration, ...]


def migrations_of(workspace: Workspace, after: Catalog, only: Collection[str] = ()) -> list[KernelMigrations]:
    """The kernels that need something for an edition of the catalog, in the workspace's order.

    The edition is another one, or the one in force for what is overdue; overlays hold for it too. `only` names the
    migrations to consider; empty for all.
    """
    found = []
    for kernel in workspace.kernels:
        name, shown = kernel.build.name, shown_file(kernel.directory)
        needed = plan_migrations(
            read_bytes(Path(kernel.directory) / BUILD_TOML, shown),
            for_kernel(workspace.catalog, workspace.overlays, name),
            for_kernel(after, workspace.overlays, name),
            directory=kernel.directory,
            shown_as=shown,
            stable_sources=isinstance(kernel.build.torch, Torch) and only_stable(_included(kernel)),
            only=only,
        )
        if needed:
            found.append(KernelMigrations(name, kernel.directory, tuple(needed)))
    return found


def only_stable(included: Iterable[str | None]) -> bool:
    """Whether of torch nothing but the headers of the stable ABI is included, and some are; None is an unread name."""
    names = set(included)
    if None in names or not any(name and name.startswith(_STABLE) for name in names):
        return False
    return not any(name and name.startswith(_FULL) and not name.startswith(_STABLE) for name in names)


def _included(kernel: Kernel) -> Iterator[str | None]:
    torch = kernel.build.torch
    sources = [*(torch.src if torch else ()), *(path for part in kernel.build.kernel.values() for path in part.src)]
    for source in dict.fromkeys(sources):
        try:
            with (Path(kernel.directory) / source).open("rb") as file:
                read = scan(file.read(READ_AT_MOST + 1))
        except (OSError, ValueError):  # ValueError: a NUL in the name
            yield None
            continue
        yield from read.names
        if read.macros:
            yield None
