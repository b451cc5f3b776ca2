"""The digest of a variant directory: which files it has, and their hashes (docs/format.md#digest)."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from kci.errors import FindingsError
from kci.utils.bounded_json import require_plain
from kci.utils.walk import is_bytecode, walk

Algorithm = Literal["sha256", "sha512"]

SIGNATURE = "metadata.json.sigstore"
"""The signature is not part of the digest."""

_EXCLUDED = ("metadata.json", SIGNATURE)
"""Excluded only at the variant's root: they hold the digest and its signature."""


class Digest(msgspec.Struct, frozen=True):
    """The record of a variant's files in `metadata.json`: path to base64 of the raw hash, sorted by path."""

    algorithm: Algorithm
    files: dict[str, str]


class Violation(msgspec.Struct, frozen=True):
    """A difference between a digest and its directory."""

    path: str
    """The file's path; empty for the whole directory."""
    message: str

    def __str__(self) -> str:
        return self.message


def file_hashes(variant_dir: Path, algorithm: Algorithm = "sha256") -> dict[str, str]:
    """Map the name of every file to its hex hash, metadata and bytecode included.

    Links to files are followed, links to directories skipped. Raises FindingsError: a file cannot be read.
    """
    return {
        found.name: file_hash(found.path, algorithm)
        for found in walk(variant_dir)
        # pathlib's is_dir raises for a link that cannot be followed.
        if found.regular or (found.link and not os.path.isdir(found.path))  # noqa: PTH112
    }


def directory_digest(hashes: Mapping[str, str]) -> str:
    """Hash a variant directory, given its `file_hashes`: equal hex digests mean equal names and contents.

    Metadata counts. Times, modes, bytecode and signatures do not.
    """
    total = hashlib.sha256()
    for name in sorted(hashes):
        if not is_bytecode(name) and name != SIGNATURE:
            total.update(f"{hashes[name]}  {name}\0".encode())
    return total.hexdigest()


def digest_of(hashes: Mapping[str, str], algorithm: Algorithm = "sha256") -> Digest:
    """Make the digest from hashes, without bytecode and, at the root only, metadata and signature."""
    covered = (
        name
        for name in sorted(hashes)
        if not (name in _EXCLUDED or name.endswith(".pyc") or "__pycache__" in name.split("/"))
    )
    return Digest(algorithm, {name: base64.b64encode(bytes.fromhex(hashes[name])).decode() for name in covered})


def file_hash(path: Path, algorithm: Algorithm = "sha256") -> str:
    """Return the hex hash of a file."""
    try:
        require_plain(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise FindingsError(f"cannot read {path}: {error.strerror}") from error


def validate(expected: Digest, actual: Digest) -> list[Violation]:
    """List the differences in the reference's order: algorithm, expected paths, unknown files."""
    if expected.algorithm != actual.algorithm:
        return [Violation("", f"the digest uses {expected.algorithm}, not {actual.algorithm}")]
    found = []
    for path in sorted(expected.files):
        got = actual.files.get(path)
        if got is None:
            found.append(Violation(path, f"{path} is missing"))
        elif got != expected.files[path]:
            found.append(Violation(path, f"{path} changed after it was hashed"))
    unknown = sorted(set(actual.files) - set(expected.files))
    return found + [Violation(path, f"{path} is not in the digest") for path in unknown]


def validate_dir(variant_dir: Path, expected: Digest, hashes: Mapping[str, str] | None = None) -> list[Violation]:
    """Compare a directory, or its `file_hashes`, with a digest, by the digest's algorithm."""
    if hashes is None or expected.algorithm != "sha256":
        hashes = file_hashes(variant_dir, expected.algorithm)
    return validate(expected, digest_of(hashes, expected.algorithm))
