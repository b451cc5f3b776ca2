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

from kci.diagnostics import printable
from kci.errors import FindingsError, rule_error
from kci.files.bounded_json import read_bounded
from kci.files.replace import write_atomic
from kci.files.walk import is_bytecode
from kci.tree.artifacts import is_variant_dir
from kci.tree.digest import SIGNATURE, file_hash, file_hashes
from kci.tree.dsse import (
    STATEMENT_TYPE,
    Signers,
    SigningContext,
    Statement,
    StatementSubject,
    claimed_statement,
    open_statement,
    sign_statement,
)
from kci.tree.manifest import read_manifest
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.sigstore_bundles import open_bundle, run_signer
from kci.version import HOME

ATTESTATION_NAME = "kci-attestation.dsse.json"
PREDICATE_TYPE = f"{HOME}/attestations/v1"
BUNDLE_NAME = "kci-attestation.sigstore.json"
_SLSA = "https://slsa.dev/provenance/"
_SIGNATURES = (ATTESTATION_NAME, BUNDLE_NAME)


def signed_files(tree: Path) -> dict[str, str]:
    """The files that an attestation of a tree is about: all but signatures."""
    return {name: digest for name, digest in file_hashes(tree).items() if is_signed(name)}


def is_signed(name: str) -> bool:
    """Whether an attestation of a tree is about a file, by its name in the tree."""
    parts = name.split("/")
    signature = len(parts) == 2 and parts[1] == SIGNATURE
    return name not in _SIGNATURES and not is_bytecode(name) and not signature


def tree_statement(tree: Path, context: SigningContext, evidence: Mapping[str, str] | None = None) -> Statement:
    """What is signed of a tree; `evidence` is what it was held to where it is signed again.

    Raises FindingsError: the tree has no manifest, or cannot be read.
    """
    manifest = read_manifest(tree)
    if manifest is None:
        raise rule_error("KCI611", f"{tree} has no manifest", hint="merge it with kci first", path=str(tree))
    predicate = (
        msgspec.structs.asdict(context)
        | {
            "kernel": manifest.kernel,
            "version": manifest.version,
            "complete": manifest.complete,
            "variants": {
                entry.variant: {"digest": entry.digest, "commit": entry.origin.commit} for entry in manifest.present
            },
        }
        | ({"evidence": dict(evidence)} if evidence else {})
    )
    return _statement(signed_files(tree), predicate)


def sign_tree(tree: Path, key: Path, context: SigningContext) -> Path:
    """Write a tree's attestation."""
    path = tree / ATTESTATION_NAME
    write_atomic(path, sign_statement(tree_statement(tree, context), key))
    return path


def sign_tree_as_run(
    tree: Path, context: SigningContext, trust: Path | None = None, evidence: Mapping[str, str] | None = None
) -> list[Path]:
    """Sign every variant's metadata and the whole tree with the identity of the CI run that this is.

    `metadata.json.sigstore` is for today's loader; the bundle over the whole tree binds what that does not.
    Every signature is checked as a reader would check it, and nothing is written unless all of them are good.
    Returns the files that were written.
    """
    statement = tree_statement(tree, context, evidence)
    bundles = {}
    with run_signer(trust) as signer:
        for variant in sorted(path for path in tree.iterdir() if is_variant_dir(path)):
            data = (variant / METADATA_NAME).read_bytes()
            bundles[variant / SIGNATURE] = signer.sign_artifact(data)
        bundles[tree / BUNDLE_NAME] = signer.sign_statement(statement)
    for path, bundle in bundles.items():
        write_atomic(path, bundle)
    return list(bundles)


def evidence_of(tree: Path) -> str:
    """What a tree was held to when it was signed again, by the bundle at its top; empty if that says nothing."""
    try:
        found = claimed_statement(read_bounded(tree / BUNDLE_NAME)).predicate.get("evidence")
    except (OSError, ValueError):
        return ""
    said = sorted(found.items()) if isinstance(found, dict) else []
    return ", ".join(f"{name} {printable(str(value), ' ')[:200]}" for name, value in said)


def sign_artifact(artifact: Path, key: Path, context: SigningContext) -> Path:
    """Write the attestation of an artifact beside it."""
    statement = _statement({artifact.name: file_hash(artifact)}, msgspec.structs.asdict(context))
    path = artifact_attestation(artifact)
    write_atomic(path, sign_statement(statement, key))
    return path


def artifact_attestation(artifact: Path) -> Path:
    """Where the attestation of an artifact lies."""
    return artifact.with_name(f"{artifact.name}.dsse.json")


def opened(data: bytes, signers: Signers, context: SigningContext, *, with_key: bool) -> Statement:
    """The statement of an attestation that one of the keys has signed, or else one of the context's workflows.

    Raises ValueError: it is no attestation, or no allowed signer has signed it.
    """
    return open_statement(data, signers.keys) if with_key else open_bundle(data, context, signers.trust)


def github_bundle(artifact: Path) -> Path:
    """Where the bundle of GitHub's attest action is looked for."""
    return artifact.with_name(f"{artifact.name}.sigstore.json")


def check_artifact(artifact: Path, signers: Signers, context: SigningContext) -> None:
    """Refuse an artifact without an attestation beside it that names what `context` asks for (KCI616)."""
    where = str(artifact)
    own, bundle = artifact_attestation(artifact), github_bundle(artifact)
    path = bundle if bundle.exists() and not own.exists() else own
    try:
        data = read_bounded(path)
        statement = opened(data, signers, context, with_key=path == own)
    except FileNotFoundError:
        hint = f"`kci sign` makes {own.name} beside it; the bundle of actions/attest is called {bundle.name}"
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
    """Repository, workflow and commit as a statement names them: kci's own form, or GitHub's provenance."""
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


def tree_differences(
    tree: Path, statement: Statement, context: SigningContext, files: Mapping[str, str] | None = None
) -> list[str]:
    """What lies in a tree, or is asked for, and a statement says otherwise.

    `files` are the digests of its files where they lie elsewhere; the tree then has its manifest.
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
    there = signed_files(tree) if files is None else files
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


def read_public_key(text: str, root: Path = Path()) -> str:
    """A public key as it may be named: a file relative to `root`, or the key itself."""
    if text.startswith(("ssh-", "-----BEGIN")):
        return text
    try:
        return (root / text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FindingsError(f"cannot read the public key {text}: {error}") from error
