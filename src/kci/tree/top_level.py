"""Files at a tree's top: checksums of all files, and the attestation (docs/format.md#tree).

CARD.md has no checksum, because one that no kernel has may be written after the merge; the manifest
has the digest of a kernel's own. The attestation binds every path, so that no variant passes as
another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kci.config.sources.card import CARD
from kci.errors import rule_error
from kci.tree.artifacts import is_variant_dir
from kci.tree.identity import SIGNATURE, differences, file_hash, file_hashes
from kci.tree.manifest import FILE_NAME, read_manifest
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.pack import unpackable_entries
from kci.tree.sigstore import (
    STATEMENT_TYPE,
    SigningContext,
    Statement,
    StatementSubject,
    run_signer,
)
from kci.utils.atomic import write_atomic
from kci.utils.walk import Entry, is_bytecode, walk_packed
from kci.version import HOME

SUMS_NAME = "SHA256SUMS"
_HASH = re.compile("[0-9a-f]{64}")


def encode_sums(hashes: Mapping[str, str]) -> bytes:
    """Encode hex sha256 by path, as `sha256sum --check` reads it."""
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)).encode()


def decode_sums(data: bytes) -> dict[str, str]:
    """Decode `encode_sums`. Raises ValueError."""
    pairs = [line.partition("  ")[::2] for line in data.decode().split("\n")[:-1]]
    hashes = {name: digest for digest, name in pairs if _HASH.fullmatch(digest)}
    if encode_sums(hashes) != data:
        raise ValueError("a line of it is in another form, out of order, or there twice")
    return hashes


def tree_hashes(variants: Mapping[str, str], tree: Path) -> dict[str, str]:
    """Map every path of a tree that has a checksum to its hash; those in variants are known."""
    hashes = {**variants}
    for item in files_at_top(tree):
        if item.regular and item.name.partition("/")[0] in ("benchmarks", FILE_NAME):
            hashes[item.name] = file_hash(item.path)
    return _without_signatures(hashes)


def _without_signatures(hashes: Mapping[str, str]) -> dict[str, str]:
    return {
        name: digest
        for name, digest in hashes.items()
        if name != BUNDLE_NAME and not is_bytecode(name) and name.partition("/")[2] != SIGNATURE
    }


BUNDLE_NAME = "kci-attestation.sigstore.json"

TOP_ENTRIES = (CARD, "benchmarks", FILE_NAME, SUMS_NAME, BUNDLE_NAME)
"""Entries besides variants (docs/format.md#tree)."""


def require_tree(target: Path) -> None:
    """Raise FindingsError (KCI610) unless a directory is a tree that may be replaced."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise rule_error("KCI610", f"{target} is not a directory", target, hint="name another one")
    for entry in sorted(target.iterdir()):
        if entry.name not in TOP_ENTRIES and not is_variant_dir(entry):
            raise rule_error(
                "KCI610",
                f"{target} is not a tree: it holds {entry.name!r}",
                target,
                hint="merge into an empty or new directory",
            )
    for item, _, reason in unpackable_entries(files_at_top(target)):
        raise rule_error(
            "KCI610",
            f"{target} cannot be added to: {item.name!r}: {reason}",
            target,
            hint="remove it, or merge into an empty or new directory",
        )


def files_at_top(tree: Path) -> Iterator[Entry]:
    """Yield files outside of variants, without bytecode."""
    for entry in sorted(tree.iterdir()):
        if entry.name not in TOP_ENTRIES:
            continue
        if entry.is_dir() and not entry.is_symlink():
            for item in walk_packed(entry):
                yield msgspec.structs.replace(item, name=f"{entry.name}/{item.name}")
        else:
            yield Entry(entry.name, entry, entry.is_file(), entry.is_symlink())


PREDICATE_TYPE = f"{HOME}/attestations/v1"


def tree_statement(tree: Path, context: SigningContext) -> Statement:
    """Make the statement to sign. Raises FindingsError for an unreadable tree."""
    manifest = read_manifest(tree)
    if not manifest:
        raise rule_error("KCI611", f"{tree} has no manifest", tree, hint="merge it with kci first")
    predicate = msgspec.structs.asdict(context) | {
        "kernel": manifest.kernel,
        "version": manifest.version,
        "complete": manifest.complete,
        "variants": {
            entry.variant: {"digest": entry.digest, "commit": entry.origin.commit}
            for entry in manifest.present
        },
    }
    subjects = tuple(
        StatementSubject(name, {"sha256": digest})
        for name, digest in sorted(_without_signatures(file_hashes(tree)).items())
    )
    return Statement(STATEMENT_TYPE, subjects, PREDICATE_TYPE, predicate)


def sign_tree(tree: Path, context: SigningContext, trust: Path | None) -> list[Path]:
    """Sign each variant's metadata (for the loader) and the tree; return the written files, or
    write nothing.
    """
    statement = tree_statement(tree, context)
    bundles = {}
    with run_signer(trust) as signer:
        for variant in sorted(path for path in tree.iterdir() if is_variant_dir(path)):
            data = (variant / METADATA_NAME).read_bytes()
            bundles[variant / SIGNATURE] = signer.sign_artifact(data)
        bundles[tree / BUNDLE_NAME] = signer.sign_statement(statement)
    for path, bundle in bundles.items():
        write_atomic(path, bundle)
    return list(bundles)


def tree_differences(tree: Path, statement: Statement, context: SigningContext) -> list[str]:
    """List the statement's differences from the tree and the context."""
    manifest = read_manifest(tree)
    predicate = statement.predicate
    found = [
        f"it is about the {name} {str(predicate.get(name, ''))[:100]!r}, not {expected!r}"
        for name, expected in msgspec.structs.asdict(context).items()
        if expected and predicate.get(name) != expected
    ]
    claimed = (predicate.get("kernel"), predicate.get("version"))
    if manifest and claimed != (manifest.kernel, manifest.version):
        found.append(
            f"it is about {claimed[0]} version {claimed[1]}, the tree is {manifest.kernel} "
            f"version {manifest.version}"
        )
    signed = {item.name: item.digest.get("sha256", "") for item in statement.subject}
    words = (
        "was signed and is not there",
        "is not the file that was signed",
        "is there and was not signed",
    )
    there = _without_signatures(file_hashes(tree))
    return found + [message for _, message in differences(signed, there, *words)]
