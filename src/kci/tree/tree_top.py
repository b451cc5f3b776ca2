"""What a tree holds at its top besides variants, and whether a directory is one at all (docs/format.md#tree)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kci.files.walk import Entry, is_bytecode, walk
from kci.tree import manifest as manifests
from kci.tree.artifacts import is_variant_dir
from kci.tree.checksums import FORMS
from kci.tree.findings import tree_error
from kci.tree.pack import untransportable
from kci.tree.signing import ATTESTATION_NAME, BUNDLE_NAME

CARD = "CARD.md"
"""What becomes the front page of the kernel's repository."""

KEPT_AT_TOP = (
    CARD, "benchmarks", manifests.FILE_NAME, *FORMS, ATTESTATION_NAME, BUNDLE_NAME,
)  # fmt: skip
"""What a tree holds at its top besides variants (docs/format.md#tree)."""


def require_tree(target: Path) -> None:
    """Refuse to replace a directory that holds anything but a tree, or something that could lead out of it.

    Raises:
        FindingsError: KCI610.
    """
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise tree_error("KCI610", f"{target} is not a directory", hint="name another one", path=str(target))
    for entry in sorted(target.iterdir()):
        if entry.name not in KEPT_AT_TOP and not is_variant_dir(entry):
            message = f"{target} is not a tree: it holds {entry.name!r}"
            raise tree_error("KCI610", message, hint="merge into an empty or new directory", path=str(target))
    for item, _, reason in untransportable(files_at_top(target)):
        message = f"{target} cannot be added to: {item.name!r}: {reason}"
        raise tree_error("KCI610", message, hint="remove it, or merge into an empty or new directory", path=str(target))


def files_at_top(tree: Path) -> Iterator[Entry]:
    """Every file of what a tree holds besides variants, bytecode left out.

    Raises:
        FindingsError: a directory cannot be read.
    """
    for entry in sorted(tree.iterdir()):
        if entry.name not in KEPT_AT_TOP:
            continue
        if entry.is_dir() and not entry.is_symlink():
            below = (msgspec.structs.replace(item, name=f"{entry.name}/{item.name}") for item in walk(entry))
            yield from (item for item in below if not is_bytecode(item.name))
        else:
            yield Entry(entry.name, entry, entry.is_file(), entry.is_symlink())
