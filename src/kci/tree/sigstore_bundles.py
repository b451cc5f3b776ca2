"""Sigstore bundles: signing with the identity of a CI run, and checking who that was, offline.

Where there is an identity, `metadata.json.sigstore` is written for today's loader, and beside it one bundle over the
whole tree, which binds what the loader's signature does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import FindingsError, MissingToolError
from kci.files.bounded_json import read_bounded
from kci.files.replace import write_atomic
from kci.tree.artifacts import is_variant_dir
from kci.tree.digest import SIGNATURE
from kci.tree.dsse import PAYLOAD_TYPE, Statement, read_statement
from kci.tree.metadata import FILE_NAME
from kci.tree.signing import BUNDLE_NAME, SigningContext, tree_statement

_GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
_GITHUB = "https://github.com/"


def sign_tree_as_run(tree: Path, context: SigningContext, trust: Path | None = None) -> list[Path]:
    """Sign every variant's metadata and the whole tree with the identity of the CI run that this is.

    Every signature is checked as a reader would check it, and nothing is written unless all of them are good.

    Args:
        tree: the merged tree.
        context: what to say of where it comes from.
        trust: the trust configuration of a Sigstore of one's own; None for the public one.

    Returns:
        The files that were written.

    Raises:
        MissingToolError: there is no identity here, or no sigstore package.
        FindingsError: the service refuses, what it answers does not verify, or the tree cannot be read.
    """
    statement = tree_statement(tree, context)
    bundles = {}
    with _signer(trust) as signer:
        for variant in sorted(path for path in tree.iterdir() if is_variant_dir(path)):
            data = (variant / FILE_NAME).read_bytes()
            bundles[variant / SIGNATURE] = _asked(lambda data=data: signer.sign_artifact(data))
        bundles[tree / BUNDLE_NAME] = _asked(lambda: signer.sign_dsse(_sigstore_statement(statement)))
    for path, bundle in bundles.items():
        write_atomic(path, bundle)
    return list(bundles)


def open_bundle(data: bytes, context: SigningContext, trust: Path | None = None) -> Statement:
    """The statement of a bundle that a workflow of a repository has signed. Nothing is asked of the network.

    Args:
        data: the JSON of the bundle.
        context: the repository, which has to be named, for every repository can have an identity; and its workflow,
            empty for any.
        trust: the trust configuration of a Sigstore of one's own; None for the public one.

    Raises:
        ValueError: it is no bundle with a statement, or was signed by somebody else.
        FindingsError: the trust configuration cannot be read.
        MissingToolError: there is no sigstore package.
    """
    if not context.repository:
        raise ValueError("no repository is named whose workflows may sign")
    kind, payload = _verified(data, context, trust)
    if kind != PAYLOAD_TYPE:
        raise ValueError(f"its payload is {kind[:60]!r}, not an in-toto statement")
    return read_statement(payload)


def _verified(data: bytes, context: SigningContext, trust: Path | None) -> tuple[str, bytes]:
    try:
        from sigstore.errors import Error
        from sigstore.models import Bundle
        from sigstore.verify import Verifier, policy
    except ImportError as error:
        raise MissingToolError("the sigstore package is not installed", hint="pip install 'kci[sign]'") from error
    issuer = policy.OIDCIssuerV2(_GITHUB_ISSUER)
    wanted: list[Any] = [issuer, policy.OIDCSourceRepositoryURI(_GITHUB + context.repository)]
    if context.workflow:
        wanted.append(policy.OIDCBuildSignerURI(_GITHUB + context.workflow))
    own = _trust_config(trust) if trust else None
    try:
        verifier = Verifier(trusted_root=own.trusted_root) if own else Verifier.production(offline=True)
        return verifier.verify_dsse(Bundle.from_json(data), policy.AllOf(wanted))
    except (Error, ValueError, TypeError) as error:
        raise ValueError(str(error)[:300] or type(error).__name__) from error


def _trust_config(path: Path) -> Any:
    """Which Sigstore signs, and what it is trusted by, as its own tools take it with `--trust-config`."""
    from sigstore.models import ClientTrustConfig

    try:
        config = ClientTrustConfig.from_json(read_bounded(path).decode())
        config.trusted_root.get_fulcio_certs()
    except Exception as error:  # of several libraries
        message = f"{path} is no trust configuration of a Sigstore: {error}".splitlines()[0][:300]
        raise FindingsError(message, hint="`trust-config` in [signing] of kci.toml") from error
    return config


@contextmanager
def _signer(trust: Path | None) -> Iterator[Any]:
    try:
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, detect_credential
        from sigstore.sign import SigningContext as Service
        from sigstore.verify import Verifier
    except ImportError as error:
        raise MissingToolError("the sigstore package is not installed", hint="pip install 'kci[sign]'") from error
    token = _asked_raw(detect_credential)
    if token is None:
        hint = "in GitHub Actions give the job `id-token: write`; elsewhere sign with --key"
        raise MissingToolError("there is no identity to sign with here", hint=hint)
    config = _trust_config(trust) if trust else _asked_raw(ClientTrustConfig.production)
    service = _asked_raw(lambda: Service.from_trust_config(config))
    with ExitStack() as stack:  # entering asks for the certificate
        signer = _asked_raw(lambda: stack.enter_context(service.signer(IdentityToken(token))))
        yield _CheckedSigner(signer, Verifier(trusted_root=config.trusted_root))


class _CheckedSigner:
    """Sigstore's signer, which does not look at what its transparency log answers."""

    def __init__(self, signer: Any, verifier: Any) -> None:
        self.signer, self.verifier = signer, verifier

    def sign_artifact(self, data: bytes) -> Any:
        bundle = self.signer.sign_artifact(data)
        self.verifier.verify_artifact(data, bundle, _OurOwn())
        return bundle

    def sign_dsse(self, payload: Any) -> Any:
        bundle = self.signer.sign_dsse(payload)
        self.verifier.verify_dsse(bundle, _OurOwn())
        return bundle


class _OurOwn:
    """Whose signature it is needs no look: it was made with a key of this process."""

    def verify(self, cert: Any) -> None:
        """Accept."""


def _sigstore_statement(statement: Statement) -> Any:
    from sigstore.dsse import Statement as Payload

    return Payload(msgspec.json.encode(statement))


def _asked(sign: Any) -> bytes:
    text: str = _asked_raw(sign).to_json()
    return text.encode()


def _asked_raw(ask: Any) -> Any:
    """What a service of Sigstore answers; it fails in the ways of several libraries."""
    try:
        return ask()
    except Exception as error:
        why = str(error) or str(error.__cause__ or "")  # some of them say it only there
        raise FindingsError(f"Sigstore does not sign: {type(error).__name__} {why}".rstrip()[:500]) from error
