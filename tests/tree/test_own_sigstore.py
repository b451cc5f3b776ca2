"""Signing through a Sigstore on this machine, by the real client, and a real attestation."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sigstore.verify import Verifier

import outside_tools
from cli.runner import kci
from kci.tree.merge import merge
from kci.tree.sigstore import SigningContext, verify_bundle
from tree.own_sigstore import Answer, OwnSigstore, serving_sigstore
from variants import COMMIT, CPU, CUDA, STABLE, artifact_of, tree_plan

WORKFLOW = "acme/norm/.github/workflows/publish.yml@refs/heads/main"
SIGNED = [f"{name}/metadata.json.sigstore" for name in (STABLE, CPU)]
SIGNED.append("kci-attestation.sigstore.json")
IGNORED = ("--ignore", "KCI74", "--ignore", "KCI75")
OWN = ("--repository", "acme/norm")


@pytest.fixture
def sigstore(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[OwnSigstore]:
    """The services, and kci.toml above the tree that names them to its signer."""
    for name in os.environ:
        if name.startswith(("ACTIONS_ID", "GITHUB_", "GITLAB", "CIRCLECI", "BUILDKITE")):
            monkeypatch.delenv(name)
    claims = {"repository": "acme/norm", "job_workflow_ref": WORKFLOW, "sha": COMMIT}
    with serving_sigstore(OwnSigstore(**claims, ref="refs/heads/main")) as running:
        job = {"GITHUB_ACTIONS": "true", "GITHUB_WORKFLOW_REF": WORKFLOW}
        for name, value in (running.environment | job).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "sigstore.json").write_text(running.trust_config())
        signing = '[signing]\nrepository = "acme/norm"\ntrust-config = "sigstore.json"\n'
        (tmp_path / "kci.toml").write_text(signing)
        yield running


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = [artifact_of(tmp_path, name) for name in (CPU, STABLE)]
    merge(files, tmp_path / "build", tree_plan(CPU, STABLE, commit=COMMIT))
    return tmp_path / "build"


def problems(tree: Path, *arguments: str | Path) -> list[str]:
    trusted = tree.parent / "sigstore.json"
    own = arguments or (*OWN, *(("--trust-config", trusted) if trusted.exists() else ()))
    done = kci("verify", tree, "--signatures", "--format", "json", *IGNORED, *own)
    return [item["rule"] for item in json.loads(done.stdout)["diagnostics"]]


def sign(tree: Path) -> None:
    done = kci("sign", tree, GITHUB_REPOSITORY="acme/norm")
    assert done.code == 0, done.stderr


@pytest.mark.rule("KCI790", "KCI791", "KCI792", triggers=False)
def test_a_run_signs_through_the_services_of_kci_toml(tree: Path, sigstore: OwnSigstore) -> None:
    done = kci("sign", tree, GITHUB_REPOSITORY="acme/norm")
    assert done.stdout.split() == [str(tree / name) for name in SIGNED], done.stderr
    assert sigstore.asked == ["/identity", "/api/v2/signingCert", *["/api/v1/log/entries"] * 3]
    assert problems(tree) == []
    assert len(sigstore.asked) == 5, "verifying asks nobody"


def test_the_loader_s_own_verifier_takes_the_signatures(
    tree: Path, sigstore: OwnSigstore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reference = outside_tools.reference("kernels.verify")
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier, policy

    sign(tree)
    root = tmp_path / "root.json"
    root.write_text(json.dumps(json.loads(sigstore.trust_config())["trustedRoot"]))
    own = Verifier(trusted_root=TrustedRoot.from_file(str(root)))
    monkeypatch.setattr(Verifier, "production", classmethod(lambda _class, **_how: own))

    def verdict(repository: str) -> Any:
        wanted = policy.AllOf([policy.OIDCSourceRepositoryURI(f"https://github.com/{repository}")])
        return type(reference.verify_variant(tree / CPU, [wanted])).__name__

    assert verdict("acme/norm") == "Success"
    assert verdict("evil/norm") != "Success"
    (tree / CPU / "__init__.py").write_text("changed")
    assert verdict("acme/norm") != "Success"


@pytest.mark.rule("KCI791", triggers=True)
def test_it_counts_for_its_repository_and_workflow_under_its_own_root(
    tree: Path, sigstore: OwnSigstore
) -> None:
    sign(tree)
    trusted = ("--trust-config", tree.parent / "sigstore.json")
    assert problems(tree, "--repository", "evil/norm", *trusted) == ["KCI791"]
    assert problems(tree, *OWN, *trusted, "--workflow", WORKFLOW) == []
    assert problems(tree, *OWN, *trusted, "--workflow", f"{WORKFLOW}x") == ["KCI791"]
    assert problems(tree, *OWN) == ["KCI791"], "the public Sigstore knows nothing of it"
    with serving_sigstore(OwnSigstore()) as other:
        trusted[1].write_text(other.trust_config())
    assert problems(tree, *OWN, *trusted) == ["KCI791"]
    trusted[1].write_text(sigstore.trust_config())
    sigstore.claims["iss"] = "https://gitlab.example"
    sign(tree)
    assert problems(tree) == ["KCI791"], "another issuer says nothing about GitHub"


@pytest.mark.usefixtures("sigstore")
def test_only_the_settings_of_the_verifier_say_who_may_sign(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker runs a Sigstore too, and writes whatever comes with the tree."""
    sign(tree)
    fetched, own = tmp_path / "there" / "fetched", tmp_path / "here" / "own"
    shutil.copytree(tree, fetched / "build")
    shutil.copytree(tree, fetched / "sources" / "build")
    (own / "below").mkdir(parents=True)
    for place in (fetched, fetched / "sources", fetched / "sources" / "build", own):
        for name in ("kci.toml", "sigstore.json"):
            shutil.copy(tmp_path / name, place)
    (tmp_path / "here" / "link").symlink_to(fetched)

    def verified(place: Path, name: str, *options: str) -> tuple[int, bool]:
        monkeypatch.chdir(place)
        done = kci("verify", name, "--signatures", *IGNORED, "--ignore", "KCI707", *options)
        return done.code, "KCI791" in done.stderr

    by_another_repository = verified(own / "below", f"{fetched}/build")
    assert by_another_repository == (0, False)
    for place, name in (
        (tmp_path, "there/fetched/build"), (fetched, "build"), (fetched, "."),
        (fetched / "sources" / "build", "."), (fetched / "sources", "../build"),
        (fetched / "sources", "build"), (tmp_path / "here", "link/build"),
        (fetched, "sources/build"),
    ):  # fmt: skip
        assert verified(place, name) == (2, False), (place, name)
        assert verified(place, name, *OWN) == (1, True), (place, name)


