"""Attestations of trees and artifacts.

An attestation covers every file of a tree by its path, so that no variant can pass as another, and the kernel, version,
repository and commits. It lies at the tree's top, outside of the hashed files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import rule_error
from kci.tree.artifacts import is_variant_dir
from kci.tree.identity import SIGNATURE, file_hash, file_hashes
from kci.tree.manifest import read_manifest
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.sigstore import STATEMENT_TYPE, SigningContext, Statement, StatementSubject, open_bundle, run_signer
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import read_bounded
from kci.utils.walk import is_bytecode
from kci.version import HOME

PREDICATE_TYPE = f"{HOME}/attestations/v1"
BUNDLE_NAME = "kci-attestation.sigstore.json"
_SLSA = "https://slsa.dev/provenance/"


def signed_files(tree: Path) -> dict[str, str]:
    """Hashes of the files that a tree's attestation covers: all but signatures."""
    return {name: digest for name, digest in file_hashes(tree).items() if _is_signed(name)}


def _is_signed(name: str) -> bool:
    parts = name.split("/")
    signature = len(parts) == 2 and parts[1] == SIGNATURE
    return name != BUNDLE_NAME and not is_bytecode(name) and not signature


def tree_statement(tree: Path, context: SigningContext) -> Statement:
    """Make the statement to sign. Raises FindingsError: the tree has no manifest, or cannot be read."""
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


def sign_tree(tree: Path, context: SigningContext, trust: Path | None = None) -> list[Path]:
    """Sign each variant's metadata and the whole tree with the CI run's identity, and return the written files.

    `metadata.json.sigstore` is for the loader. Nothing is written unless every signature verifies.
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


def check_artifact(artifact: Path, trust: Path | None, context: SigningContext) -> None:
    """Refuse an artifact without an attestation that names what `context` asks for (KCI616)."""
    where = str(artifact)
    path = artifact.with_name(f"{artifact.name}.sigstore.json")
    try:
        statement = open_bundle(read_bounded(path), context, trust)
    except FileNotFoundError:
        hint = f"actions/attest makes one; put its bundle beside the artifact, as {path.name}"
        raise rule_error("KCI616", f"{artifact} has no attestation", hint=hint, path=where) from None
    except OSError as error:
        raise rule_error("KCI616", f"cannot read {path}: {error.strerror}", path=where) from error
    except ValueError as error:
        raise rule_error("KCI616", f"the attestation of {artifact} does not count: {error}", path=where) from error
    wrong = context.disagreements(_said(statement))
    digests = {item.name: item.digest.get("sha256") for item in statement.subject}
    if digests.get(artifact.name) != file_hash(artifact):
        wrong.append("it is about other bytes, or another name")
    if wrong:
        raise rule_error("KCI616", f"the attestation of {artifact} is not about it: {wrong[0]}", path=where)


def _said(statement: Statement) -> Mapping[str, Any]:
    """A statement has kci's form, or GitHub's provenance."""
    if not statement.predicate_type.startswith(_SLSA):
        return statement.predicate
    definition = _table(statement.predicate, "buildDefinition")
    workflow = _table(_table(definition, "externalParameters"), "workflow")
    repository = str(workflow.get("repository", "")).removeprefix("https://github.com/")
    dependencies = definition.get("resolvedDependencies")
    first = dependencies[0] if isinstance(dependencies, list) and dependencies else {}
    digest = _table(first, "digest") if isinstance(first, dict) else {}
    return {
        "repository": repository,
        "workflow": f"{repository}/{workflow.get('path', '')}@{workflow.get('ref', '')}",
        "commit": digest.get("gitCommit", ""),
    }


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def tree_differences(tree: Path, statement: Statement, context: SigningContext) -> list[str]:
    """List the differences of a statement from the tree and from the context."""
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
