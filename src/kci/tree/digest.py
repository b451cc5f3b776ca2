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
"""What signing adds; it changes nothing that was digested."""

_EXCLUDED = ("metadata.json", SIGNATURE)
"""Not hashed, and only where they lie at the variant's root: they hold the digest and its signature."""


class Digest(msgspec.Struct, frozen=True):
    """What `metadata.json` says about a variant's files: path to base64 of the raw hash, sorted by path."""

    algorithm: Algorithm
    files: dict[str, str]


class Violation(msgspec.Struct, frozen=True):
    """One difference between a digest and the directory it stands for."""

    path: str
    """Of the file; empty for the whole directory."""
    message: str

    def __str__(self) -> str:
        return self.message


def file_hashes(variant_dir: Path, algorithm: Algorithm = "sha256") -> dict[str, str]:
    """Name to hex hash of every file, metadata and bytecode included. One reading serves all that is asked of it.

    Links to files are read through; links to directories are passed over.

    Raises FindingsError: a file cannot be read, or a link leads nowhere.
    """
    return {
        found.name: file_hash(found.path, algorithm)
        for found in walk(variant_dir)
        # pathlib's is_dir raises for a link that cannot be followed.
        if found.regular or (found.link and not os.path.isdir(found.path))  # noqa: PTH112
    }


def directory_digest(hashes: Mapping[str, str]) -> str:
    """One hex sha256 for a whole variant directory, metadata included: equal digests mean equal files.

    Names and contents count; times, modes and the directory's own name do not. Bytecode does not travel and does not
    count, and a signature is added when everything else is done.

    Args:
        hashes: what `file_hashes` says of it.
    """
    total = hashlib.sha256()
    for name in sorted(hashes):
        if not is_bytecode(name) and name != SIGNATURE:
            total.update(f"{hashes[name]}  {name}\0".encode())
    return total.hexdigest()


def digest_of(hashes: Mapping[str, str], algorithm: Algorithm = "sha256") -> Digest:
    """The digest of files with these hashes: bytecode and, at the root only, metadata and signature are left out."""
    covered = (
        name
        for name in sorted(hashes)
        if not (name in _EXCLUDED or name.endswith(".pyc") or "__pycache__" in name.split("/"))
    )
    return Digest(algorithm, {name: base64.b64encode(bytes.fromhex(hashes[name])).decode() for name in covered})


def file_hash(path: Path, algorithm: Algorithm = "sha256") -> str:
    """The hex hash of one file."""
    try:
        require_plain(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise FindingsError(f"cannot read {path}: {error.strerror}") from error


def validate(expected: Digest, actual: Digest) -> list[Violation]:
    """The differences, in the reference's order: algorithm, then each expected path, then unknown files."""
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
    """Compare a directory, or what `file_hashes` says of it, with a digest, by its algorithm."""
    if hashes is None or expected.algorithm != "sha256":
        hashes = file_hashes(variant_dir, expected.algorithm)
    return validate(expected, digest_of(hashes, expected.algorithm))
