"""Who signed a variant, as its Sigstore bundle says, and whether the signature is about this metadata at all.

Nothing here verifies a signature or a certificate: that takes Sigstore's roots (`kernels verify-signature`).
"""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated

import msgspec

from kci.files.bounded_json import decode_json

_ALTERNATIVE_NAMES = bytes.fromhex("0603551d11")
"""The object identifier of a certificate's alternative names, as DER writes it."""
# DER tags of the alternative names that are looked for.
_URI, _EMAIL = 0x86, 0x81


class _Raw(msgspec.Struct, frozen=True, rename="camel"):
    raw_bytes: str


class _Chain(msgspec.Struct, frozen=True):
    certificates: tuple[_Raw, ...] = ()


class _Material(msgspec.Struct, frozen=True, rename="camel"):
    certificate: _Raw | None = None
    x509_certificate_chain: _Chain | None = None


class _MessageDigest(msgspec.Struct, frozen=True):
    algorithm: str
    digest: str


class _MessageSignature(msgspec.Struct, frozen=True, rename="camel"):
    message_digest: _MessageDigest
    signature: Annotated[str, msgspec.Meta(min_length=1)]


class _Bundle(msgspec.Struct, frozen=True, rename="camel"):
    verification_material: _Material
    message_signature: _MessageSignature | None = None

    @property
    def certificate(self) -> bytes:
        """The signer's certificate; empty if there is none."""
        chain = self.verification_material.x509_certificate_chain
        first = self.verification_material.certificate or (
            chain.certificates[0] if chain and chain.certificates else None
        )
        return base64.b64decode(first.raw_bytes, validate=True) if first else b""


def signature_problem(bundle: bytes, signed: bytes) -> str:
    """Why a bundle cannot be a signature of some bytes; empty if it may be one."""
    try:
        read = decode_json(bundle, _Bundle)
        certificate = read.certificate
    except ValueError as error:
        return f"its signature is not a Sigstore bundle: {error}"
    if read.message_signature is None:
        return "its signature is no signature of a file"
    if not certificate:
        return "its signature has no certificate"
    digest = read.message_signature.message_digest
    if digest != _MessageDigest("SHA2_256", base64.b64encode(hashlib.sha256(signed).digest()).decode()):
        return "its signature is about other metadata"
    return ""


def signer_of(bundle: bytes) -> str | None:
    """The identity in the certificate of a bundle: a workflow's URL or an address. None if it has none."""
    try:
        return _identity(decode_json(bundle, _Bundle).certificate)
    except ValueError:
        return None


def _identity(certificate: bytes) -> str | None:
    """The first URI or address among the alternative names of a DER certificate."""
    at = certificate.find(_ALTERNATIVE_NAMES)
    if at < 0:
        return None
    rest = certificate[at + len(_ALTERNATIVE_NAMES) :]
    if rest[:3] == b"\x01\x01\xff":  # the extension is marked as critical
        rest = rest[3:]
    for wrapper in (0x04, 0x30):  # an octet string that holds a sequence
        tag, rest, _ = _element(rest)
        if tag != wrapper:
            return None
    while rest:
        tag, value, rest = _element(rest)
        if tag in (_URI, _EMAIL):
            text = value.decode("ascii", "replace")
            return text if text.isprintable() and text else None
    return None


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and value of the first DER element, and what follows it; tag -1 for what is none."""
    if len(data) < 2:
        return -1, b"", b""
    length, start = data[1], 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[2 : 2 + size], "big"), 2 + size
    if start + length > len(data):
        return -1, b"", b""
    return data[0], data[start : start + length], data[start + length :]
