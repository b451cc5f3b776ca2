"""The entries of a tree besides its variants, and the checksums of all files (docs/format.md#tree).

`sha256sum -c SHA256SUMS` checks a tree without kci, and GitHub's attestation action reads it. The card has no checksum:
it may be written after the merge.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kci.errors import rule_error
from kci.tree import manifest as manifests
from kci.tree.artifacts import is_variant_dir
from kci.tree.identity import SIGNATURE, file_hash, file_hashes
from kci.tree.manifest import FILE_NAME
from kci.tree.pack import unpackable_entries
from kci.tree.signing import BUNDLE_NAME
from kci.utils.walk import Entry, is_bytecode, walk

SUMS_NAME = "SHA256SUMS"
_HASH = re.compile("[0-9a-f]{64}")


SUMMED_AT_TOP = (FILE_NAME, "benchmarks")
"""Entries at the top that have checksums, besides variants."""


def encode_sums(hashes: Mapping[str, str]) -> bytes:
    """Encode hex sha256 by path in the form of coreutils' sha256sum, sorted."""
    lines = []
    for name in sorted(hashes):
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{'' if escaped == name else chr(92)}{hashes[name]}  {escaped}\n")
    return "".join(lines).encode()


def decode_sums(data: bytes) -> dict[str, str]:
    """Inverse of `encode_sums`. Raises ValueError: another form, or an escaped name, which no variant may hold."""
    pairs = [line.partition("  ")[::2] for line in data.decode().split("\n")[:-1]]
    found = {name: digest for digest, name in pairs if _HASH.fullmatch(digest)}
    if encode_sums(found) != data:
        raise ValueError("a line of it is in another form, out of order, or there twice")
    return found


def tree_hashes(variants: Mapping[str, Mapping[str, str]], others: Mapping[str, Path]) -> dict[str, str]:
    """Hash every file of a tree, by path: variants are hashed already, others are read."""
    found = {
        f"{variant}/{name}": digest
        for variant, files in variants.items()
        for name, digest in files.items()
        if name != SIGNATURE
    }
    for name, path in others.items():
        if path.is_dir():
            found |= {f"{name}/{inner}": digest for inner, digest in file_hashes(path).items()}
        else:
            found[name] = file_hash(path)
    return {name: digest for name, digest in found.items() if not is_bytecode(name)}


CARD = "CARD.md"
"""The front page of the kernel's repository."""

KEPT_AT_TOP = (
    CARD, "benchmarks", manifests.FILE_NAME, SUMS_NAME, BUNDLE_NAME,
)  # fmt: skip
"""Entries at a tree's top besides variants (docs/format.md#tree)."""


def require_tree(target: Path) -> None:
    """Raise FindingsError (KCI610) unless a directory is a tree that is safe to replace."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise rule_error("KCI610", f"{target} is not a directory", hint="name another one", path=str(target))
    for entry in sorted(target.iterdir()):
        if entry.name not in KEPT_AT_TOP and not is_variant_dir(entry):
            message = f"{target} is not a tree: it holds {entry.name!r}"
            raise rule_error("KCI610", message, hint="merge into an empty or new directory", path=str(target))
    for item, _, reason in unpackable_entries(files_at_top(target)):
        message = f"{target} cannot be added to: {item.name!r}: {reason}"
        raise rule_error("KCI610", message, hint="remove it, or merge into an empty or new directory", path=str(target))


def files_at_top(tree: Path) -> Iterator[Entry]:
    """Yield the files of a tree outside of variants, without bytecode."""
    for entry in sorted(tree.iterdir()):
        if entry.name not in KEPT_AT_TOP:
            continue
        if entry.is_dir() and not entry.is_symlink():
            below = (msgspec.structs.replace(item, name=f"{entry.name}/{item.name}") for item in walk(entry))
            yield from (item for item in below if not is_bytecode(item.name))
        else:
            yield Entry(entry.name, entry, entry.is_file(), entry.is_symlink())