@pytest.mark.usefixtures("sigstore")
@pytest.mark.rule("KCI790", "KCI792", triggers=True)
def test_what_is_not_what_was_signed(tree: Path, tmp_path: Path) -> None:
    assert problems(tree) == ["KCI790"]
    sign(tree)
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
        assert "KCI792" in problems(copy)


Spoiling = Callable[[str, Answer], Answer]
LOG = "/api/v1/log/entries"


def instead(wanted: str, status: int, said: dict[str, Any]) -> Callable[[], Spoiling]:
    return lambda: lambda path, answer: (status, said) if path == wanted else answer


def other_promise() -> Spoiling:
    def spoil(path: str, answer: Answer) -> Answer:
        for entry in answer[1].values() if path == LOG else ():
            entry["verification"]["signedEntryTimestamp"] = "AAAA"
        return answer

    return spoil


def always_the_first_entry() -> Spoiling:
    seen: list[Answer] = []

    def spoil(path: str, answer: Answer) -> Answer:
        if path != LOG:
            return answer
        seen.append(answer)
        return seen[0]

    return spoil


SPOILED = {
    "identity": instead("/identity", 403, {}),
    "certificate": instead("/api/v2/signingCert", 403, {"message": "not today"}),
    "log": instead(LOG, 503, {}),
    "no token": instead("/identity", 200, {"value": "no token"}),
    "no certificate": instead("/api/v2/signingCert", 201, {}),
    "promise": other_promise,
    "somebody else's entry": always_the_first_entry,
}


@pytest.mark.parametrize("spoiling", SPOILED)
def test_a_service_that_refuses_or_answers_wrongly_signs_nothing(
    tree: Path, sigstore: OwnSigstore, spoiling: str
) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    sigstore.spoil = SPOILED[spoiling]()
    done = kci("sign", tree, GITHUB_REPOSITORY="acme/norm")
    assert done.code == 1
    assert "Sigstore does not sign" in done.stderr
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("sigstore")
@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"mediaType": 1}'])
def test_a_trust_configuration_that_is_none(tree: Path, content: str | None) -> None:
    sign(tree)
    place = tree.parent / "sigstore.json"
    if content is None:
        place.unlink()
    else:
        place.write_text(content)
    verify = ("verify", tree, "--signatures", *OWN, "--trust-config", place, *IGNORED)
    for done in (kci("sign", tree), kci(*verify)):
        assert done.code == 1
        assert f"{place} is not a trust configuration" in done.stderr


REAL = Path(__file__).parent / "data" / "github-provenance.sigstore.json"
REPOSITORY = "trailofbits/pypi-attestations"
ITS_WORKFLOW = f"{REPOSITORY}/.github/workflows/release.yml@refs/tags/v0.0.19"
ITS_COMMIT = "08802efe1f8e5fec4ad842d6b8ce97656092ee72"
SUBJECT = "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3"


@pytest.mark.parametrize("workflow", ["", ITS_WORKFLOW])
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
    with pytest.raises(ValueError, match="no repository is named"):
        verify_bundle(REAL.read_bytes(), SigningContext())


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
        verify_bundle(forged(*FORGED[what]), SigningContext(REPOSITORY, workflow=ITS_WORKFLOW))
