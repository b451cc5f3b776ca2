"""The digest of a variant directory: which files it has, and their hashes (docs/format.md#digest)."""

from __future__ import annotations

import base64
import enum
import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from kci.errors import FindingsError
from kci.files.walk import Entry, is_bytecode, walk

Algorithm = Literal["sha256", "sha512"]

_EXCLUDED = ("metadata.json", "metadata.json.sigstore")
"""Not hashed, and only where they lie at the variant's root: they hold the digest and its signature."""


class Digest(msgspec.Struct, frozen=True):
    """What `metadata.json` says about a variant's files: path to base64 of the raw hash, sorted by path."""

    algorithm: Algorithm
    files: dict[str, str]


class Deviation(enum.StrEnum):
    """How a directory can differ from its digest."""

    ALGORITHM = "algorithm"
    MISMATCH = "mismatch"
    MISSING = "missing"
    UNKNOWN = "unknown"


class Violation(msgspec.Struct, frozen=True):
    """One difference between a digest and the directory it stands for."""

    kind: Deviation
    path: str = ""
    expected: str = ""
    got: str = ""

    def __str__(self) -> str:
        match self.kind:
            case Deviation.ALGORITHM:
                return f"the digest uses {self.expected}, not {self.got}"
            case Deviation.MISMATCH:
                return f"{self.path} changed after it was hashed"
            case Deviation.MISSING:
                return f"{self.path} is missing"
            case _:
                return f"{self.path} is not in the digest"


def compute(variant_dir: Path, algorithm: Algorithm = "sha256") -> Digest:
    """Hash every file of a variant directory that the digest covers.

    Links to files are read through; bytecode and, at the root only, the metadata file and its signature are left out.

    Raises:
        FindingsError: a file cannot be read.
    """
    return Digest(algorithm, {found.name: _hash(found, algorithm) for found in _covered(variant_dir)})


def _covered(variant_dir: Path) -> list[Entry]:
    return [
        found
        for found in walk(variant_dir)
        if found.name not in _EXCLUDED
        and (found.regular or found.link)
        and not (found.name.endswith(".pyc") or "__pycache__" in found.name.split("/"))
        and not (found.link and found.path.is_dir())
    ]


def _hash(found: Entry, algorithm: Algorithm) -> str:
    return base64.b64encode(bytes.fromhex(_hex(found, algorithm))).decode()


def _hex(found: Entry, algorithm: Algorithm) -> str:
    try:
        with found.path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise FindingsError(f"cannot read {found.path}: {error.strerror}") from error


def validate(expected: Digest, actual: Digest) -> list[Violation]:
    """The differences, in the reference's order: algorithm, then each expected path, then unknown files.

    Args:
        expected: what the metadata says.
        actual: what the directory holds.
    """
    if expected.algorithm != actual.algorithm:
        return [Violation(Deviation.ALGORITHM, "", expected.algorithm, actual.algorithm)]
    found = []
    for path in sorted(expected.files):
        got = actual.files.get(path)
        if got is None:
            found.append(Violation(Deviation.MISSING, path, expected.files[path]))
        elif got != expected.files[path]:
            found.append(Violation(Deviation.MISMATCH, path, expected.files[path], got))
    unknown = sorted(set(actual.files) - set(expected.files))
    return found + [Violation(Deviation.UNKNOWN, path, "", actual.files[path]) for path in unknown]


def validate_dir(variant_dir: Path, expected: Digest) -> list[Violation]:
    """Hash a directory with the digest's own algorithm and compare.

    Raises:
        FindingsError: a file cannot be read.
    """
    return validate(expected, compute(variant_dir, expected.algorithm))


def variant_digest(variant_dir: Path) -> str:
    """One hex sha256 for a whole variant directory, metadata included: equal digests mean equal files.

    Names and contents count; times, modes and the directory's own name do not. Bytecode does not travel and does not
    count.

    Raises:
        FindingsError: a file cannot be read.
    """
    total = hashlib.sha256()
    for found in walk(variant_dir):
        if found.regular and not is_bytecode(found.name):
            total.update(f"{_hex(found, 'sha256')}  {found.name}\0".encode())
    return total.hexdigest()
