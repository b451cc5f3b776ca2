"""Signed statements: in-toto in a DSSE envelope, with an ed25519 key or an ssh key. No network, no service.

The signature is over the bytes that DSSE prescribes, so other tools can check an ed25519 one; an ssh one is what
`ssh-keygen -Y sign -n kci` makes of the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import FindingsError, MissingToolError, UsageError
from kci.files.bounded_json import decode_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_SSH_NAMESPACE = "kci"
_SSH_KINDS = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-")
_MAX_KEY = 64 * 1024
_SECONDS = 60


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
    """The JSON of a signed envelope.

    Args:
        statement: what to sign.
        key: a file with an ed25519 key in PEM, or an ssh key that ssh-keygen can use.

    Raises:
        UsageError: the key cannot be read, or is of another kind.
        MissingToolError: a PEM key without the cryptography package, an ssh key without ssh-keygen.
    """
    payload = msgspec.json.encode(statement)
    message = _message(payload)
    head = _key_text(key)
    signature = _sign_ssh(message, key) if "OPENSSH" in head.partition("\n")[0] else _sign_pem(message, key)
    envelope = DsseEnvelope(base64.b64encode(payload).decode(), PAYLOAD_TYPE, (signature,))
    return msgspec.json.format(msgspec.json.encode(envelope), indent=2) + b"\n"


def open_statement(data: bytes, keys: Iterable[str]) -> Statement:
    """The statement of an envelope that one of the keys has signed.

    Args:
        data: the JSON of the envelope.
        keys: public keys: the text of a PEM file, or a line such as `ssh-ed25519 AAAA...`.

    Raises:
        ValueError: it is no envelope with a statement, or none of the keys signed it.
        MissingToolError: see `sign_statement`.
    """
    envelope = decode_json(data, DsseEnvelope)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payload is {envelope.payload_type[:60]!r}, not an in-toto statement")
    payload = _decoded(envelope.payload)
    message = _message(payload)
    signatures = [_decoded(item.sig) for item in envelope.signatures]
    if not any(_verifies(message, signature, key) for key in keys for signature in signatures):
        raise ValueError("no key that may sign has signed it")
    return read_statement(payload)


def claimed_statement(data: bytes) -> Statement:
    """The statement of an envelope, or of a Sigstore bundle with one. Who signed it, if anybody, is not looked at.

    Raises:
        ValueError: it is neither, or holds no statement.
    """
    bundle = decode_json(data, _BundleEnvelope)
    envelope = bundle.dsse_envelope or decode_json(data, DsseEnvelope)
    return read_statement(_decoded(envelope.payload))


def read_statement(payload: bytes) -> Statement:
    """The statement in a payload whose signature was checked.

    Raises:
        ValueError: the payload is not a statement.
    """
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


def _key_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from error


def _cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise MissingToolError("the cryptography package is not installed", hint="pip install 'kci[sign]'") from error
    return serialization


def _sign_pem(message: bytes, path: Path) -> DsseSignature:
    serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        signature = key.sign(message)
        public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    except (ValueError, TypeError, AttributeError) as error:
        hint = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
        raise UsageError(f"{path} is no ed25519 key without a password: {error}", hint=hint) from error
    return DsseSignature(base64.b64encode(signature).decode(), hashlib.sha256(public).hexdigest())


def _ssh_keygen() -> str:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise MissingToolError("ssh-keygen is not on this machine", hint="install OpenSSH, or sign with a PEM key")
    return program


def _sign_ssh(message: bytes, path: Path) -> DsseSignature:
    command = [_ssh_keygen(), "-Y", "sign", "-f", str(path), "-n", _SSH_NAMESPACE]
    done = subprocess.run(
        command, input=message, capture_output=True, check=False, timeout=_SECONDS, env={"PATH": "", "SSH_ASKPASS": ""}
    )
    if done.returncode or not done.stdout:
        reason = done.stderr.decode("utf-8", "replace").strip()[:300]
        raise UsageError(f"ssh-keygen cannot sign with {path}: {reason}", hint="use a key without a password")
    return DsseSignature(base64.b64encode(done.stdout).decode(), "ssh")


def _verifies(message: bytes, signature: bytes, key: str) -> bool:
    if key.lstrip().startswith(_SSH_KINDS):
        return signature.startswith(b"-----BEGIN SSH SIGNATURE-----") and _verifies_ssh(message, signature, key.strip())
    serialization = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        serialization.load_pem_public_key(key.encode()).verify(signature, message)
    except InvalidSignature:
        return False
    except (ValueError, TypeError, AttributeError) as error:
        raise FindingsError(f"a key that may sign is no ed25519 public key: {error}") from error
    return True


def _verifies_ssh(message: bytes, signature: bytes, key: str) -> bool:
    parts = key.split()
    if len(parts) < 2:
        raise FindingsError("a key that may sign is no ssh public key", hint="a line such as ssh-ed25519 AAAA...")
    with tempfile.TemporaryDirectory(prefix="kci-ssh-") as place:
        allowed, file = Path(place, "allowed"), Path(place, "signature")
        allowed.write_text(f'kci namespaces="{_SSH_NAMESPACE}" {parts[0]} {parts[1]}\n', encoding="utf-8")
        file.write_bytes(signature)
        command = [
            _ssh_keygen(),
            "-Y",
            "verify",
            "-f",
            str(allowed),
            "-I",
            "kci",
            "-n",
            _SSH_NAMESPACE,
            "-s",
            str(file),
        ]
        done = subprocess.run(command, input=message, capture_output=True, check=False, timeout=_SECONDS)
    return done.returncode == 0
