"""Expected against present: which variants a tree lacks, and which it has that nothing asks for any more."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kci.errors import KciError, UsageError
from kci.matrix.names import parse_variant_name
from kci.matrix.variants import KernelMatrix
from kci.tree.leg_record import read_sealed


class Coverage(msgspec.Struct, frozen=True):
    """A kernel's matrix held against a tree; names are sorted."""

    kernel: str
    present: tuple[str, ...]
    missing: tuple[str, ...]
    """In the matrix, and not in the tree: users with that toolchain find nothing to load."""
    other: tuple[str, ...]
    """In the tree, and not in the matrix: left from an older supported range, and harmless to a loader."""


def coverage(kernel: KernelMatrix, tree: Path) -> Coverage:
    """Hold a kernel's matrix against a tree.

    Args:
        kernel: what is expected.
        tree: a merged tree, or a kernel directory with one in `build/`.

    Raises:
        UsageError: there is no such directory.
    """
    if not tree.is_dir():
        raise UsageError(f"{tree}: there is no such directory", hint="name a merged tree")
    present = variants_in(tree, kernel) or variants_in(tree / "build", kernel)
    expected = {variant.name for variant in kernel.variants}
    return Coverage(
        kernel.name,
        tuple(sorted(expected & present)),
        tuple(sorted(expected - present)),
        tuple(sorted(present - expected)),
    )


def variants_in(tree: Path, kernel: KernelMatrix) -> set[str]:
    """The variants of a kernel that a loader can use: whole, sealed, of this name and version, and no links."""
    if not tree.is_dir():
        return set()
    return {entry.name for entry in tree.iterdir() if _is_whole(entry, kernel)}


def _is_whole(directory: Path, kernel: KernelMatrix) -> bool:
    try:
        parse_variant_name(directory.name)
    except ValueError:
        return False
    if directory.is_symlink() or not directory.is_dir():
        return False
    try:
        metadata = read_sealed(directory).metadata
    except KciError:
        return False
    return (metadata.name, metadata.version) == (kernel.name, kernel.version)
