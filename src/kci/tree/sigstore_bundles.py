"""Sigstore bundles: signing with the identity of a CI run, and checking who that was, offline.

Where there is an identity, `metadata.json.sigstore` is written for today's loader, and beside it one bundle over the
whole tree, which binds what the loader's signature does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import FindingsError, MissingToolError
from kci.files.replace import write_atomic
from kci.tree.artifacts import is_variant_dir
from kci.tree.digest import SIGNATURE
from kci.tree.dsse import PAYLOAD_TYPE, Statement, read_statement
from kci.tree.metadata import FILE_NAME
from kci.tree.signing import BUNDLE_NAME, SigningContext, tree_statement

_GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
_GITHUB = "https://github.com/"


def sign_tree_as_run(tree: Path, context: SigningContext) -> list[Path]:
    """Sign every variant's metadata and the whole tree with the identity of the CI run that this is.

    Returns:
        The files that were written.

    Raises:
        MissingToolError: there is no identity here, or no sigstore package.
        FindingsError: the service refuses, or the tree cannot be read.
    """
    statement = tree_statement(tree, context)
    written = []
    with _signer() as signer:
        for variant in sorted(path for path in tree.iterdir() if is_variant_dir(path)):
            bundle = _asked(lambda variant=variant: signer.sign_artifact((variant / FILE_NAME).read_bytes()))
            written.append(variant / SIGNATURE)
            write_atomic(written[-1], bundle)
        written.append(tree / BUNDLE_NAME)
        write_atomic(written[-1], _asked(lambda: signer.sign_dsse(_sigstore_statement(statement))))
    return written


def open_bundle(data: bytes, repository: str, workflow: str) -> Statement:
    """The statement of a bundle that a workflow of a repository has signed. Nothing is asked of the network.

    Args:
        data: the JSON of the bundle.
        repository: `owner/name` on GitHub; it has to be named, for every repository can have an identity.
        workflow: the workflow as GitHub names it; empty for any of the repository.

    Raises:
        ValueError: it is no bundle with a statement, or was signed by somebody else.
        MissingToolError: there is no sigstore package.
    """
    if not repository:
        raise ValueError("no repository is named whose workflows may sign")
    kind, payload = _verified(data, repository, workflow)
    if kind != PAYLOAD_TYPE:
        raise ValueError(f"its payload is {kind[:60]!r}, not an in-toto statement")
    return read_statement(payload)


def _verified(data: bytes, repository: str, workflow: str) -> tuple[str, bytes]:
    try:
        from sigstore.errors import Error  # noqa: PLC0415  - an extra, and slow
        from sigstore.models import Bundle  # noqa: PLC0415
        from sigstore.verify import Verifier, policy  # noqa: PLC0415
    except ImportError as error:
        raise MissingToolError("the sigstore package is not installed", hint="pip install 'kci[sign]'") from error
    wanted: list[Any] = [policy.OIDCIssuerV2(_GITHUB_ISSUER), policy.OIDCSourceRepositoryURI(_GITHUB + repository)]
    if workflow:
        wanted.append(policy.OIDCBuildSignerURI(_GITHUB + workflow))
    try:
        bundle = Bundle.from_json(data)
        return Verifier.production(offline=True).verify_dsse(bundle, policy.AllOf(wanted))
    except (Error, ValueError, TypeError) as error:
        raise ValueError(str(error)[:300] or type(error).__name__) from error


@contextmanager
def _signer() -> Iterator[Any]:
    try:
        from sigstore.models import ClientTrustConfig  # noqa: PLC0415  - an extra, and slow
        from sigstore.oidc import IdentityToken, detect_credential  # noqa: PLC0415
        from sigstore.sign import SigningContext as Service  # noqa: PLC0415
    except ImportError as error:
        raise MissingToolError("the sigstore package is not installed", hint="pip install 'kci[sign]'") from error
    token = _asked_raw(detect_credential)
    if token is None:
        hint = "in GitHub Actions give the job `id-token: write`; elsewhere sign with --key"
        raise MissingToolError("there is no identity to sign with here", hint=hint)
    service = _asked_raw(lambda: Service.from_trust_config(ClientTrustConfig.production()))
    with service.signer(IdentityToken(token)) as signer:
        yield signer


def _sigstore_statement(statement: Statement) -> Any:
    from sigstore.dsse import Statement as Payload  # noqa: PLC0415  - an extra, and slow

    return Payload(msgspec.json.encode(statement))


def _asked(sign: Any) -> bytes:
    text: str = _asked_raw(sign).to_json()
    return text.encode()


def _asked_raw(ask: Any) -> Any:
    """What a service of Sigstore answers; it fails in the ways of several libraries."""
    try:
        return ask()
    except Exception as error:
        raise FindingsError(f"Sigstore does not sign: {type(error).__name__} {error}".rstrip()[:500]) from error
