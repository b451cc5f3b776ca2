"""Signed statements: in-toto in a DSSE envelope, with an ed25519 key. No network, no service.

The signature is over the bytes that DSSE prescribes, so other tools can check it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import FindingsError, MissingToolError, UsageError
from kci.files.bounded_json import decode_json, read_bounded

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_MAX_KEY = 64 * 1024


class DsseSignature(msgspec.Struct, frozen=True):
    """One signature of an envelope."""

    sig: str
    keyid: str = ""


class DsseEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    """A payload and who signed it."""

    payload: str
    payload_type: str
    signatures: tuple[DsseSignature, ...]


class _BundleEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    dsse_envelope: DsseEnvelope | None = None


class StatementSubject(msgspec.Struct, frozen=True):
    """One thing that a statement is about."""

    name: str
    digest: dict[str, str]


class Statement(msgspec.Struct, frozen=True, rename={"type_": "_type", "predicate_type": "predicateType"}):
    """An in-toto statement."""

    type_: str
    subject: tuple[StatementSubject, ...]
    predicate_type: str
    predicate: dict[str, Any]


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


def sign_statement(statement: Statement, key: Path) -> bytes:
    """The JSON of an envelope, signed with the ed25519 key in a file, in PEM or as ssh-keygen writes it."""
    payload = msgspec.json.encode(statement)
    try:
        own = _key(read_bounded(key, _MAX_KEY), private=True)
    except OSError as error:
        raise UsageError(f"cannot read the key {key}: {error.strerror}") from error
    except ValueError as error:
        hint = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
        raise UsageError(f"{key} is not an ed25519 key without a password: {error}", hint=hint) from error
    signature = base64.b64encode(own.sign(_message(payload))).decode()
    signer = DsseSignature(signature, hashlib.sha256(own.public_key().public_bytes_raw()).hexdigest())
    envelope = DsseEnvelope(base64.b64encode(payload).decode(), PAYLOAD_TYPE, (signer,))
    return msgspec.json.format(msgspec.json.encode(envelope), indent=2) + b"\n"


def open_statement(data: bytes, keys: Iterable[str]) -> Statement:
    """The statement of an envelope that one of the public keys has signed.

    A key is PEM, or a line such as `ssh-ed25519 AAAA...`. Raises ValueError: it is no envelope with a statement, or
    none of the keys signed it.
    """
    envelope = decode_json(data, DsseEnvelope)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payload is {envelope.payload_type[:60]!r}, not an in-toto statement")
    payload = _decoded(envelope.payload)
    message = _message(payload)
    signatures = [_decoded(item.sig) for item in envelope.signatures]
    if not any(_verifies(message, signature, key) for key in map(_public_key, keys) for signature in signatures):
        raise ValueError("no key that may sign has signed it")
    return read_statement(payload)


def claimed_statement(data: bytes) -> Statement:
    """The statement of an envelope, or of a Sigstore bundle with one. Who signed it, if anybody, is not looked at.

    Raises ValueError: it is neither, or holds no statement.
    """
    bundle = decode_json(data, _BundleEnvelope)
    envelope = bundle.dsse_envelope or decode_json(data, DsseEnvelope)
    return read_statement(_decoded(envelope.payload))


def read_statement(payload: bytes) -> Statement:
    """The statement in a payload whose signature was checked. Raises ValueError: the payload is not a statement."""
    statement = decode_json(payload, Statement)
    if statement.type_ != STATEMENT_TYPE:
        raise ValueError(f"it is a {statement.type_[:60]!r}, not an in-toto statement of version 1")
    return statement


def _message(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("a part of it is not base64") from None


def _key(data: bytes, *, private: bool) -> Any:
    """An ed25519 key, in PEM or as ssh-keygen writes it.

    Raises:
        ValueError: it is of another kind, or has a password.
        MissingToolError: the cryptography package is not installed.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingToolError("the cryptography package is not installed", hint="pip install 'kci[sign]'") from error
    ssh = data.startswith(b"ssh-") or b"OPENSSH" in data.partition(b"\n")[0]
    key: Any
    try:
        if private:
            key = (forms.load_ssh_private_key if ssh else forms.load_pem_private_key)(data, None)
        else:
            key = (forms.load_ssh_public_key if ssh else forms.load_pem_public_key)(data)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise ValueError("it is of another kind")
    return key


def _public_key(text: str) -> Any:
    try:
        return _key(text.encode(), private=False)
    except ValueError as error:
        hint = "PEM, or a line such as ssh-ed25519 AAAA..."
        raise FindingsError(f"a key that may sign is not an ed25519 public key: {error}", hint=hint) from error


def _verifies(message: bytes, signature: bytes, key: Any) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
