"""Attestations: who signed what, and that nothing else verifies under it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.runner import kci
from kci.plan.plan import KernelPlan, Plan
from kci.tree import sigstore as sigstore_bundles
from kci.tree import top_level
from kci.tree.merge import merge
from kci.tree.sigstore import SigningContext, Statement
from variants import COMMIT, CPU, CUDA, STABLE, make_artifact, make_variant

IGNORED = ("--ignore", "KCI74", "--ignore", "KCI75")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = [make_artifact(tmp_path / name, make_variant(tmp_path / name, name)) for name in (CPU, STABLE)]
    merge(
        files, tmp_path / "build", Plan(1, "release", (KernelPlan("gated-norm", ".", 1, (CPU, STABLE)),), commit=COMMIT)
    )
    return tmp_path / "build"


def problems(tree: Path, *arguments: str | Path) -> list[str]:
    done = kci("verify", tree, "--signatures", "--format", "json", *IGNORED, *arguments)
    return [item["rule"] for item in json.loads(done.stdout)["diagnostics"]]


OWN = ("--repository", "acme/norm")


@pytest.mark.rule("KCI790", triggers=True)
def test_an_unsigned_tree(tree: Path) -> None:
    assert problems(tree, *OWN) == ["KCI790"]


@pytest.mark.usefixtures("sigstore")
@pytest.mark.rule("KCI792", triggers=True)
def test_what_is_not_what_was_signed(tree: Path, tmp_path: Path) -> None:
    kci("sign", tree, GITHUB_REPOSITORY="acme/norm", GITHUB_SHA=COMMIT)
    assert problems(tree, *OWN) == []
    for number, change in enumerate(
        (
            lambda root: (root / CPU).rename(root / CUDA),
            lambda root: (root / CPU / "_ops.py").write_text("x"),
            lambda root: (root / CPU / "new.py").write_text(""),
            lambda root: (root / "CARD.md").write_text("new"),
            lambda root: (root / "kci-manifest.json").unlink(),
            lambda root: (root / "SHA256SUMS").write_text("x"),
        )
    ):
        copy = shutil.copytree(tree, tmp_path / str(number) / "build")
        change(copy)
        assert "KCI792" in problems(copy, *OWN)


@pytest.mark.usefixtures("sigstore")
def test_who_may_sign_is_policy_in_kci_toml(tree: Path, tmp_path: Path) -> None:
    kci("sign", tree, GITHUB_REPOSITORY="acme/norm")
    done = kci("verify", tree, "--signatures")
    assert done.code == 2
    assert "no signer is allowed" in done.stderr
    (tmp_path / "kci.toml").write_text('[signing]\nrepository = "acme/norm"\n')
    assert problems(tree) == []
    (tmp_path / "kci.toml").write_text('[signing]\nrepository = "acme/other"\n')
    assert problems(tree) == ["KCI791"]


class StandIn:
    """In place of Sigstore's signer: what it signs is in the bundle as it is."""

    def __init__(self, payload: bytes = b"") -> None:
        self.payload = payload

    def sign_artifact(self, data: bytes) -> bytes:
        return StandIn(data).to_json()

    def sign_statement(self, statement: Statement) -> bytes:
        return StandIn(msgspec.json.encode(statement)).to_json()

    def to_json(self) -> bytes:
        text = base64.b64encode(self.payload).decode()
        digest = base64.b64encode(hashlib.sha256(self.payload).digest()).decode()
        message = {"messageDigest": {"algorithm": "SHA2_256", "digest": digest}, "signature": "MEQ="}
        envelope = {"payload": text, "payloadType": "application/vnd.in-toto+json", "signatures": []}
        kind = {"dsseEnvelope": envelope} if b"https://in-toto.io/" in self.payload else {"messageSignature": message}
        said = {"stand-in": text, "verificationMaterial": {"certificate": {"rawBytes": "MEQ="}}} | kind
        return json.dumps(said).encode()


@pytest.fixture
def sigstore(monkeypatch: pytest.MonkeyPatch) -> None:
    def verified(data: bytes, context: SigningContext, _trust: object) -> tuple[str, bytes]:
        if context.repository != "acme/norm":
            raise ValueError("Certificate's source repository does not match")
        return "application/vnd.in-toto+json", base64.b64decode(json.loads(data)["stand-in"])

    monkeypatch.setattr(top_level, "run_signer", lambda _trust: contextlib.nullcontext(StandIn()))
    monkeypatch.setattr(sigstore_bundles, "_verified", verified)


