"""`SHA256SUMS` and the in-toto subjects beside the manifest: the files of a tree with their hashes, for other programs.

The card is not among them: it may be written after the merge. `sha256sum -c SHA256SUMS` checks a tree without kci;
GitHub's attestation action takes the same file as its subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from kci.files.bounded_json import decode_json
from kci.files.walk import is_bytecode
from kci.tree.digest import SIGNATURE, file_hash, file_hashes
from kci.tree.dsse import StatementSubject
from kci.tree.manifest import FILE_NAME

SUMS_NAME = "SHA256SUMS"
SUBJECTS_NAME = "kci-subjects.json"
_HASH = re.compile("[0-9a-f]{64}")


SUMMED_AT_TOP = (FILE_NAME, "benchmarks")
"""What at a tree's top has a checksum, besides the variants."""


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


def decode_sums(data: bytes) -> dict[str, str]:
    """What `encode_sums` was given. Names that it escapes are refused: no variant may hold such a file.

    Raises:
        ValueError: it is not in that form.
    """
    pairs = [line.partition("  ")[::2] for line in data.decode().split("\n")[:-1]]
    found = {name: digest for digest, name in pairs if _HASH.fullmatch(digest)}
    return _canonical(found, encode_sums, data)


def decode_subjects(data: bytes) -> dict[str, str]:
    """What `encode_subjects` was given.

    Raises:
        ValueError: it is not in that form.
    """
    subjects = decode_json(data, list[StatementSubject])
    return _canonical({item.name: item.digest.get("sha256", "") for item in subjects}, encode_subjects, data)


def _canonical(found: dict[str, str], encode: Callable[[Mapping[str, str]], bytes], data: bytes) -> dict[str, str]:
    if encode(found) != data:
        raise ValueError("a line of it is in another form, out of order, or there twice")
    return found


class SumsForm(NamedTuple):
    """One of the files: how it is written, and how it is read."""

    encode: Callable[[Mapping[str, str]], bytes]
    decode: Callable[[bytes], dict[str, str]]


FORMS = {SUMS_NAME: SumsForm(encode_sums, decode_sums), SUBJECTS_NAME: SumsForm(encode_subjects, decode_subjects)}


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
