"""A variant's digest, kernel id and source commit (docs/format.md#kernel-id,
docs/format.md#digest).
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from kci.config.discovery import find_root
from kci.config.values import python_name
from kci.errors import FindingsError, MissingToolError
from kci.utils.bounded_json import require_plain
from kci.utils.frozen import Frozen
from kci.utils.git import changed_paths, run_git
from kci.utils.walk import is_bytecode, is_own, walk

Algorithm = Literal["sha256", "sha512"]

SIGNATURE = "metadata.json.sigstore"

_EXCLUDED = ("metadata.json", SIGNATURE)
"""Excluded at the variant's root only."""


class Digest(Frozen):
    """Files of a variant in `metadata.json`: path to base64 hash, sorted by path."""

    algorithm: Algorithm
    files: dict[str, str]


def file_hashes(variant_dir: Path, algorithm: Algorithm = "sha256") -> dict[str, str]:
    """Map every file name to its hex hash.

    Links to directories are skipped. Raises FindingsError if unreadable.
    """
    return {
        entry.name: file_hash(entry.path, algorithm)
        for entry in walk(variant_dir)
        # pathlib's is_dir raises for a broken link
        if entry.regular or (entry.link and not os.path.isdir(entry.path))  # noqa: PTH112
    }


def directory_digest(hashes: Mapping[str, str]) -> str:
    """Hash `file_hashes` with metadata; times, modes, bytecode and signatures do not count."""
    total = hashlib.sha256()
    for name in sorted(hashes):
        if not is_bytecode(name) and name != SIGNATURE:
            total.update(f"{hashes[name]}  {name}\0".encode())
    return total.hexdigest()


def make_digest(hashes: Mapping[str, str], algorithm: Algorithm = "sha256") -> Digest:
    """Make the metadata's digest from `file_hashes`."""
    files = {
        name: base64.b64encode(bytes.fromhex(hashes[name])).decode()
        for name in sorted(hashes)
        if not (name in _EXCLUDED or name.endswith(".pyc") or "__pycache__" in name.split("/"))
    }
    return Digest(algorithm, files)


def file_hash(path: Path, algorithm: Algorithm = "sha256") -> str:
    """Hash a file, in hex."""
    try:
        require_plain(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise FindingsError(f"cannot read {path}: {error.strerror}") from error


def differences(
    expected: Mapping[str, str], actual: Mapping[str, str], missing: str, changed: str, unknown: str
) -> list[tuple[str, str]]:
    """The names whose hashes differ, each with a message: the expected ones, and then others."""
    found = []
    for name in (*sorted(expected), *sorted(actual.keys() - expected.keys())):
        if expected.get(name) != actual.get(name):
            what = unknown if name not in expected else changed if name in actual else missing
            found.append((name, f"{name} {what}"))
    return found


def validate(expected: Digest, actual: Digest) -> list[tuple[str, str]]:
    """The differences of two digests of one algorithm, in the reference's order."""
    words = ("is missing", "changed after it was hashed", "is not in the digest")
    return differences(expected.files, actual.files, *words)


def validate_dir(
    variant_dir: Path, expected: Digest, hashes: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Compare a directory, whose `file_hashes` by sha256 are known, with a digest."""
    if expected.algorithm != "sha256":
        hashes = file_hashes(variant_dir, expected.algorithm)
    return validate(expected, make_digest(hashes, expected.algorithm))


Commit = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
"""A full commit id."""


class GitState(Frozen):
    """The commit of a source, and True if tracked files differ from it."""

    commit: Commit
    dirty: bool


def unique_id(kernel_dir: Path) -> str:
    """The part of a kernel id that identifies the source: 7 digits of HEAD's root tree, and
    `_dirty`.

    Outside git it is a hash of the files, without hidden ones, bytecode and build outputs, where
    the reference draws random bits. Raises FindingsError if unreadable.
    """
    tree = _git(kernel_dir, "rev-parse", "--verify", "--quiet", "HEAD^{tree}")
    if tree:
        return tree[:7] + ("_dirty" if _dirty(kernel_dir) else "")
    total = hashlib.sha256()
    for entry in walk(kernel_dir):
        if is_own(entry.name) and (entry.regular or entry.link):
            content = file_hash(entry.path) if entry.regular else f"-> {entry.path.readlink()}"
            total.update(f"{entry.name}\0{content}\0".encode())
    return base64.b32encode(total.digest()[:8]).decode().rstrip("=").lower()


def kernel_id(name: str, backend: str, unique: str) -> str:
    """Make a kernel id: `_gated_norm_rocm_1a2b3c4`."""
    return f"_{python_name(name)}_{backend}_{unique}"


def provenance(kernel_dir: Path) -> GitState | None:
    """The commit of a kernel's source; None outside git."""
    commit = _git(kernel_dir, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return GitState(commit, _dirty(kernel_dir, submodules="untracked")) if commit else None


def commit_time(kernel_dir: Path) -> int | None:
    """Commit time in seconds since 1970; None outside git."""
    output = _git(
        kernel_dir, "show", "--no-patch", "--no-show-signature", "--format=%ct", "HEAD", "--"
    )
    return int(output) if output.isdecimal() else None


def is_ancestor(directory: Path, first: str, second: str) -> bool:
    """True if `first` is an ancestor of `second`; False if either is unknown."""
    base = _git(directory, "merge-base", "--end-of-options", first, second)
    return base == first != second


def _dirty(kernel_dir: Path, submodules: str = "all") -> bool:
    # `submodules`: the id ignores all changes in them, as the reference does; provenance only
    # untracked files
    return bool(changed_paths(find_root(kernel_dir)[0], "HEAD", submodules=submodules))


def _git(directory: Path, *arguments: str) -> str:
    # empty without git, repository or object; a refusal of git must not silently change the id
    try:
        return (run_git(directory, *arguments) or b"").decode("utf-8", "replace").strip()
    except MissingToolError:
        return ""