@pytest.mark.usefixtures("sigstore")
def test_the_identity_of_a_run_signs_variants_for_the_loader_and_the_tree(tree: Path) -> None:
    before = (tree / "kci-manifest.json").read_bytes()
    done = kci("sign", tree, GITHUB_REPOSITORY="acme/norm")
    assert done.code == 0, done.stderr
    signed = [tree / name / "metadata.json.sigstore" for name in (STABLE, CPU)]
    assert done.stdout.split() == [*map(str, signed), str(tree / "kci-attestation.sigstore.json")]
    bundle = json.loads(signed[1].read_bytes())
    assert base64.b64decode(bundle["stand-in"]) == (tree / CPU / "metadata.json").read_bytes()
    assert (tree / "kci-manifest.json").read_bytes() == before
    assert problems(tree, "--repository", "acme/norm") == []
    assert problems(tree, "--repository", "evil/norm") == ["KCI791"]
    (tree / CPU).rename(tree / CUDA)
    assert "KCI792" in problems(tree, "--repository", "acme/norm")


@pytest.mark.rule("KCI791", triggers=True)
def test_a_bundle_that_is_none_and_a_machine_without_identity(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    done = kci("sign", tree)
    assert (done.code, "no identity" in done.stderr) == (3, True)
    for content in (b"", b"{}", b"[]", b"\xff"):
        (tree / "kci-attestation.sigstore.json").write_bytes(content)
        assert problems(tree, "--repository", "acme/norm") == ["KCI791"]


# --- a real bundle, with the trust root that the sigstore package brings ---

REAL = Path(__file__).parent / "data" / "github-provenance.sigstore.json"
REPOSITORY = "trailofbits/pypi-attestations"
WORKFLOW = f"{REPOSITORY}/.github/workflows/release.yml@refs/tags/v0.0.19"
ITS_COMMIT = "08802efe1f8e5fec4ad842d6b8ce97656092ee72"
SUBJECT = "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3"


@pytest.mark.parametrize("workflow", ["", WORKFLOW])
def test_a_real_attestation_of_github_is_verified_offline(workflow: str) -> None:
    statement = sigstore_bundles.verify_bundle(REAL.read_bytes(), SigningContext(REPOSITORY, workflow=workflow))
    assert [subject.digest["sha256"] for subject in statement.subject] == [SUBJECT]
    assert statement.predicate_type == "https://slsa.dev/provenance/v1"


@pytest.mark.parametrize(
    ("repository", "workflow", "why"),
    [
        ("evil/pypi-attestations", "", "SourceRepositoryURI does not match"),
        (REPOSITORY, WORKFLOW.replace("release", "other"), "BuildSignerURI does not match"),
        ("", WORKFLOW, "no repository is named"),
    ],
)
def test_it_counts_for_its_repository_and_workflow_alone(repository: str, workflow: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sigstore_bundles.verify_bundle(REAL.read_bytes(), SigningContext(repository, workflow=workflow))


def forged(place: tuple[str | int, ...], change: Callable[[Any], object]) -> bytes:
    """The bundle with one value changed."""
    bundle = json.loads(REAL.read_bytes())
    owner = bundle
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = change(owner[place[-1]])
    return json.dumps(bundle).encode()


def other_commit(payload: str) -> str:
    return base64.b64encode(base64.b64decode(payload).replace(ITS_COMMIT.encode(), b"f" * 40)).decode()


ENTRY = ("verificationMaterial", "tlogEntries", 0)


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (("dsseEnvelope", "payload"), other_commit),
        (("dsseEnvelope", "signatures", 0, "sig"), lambda sig: sig[::-1]),
        (("verificationMaterial", "tlogEntries"), lambda _entries: []),
        ((*ENTRY, "inclusionPromise", "signedEntryTimestamp"), lambda _stamp: base64.b64encode(b"x" * 70).decode()),
        ((*ENTRY, "inclusionProof", "rootHash"), lambda _hash: base64.b64encode(b"x" * 32).decode()),
        ((*ENTRY, "integratedTime"), lambda _time: "1800000000"),
    ],
    ids=["payload", "signature", "no log entry", "promise", "proof", "time"],
)
def test_a_forged_one_does_not_count(place: tuple[str | int, ...], change: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        sigstore_bundles.verify_bundle(forged(place, change), SigningContext(REPOSITORY, workflow=WORKFLOW))
