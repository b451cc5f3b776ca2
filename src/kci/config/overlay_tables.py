"""The tables of an overlay: what is different about the catalog for a repository, or for one of its kernels."""

from __future__ import annotations

from kci.config.model import Table
from kci.config.values import Backend, Version


class RowTable(Table, frozen=True):
    """A `[[row]]`: one torch and backend, at several compute versions and systems."""

    torch: Version
    backend: Backend
    systems: tuple[str, ...]
    compute: tuple[Version, ...] = ()
    bundled: bool = True
    tvm_ffi: Version | None = None


class ChangeTable(Table, frozen=True):
    """A `[[change]]`: what is different about the rows that an expression chooses."""

    where: str
    bundled: bool | None = None
    tvm_ffi: Version | None = None


class OverlayTable(Table, frozen=True):
    """What is different about the catalog: for a repository, or for one of its kernels."""

    replace: bool = False
    """Start from an empty table, so that only the rows given here exist."""
    keep: tuple[str, ...] = ()
    """Expressions; a row stays only if it matches every one."""
    drop: tuple[str, ...] = ()
    """Expressions; a row goes if it matches one."""
    change: tuple[ChangeTable, ...] = ()
    row: tuple[RowTable, ...] = ()
    """Rows to add; one that the table has already takes its place there."""


class KernelOverlay(OverlayTable, frozen=True):
    """An `[[overlay]]` of kci.toml."""

    kernel: str | None = None
    """The name of a kernel; without it, every kernel."""


class OverlayFile(OverlayTable, frozen=True):
    """An overlay in a separate file."""

    edition: str | None = None
    """The edition that it changes; the default edition without it."""
