"""Signs Sigstore bundles with a CI identity and verifies them offline; the sigstore package is
optional.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kci.errors import FindingsError, MissingToolError, first_line_of
from kci.utils.bounded_json import decode_json, read_bounded
from kci.utils.frozen import Frozen

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


class StatementSubject(Frozen):
    """A subject of an in-toto statement."""

    name: str
    digest: dict[str, str]


class Statement(Frozen, rename={"type_": "_type", "predicate_type": "predicateType"}):
    """An in-toto statement."""

    type_: str
    subject: tuple[StatementSubject, ...]
    predicate_type: str
    predicate: dict[str, Any]


class SigningContext(Frozen):
    """Origin that a signer claims or a verifier demands; empty fields do not count."""

    repository: str = ""
    commit: str = ""
    workflow: str = ""


def unverified_statement(data: bytes) -> Statement:
    """Read a bundle's statement, unverified. Raises ValueError."""
    payload = decode_json(data, _Bundle).dsse_envelope.payload
    return read_statement(base64.b64decode(payload, validate=True))


def read_statement(payload: bytes) -> Statement:
    """Parse a verified payload. Raises ValueError."""
    statement = decode_json(payload, Statement)
    if statement.type_ != STATEMENT_TYPE:
        raise ValueError(f"it is a {statement.type_[:60]!r}, not an in-toto statement of version 1")
    return statement


_GITHUB = "https://github.com/"


def verify_bundle(data: bytes, context: SigningContext, trust: Path | None = None) -> Statement:
    """Verify offline that a repository's workflow signed a bundle.

    Raises ValueError. `trust` is a private Sigstore.
    """
    if not context.repository:
        raise ValueError("no repository is named whose workflows may sign")
    with _needing_sigstore():
        from sigstore.errors import Error
        from sigstore.models import Bundle
        from sigstore.verify import Verifier, policy
    issuer = policy.OIDCIssuerV2("https://token.actions.githubusercontent.com")
    policies: list[Any] = [issuer, policy.OIDCSourceRepositoryURI(_GITHUB + context.repository)]
    if context.workflow:
        policies.append(policy.OIDCBuildSignerURI(_GITHUB + context.workflow))
    own = _trust_config(trust) if trust else None
    try:
        verifier = (
            Verifier(trusted_root=own.trusted_root) if own else Verifier.production(offline=True)
        )
        kind, payload = verifier.verify_dsse(Bundle.from_json(data), policy.AllOf(policies))
    except (Error, ValueError, TypeError) as error:
        raise ValueError(first_line_of(error)) from error
    if kind != "application/vnd.in-toto+json":
        raise ValueError(f"its payload is {kind[:60]!r}, not an in-toto statement")
    return read_statement(payload)


@contextmanager
def _needing_sigstore() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        hint = "pip install 'kci[sign]'"
        raise MissingToolError("the sigstore package is not installed", hint) from error


def _trust_config(path: Path) -> Any:
    # the form of sigstore's `--trust-config`
    from sigstore.models import ClientTrustConfig

    try:
        config = ClientTrustConfig.from_json(read_bounded(path).decode())
        config.trusted_root.get_fulcio_certs()
    except Exception as error:  # from several libraries
        raise FindingsError(
            f"{path} is not a trust configuration of a Sigstore: {first_line_of(error)}",
            "--trust-config, or `trust-config` in [signing] of kci.toml",
        ) from error
    return config


@contextmanager
def run_signer(trust: Path | None) -> Iterator[RunSigner]:
    """Yield a signer with the CI identity. Raises MissingToolError without one."""
    with _needing_sigstore():
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, detect_credential
        from sigstore.sign import SigningContext as Service
        from sigstore.verify import Verifier
    with _signing():
        token = detect_credential()
    if token is None:
        raise MissingToolError(
            "there is no identity to sign with here",
            "sign in a CI run; in GitHub Actions give the job `id-token: write`",
        )
    own = _trust_config(trust) if trust else None
    with ExitStack() as stack:
        with _signing():
            config = own or ClientTrustConfig.production()
            signing = Service.from_trust_config(config).signer(IdentityToken(token))
            signer = stack.enter_context(signing)  # requests the certificate
        yield RunSigner(signer, Verifier(trusted_root=config.trusted_root))


class RunSigner(Frozen):
    """Signs, and verifies the results: sigstore ignores the response of its transparency log.

    Raises FindingsError.
    """

    signer: Any
    verifier: Any

    def sign_artifact(self, data: bytes) -> bytes:
        with _signing():
            bundle = self.signer.sign_artifact(data)
            self.verifier.verify_artifact(data, bundle, _OwnKeyPolicy())
        return str(bundle.to_json()).encode()

    def sign_statement(self, statement: Statement) -> bytes:
        from sigstore.dsse import Statement as Payload

        with _signing():
            bundle = self.signer.sign_dsse(Payload(msgspec.json.encode(statement)))
            self.verifier.verify_dsse(bundle, _OwnKeyPolicy())
        return str(bundle.to_json()).encode()


class _OwnKeyPolicy:
    # The key is this process's own.
    def verify(self, cert: Any) -> None:
        pass


@contextmanager
def _signing() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        said = (
            error if str(error) or not isinstance(error.__cause__, Exception) else error.__cause__
        )
        raise FindingsError(
            f"Sigstore does not sign: {type(error).__name__}: {first_line_of(said)}"
        ) from error


class _Raw(Frozen, rename="camel"):
    raw_bytes: str


class _Chain(Frozen):
    certificates: tuple[_Raw, ...] = ()


class _Material(Frozen, rename="camel"):
    certificate: _Raw | None = None
    x509_certificate_chain: _Chain = _Chain()


class _MessageDigest(Frozen):
    algorithm: str
    digest: str


class _MessageSignature(Frozen, rename="camel"):
    message_digest: _MessageDigest
    signature: Annotated[str, msgspec.Meta(min_length=1)]


class _Envelope(Frozen):
    payload: str = ""


class _Bundle(Frozen, rename="camel"):
    verification_material: _Material = _Material()
    dsse_envelope: _Envelope = _Envelope()
    message_signature: _MessageSignature | None = None


def signature_problem(bundle: bytes, signed: bytes) -> str:
    """The reason why a bundle cannot be a signature of the bytes; empty if it can."""
    try:
        read = decode_json(bundle, _Bundle)
        material = read.verification_material
        chain = material.x509_certificate_chain.certificates
        certificates = [item for item in (material.certificate, *chain) if item]
        if not any(base64.b64decode(item.raw_bytes, validate=True) for item in certificates[:1]):
            return "its signature has no certificate"
    except ValueError as error:
        return f"its signature is not a Sigstore bundle: {error}"
    if not read.message_signature:
        return "its signature is not a signature of a file"
    digest = base64.b64encode(hashlib.sha256(signed).digest()).decode()
    if read.message_signature.message_digest != _MessageDigest("SHA2_256", digest):
        return "its signature is about other metadata"
    return ""
