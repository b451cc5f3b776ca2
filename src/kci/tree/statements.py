"""In-toto statements: what is signed of a tree or an artifact, and where that says it comes from."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from kci.files.bounded_json import decode_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


class _Envelope(msgspec.Struct, frozen=True):
    payload: str


class _BundleEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    dsse_envelope: _Envelope


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


def claimed_statement(data: bytes) -> Statement:
    """The statement of a Sigstore bundle. Who signed it, if anybody, is not looked at.

    Raises ValueError: it is no bundle, or holds no statement.
    """
    try:
        payload = base64.b64decode(decode_json(data, _BundleEnvelope).dsse_envelope.payload, validate=True)
    except binascii.Error:
        raise ValueError("its payload is not base64") from None
    return read_statement(payload)


def read_statement(payload: bytes) -> Statement:
    """The statement in a payload whose signature was checked. Raises ValueError: the payload is not a statement."""
    statement = decode_json(payload, Statement)
    if statement.type_ != STATEMENT_TYPE:
        raise ValueError(f"it is a {statement.type_[:60]!r}, not an in-toto statement of version 1")
    return statement
