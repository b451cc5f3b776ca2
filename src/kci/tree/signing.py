"""Attestations of trees and artifacts: what was signed, and that it is what lies here.

One attestation speaks of a whole tree: every file under its path, so that a variant cannot be shown under another
name, and the kernel, version, repository and commits, so that it cannot be shown as another kernel's. It lies at the
tree's top, outside of everything that was hashed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import FindingsError, rule_error
from kci.files.replace import write_atomic
from kci.files.walk import is_bytecode
from kci.tree.digest import SIGNATURE, file_hash, file_hashes
from kci.tree.dsse import (
    STATEMENT_TYPE,
    SigningKey,
    Statement,
    StatementSubject,
    sign_statement,
)
from kci.tree.manifest import read_manifest

ATTESTATION_NAME = "kci-attestation.dsse.json"
PREDICATE_TYPE = "https://github.com/kci/build/attestations/v1"
BUNDLE_NAME = "kci-attestation.sigstore.json"
_SIGNATURES = (ATTESTATION_NAME, BUNDLE_NAME)


class SigningContext(msgspec.Struct, frozen=True):
    """What a signer says of where the files come from, and a verifier asks for. Empty: not said, not asked."""

    repository: str = ""
    commit: str = ""
    workflow: str = ""

    def disagreements(self, predicate: Mapping[str, Any]) -> list[str]:
        """What a predicate says otherwise."""
        return [
            f"it is about the {name} {str(predicate.get(name, ''))[:100]!r}, not {wanted!r}"
            for name, wanted in msgspec.structs.asdict(self).items()
            if wanted and predicate.get(name) != wanted
        ]


class Signers(msgspec.Struct, frozen=True):
    """Who may sign: holders of a key, or workflows of the repository that a context names."""

    keys: tuple[str, ...] = ()
    """Public keys."""
    trust: Path | None = None
    """The trust configuration of a Sigstore of one's own; None for the public one."""


def signed_files(tree: Path) -> dict[str, str]:
    """The files that an attestation of a tree is about: all but signatures.

    Raises:
        FindingsError: a file cannot be read.
    """
    found = {}
    for name, digest in file_hashes(tree).items():
        parts = name.split("/")
        signature = len(parts) == 2 and parts[1] == SIGNATURE
        if name not in _SIGNATURES and not is_bytecode(name) and not signature:
            found[name] = digest
    return found


def tree_statement(tree: Path, context: SigningContext) -> Statement:
    """What is signed of a tree.

    Raises:
        FindingsError: the tree has no manifest, or cannot be read.
    """
    manifest = read_manifest(tree)
    if manifest is None:
        raise rule_error("KCI611", f"{tree} has no manifest", hint="merge it with kci first", path=str(tree))
    predicate = msgspec.structs.asdict(context) | {
        "kernel": manifest.kernel,
        "version": manifest.version,
        "complete": manifest.complete,
        "variants": {
            entry.variant: {"digest": entry.digest, "commit": entry.origin.commit} for entry in manifest.present
        },
    }
    return _statement(signed_files(tree), predicate)


def sign_tree(tree: Path, key: SigningKey, context: SigningContext) -> Path:
    """Write a tree's attestation.

    Raises:
        FindingsError, UsageError, MissingToolError: see `tree_statement` and `sign_statement`.
    """
    path = tree / ATTESTATION_NAME
    write_atomic(path, sign_statement(tree_statement(tree, context), key))
    return path


def sign_artifact(artifact: Path, key: SigningKey, context: SigningContext) -> Path:
    """Write the attestation of an artifact beside it.

    Raises:
        FindingsError, UsageError, MissingToolError: it cannot be read or signed.
    """
    statement = _statement({artifact.name: file_hash(artifact)}, msgspec.structs.asdict(context))
    path = artifact_attestation(artifact)
    write_atomic(path, sign_statement(statement, key))
    return path


def artifact_attestation(artifact: Path) -> Path:
    """Where the attestation of an artifact lies."""
    return artifact.with_name(f"{artifact.name}.dsse.json")


def tree_differences(tree: Path, statement: Statement, context: SigningContext) -> list[str]:
    """What lies in a tree, or is asked for, and a statement says otherwise.

    Raises:
        FindingsError: a file cannot be read.
    """
    manifest = read_manifest(tree)
    predicate = statement.predicate
    found = context.disagreements(predicate)
    said = (predicate.get("kernel"), predicate.get("version"))
    if manifest is not None and said != (manifest.kernel, manifest.version):
        found.append(
            f"it is about {said[0]} version {said[1]}, the tree is {manifest.kernel} version {manifest.version}"
        )
    signed = {item.name: item.digest.get("sha256") for item in statement.subject}
    there = signed_files(tree)
    for name in sorted(signed.keys() | there.keys()):
        if name not in there:
            found.append(f"{name} was signed and is not there")
        elif name not in signed:
            found.append(f"{name} is there and was not signed")
        elif signed[name] != there[name]:
            found.append(f"{name} is not the file that was signed")
    return found


def _statement(files: Mapping[str, str], predicate: dict[str, Any]) -> Statement:
    subjects = tuple(StatementSubject(name, {"sha256": files[name]}) for name in sorted(files))
    return Statement(STATEMENT_TYPE, subjects, PREDICATE_TYPE, predicate)


def read_public_key(text: str) -> str:
    """A public key as it may be named: a file, or the key itself.

    Raises:
        FindingsError: the file cannot be read.
    """
    if text.startswith(("ssh-", "ecdsa-", "sk-", "-----BEGIN")):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FindingsError(f"cannot read the public key {text}: {error}") from error
