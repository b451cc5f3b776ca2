"""Whether an artifact has an attestation that counts: a signature with a key that may sign, or GitHub's own bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kci.errors import rule_error
from kci.files.bounded_json import read_bounded
from kci.tree.digest import file_hash
from kci.tree.dsse import Statement, open_statement
from kci.tree.signing import Signers, SigningContext, artifact_attestation
from kci.tree.sigstore_bundles import open_bundle

_SLSA = "https://slsa.dev/provenance/"


def github_bundle(artifact: Path) -> Path:
    """Where the bundle of GitHub's attest action is looked for."""
    return artifact.with_name(f"{artifact.name}.sigstore.json")


def check_artifact(artifact: Path, signers: Signers, context: SigningContext) -> None:
    """Refuse an artifact without an attestation that names what is asked for.

    Args:
        artifact: the file; its attestation lies beside it.
        signers: who may sign.
        context: the repository, workflow and commit that have to be named.

    Raises:
        FindingsError: there is none, nobody who may has signed it, or it is about something else.
    """
    where = str(artifact)
    own, bundle = artifact_attestation(artifact), github_bundle(artifact)
    path = bundle if bundle.exists() and not own.exists() else own
    try:
        data = read_bounded(path)
        statement = open_statement(data, signers.keys) if path == own else open_bundle(data, context, signers.trust)
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
