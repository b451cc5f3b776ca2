"""A real attestation, with the trust root that the sigstore package brings."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sigstore.verify import Verifier

from kci.tree.sigstore import SigningContext, verify_bundle

REAL = Path(__file__).parent / "data" / "github-provenance.sigstore.json"
REPOSITORY = "trailofbits/pypi-attestations"
WORKFLOW = f"{REPOSITORY}/.github/workflows/release.yml@refs/tags/v0.0.19"
ITS_COMMIT = "08802efe1f8e5fec4ad842d6b8ce97656092ee72"
SUBJECT = "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3"


@pytest.mark.parametrize("workflow", ["", WORKFLOW])
def test_a_real_attestation_of_github_is_verified_offline(workflow: str) -> None:
    signer = SigningContext(REPOSITORY, workflow=workflow)
    statement = verify_bundle(REAL.read_bytes(), signer)
    assert [subject.digest["sha256"] for subject in statement.subject] == [SUBJECT]
    assert statement.predicate_type == "https://slsa.dev/provenance/v1"


def test_another_payload_than_a_statement_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = base64.b64decode(json.loads(REAL.read_bytes())["dsseEnvelope"]["payload"])
    monkeypatch.setattr(Verifier, "verify_dsse", lambda *_: ("text/plain", payload))
    with pytest.raises(ValueError, match="its payload is 'text/plain'"):
        verify_bundle(REAL.read_bytes(), SigningContext(REPOSITORY))


def forged(place: tuple[str | int, ...], change: Callable[[Any], object]) -> bytes:
    """The bundle with one value changed."""
    bundle = json.loads(REAL.read_bytes())
    owner = bundle
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = change(owner[place[-1]])
    return json.dumps(bundle).encode()


def other_commit(payload: str) -> str:
    changed = base64.b64decode(payload).replace(ITS_COMMIT.encode(), b"f" * 40)
    return base64.b64encode(changed).decode()


def letters(count: int) -> Callable[[Any], object]:
    return lambda _there: base64.b64encode(b"x" * count).decode()


ENTRY = ("verificationMaterial", "tlogEntries", 0)
FORGED: dict[str, tuple[tuple[str | int, ...], Callable[[Any], object]]] = {
    "payload": (("dsseEnvelope", "payload"), other_commit),
    "signature": (("dsseEnvelope", "signatures", 0, "sig"), lambda sig: sig[::-1]),
    "no log entry": (("verificationMaterial", "tlogEntries"), lambda _entries: []),
    "promise": ((*ENTRY, "inclusionPromise", "signedEntryTimestamp"), letters(70)),
    "proof": ((*ENTRY, "inclusionProof", "rootHash"), letters(32)),
    "time": ((*ENTRY, "integratedTime"), lambda _time: "1800000000"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_one_does_not_count(what: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        verify_bundle(forged(*FORGED[what]), SigningContext(REPOSITORY, workflow=WORKFLOW))


def test_without_a_repository_nobody_is_trusted() -> None:
    with pytest.raises(ValueError, match="no repository is named"):
        verify_bundle(b"{}", SigningContext())
