"""`SHA256SUMS` and the in-toto subjects beside the manifest: every file of a tree with its hash, for other programs.

`sha256sum -c SHA256SUMS` checks a tree without kci; GitHub's attestation action takes the same file as its subjects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kci.files.bounded_json import read_bounded
from kci.files.walk import is_bytecode
from kci.tree.digest import SIGNATURE, file_hash, file_hashes

SUMS_NAME = "SHA256SUMS"
SUBJECTS_NAME = "kci-subjects.json"
_HASH = re.compile("[0-9a-f]{64}")


def encode_sums(hashes: Mapping[str, str]) -> bytes:
    """The form of coreutils' sha256sum, sorted by name.

    Args:
        hashes: path inside the tree to hex sha256.
    """
    lines = []
    for name in sorted(hashes):
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{'' if escaped == name else chr(92)}{hashes[name]}  {escaped}\n")
    return "".join(lines).encode()


def encode_subjects(hashes: Mapping[str, str]) -> bytes:
    """The files as subjects of an in-toto statement, sorted by name."""
    subjects = [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)]
    return msgspec.json.format(msgspec.json.encode(subjects), indent=2) + b"\n"


def read_sums(tree: Path) -> dict[str, str]:
    """What a tree's `SHA256SUMS` says; empty where there is none, or it is not in the form of sha256sum."""
    try:
        lines = read_bounded(tree / SUMS_NAME).decode().split("\n")
    except (OSError, ValueError):
        return {}
    found = {}
    for line in lines:
        digest, separator, name = line.partition("  ")
        if separator and _HASH.fullmatch(
            digest
        ):  # an escaped name has a backslash before the digest: no variant may hold such a file
            found[name] = digest
    return found


def tree_hashes(variants: Mapping[str, Mapping[str, str]], others: Mapping[str, Path]) -> dict[str, str]:
    """Every file of a tree by its path in it.

    Args:
        variants: the files of each variant, hashed already.
        others: what else is at the top, by name.

    Raises:
        FindingsError: a file cannot be read.
    """
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
