"""Expected against present: which variants a tree lacks, and which it has that nothing asks for any more."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kci.errors import UsageError
from kci.matrix.names import parse_variant_name
from kci.matrix.variants import KernelMatrix


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
    present = variants_in(tree) or variants_in(tree / "build")
    expected = {variant.name for variant in kernel.variants}
    return Coverage(
        kernel.name,
        tuple(sorted(expected & present)),
        tuple(sorted(expected - present)),
        tuple(sorted(present - expected)),
    )


def variants_in(tree: Path) -> set[str]:
    """The variant directories that a loader would consider: parseable names with a metadata.json."""
    if not tree.is_dir():
        return set()
    return {entry.name for entry in tree.iterdir() if _is_variant(entry)}


def _is_variant(directory: Path) -> bool:
    try:
        parse_variant_name(directory.name)
    except ValueError:
        return False
    return (directory / "metadata.json").is_file()
