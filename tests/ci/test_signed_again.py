"""Signing again what is published: held to its evidence, with a Hub, a Sigstore and GitHub's answers of the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actions.test_common import load
from cli.runner import kci
from kci.errors import FindingsError, UsageError
from kci.tree.dsse import SigningContext, claimed_statement
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, hub, make_tree, token
from tree.own_sigstore import OwnSigstore, serving_sigstore

__all__ = ["hub", "token"]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

OWN, SHA, COMMIT = "acme/kernels", "b" * 40, "a" * 40
NOW, OLD = (f"{OWN}/.github/workflows/kci-publish.yml@refs/{ref}" for ref in ("heads/main", "tags/v1"))
BUILD = """[general]
name = "gated-norm"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
hub = { repo-id = "acme/gated-norm" }

[torch-noarch]
"""
SIGNATURES = {"build/kci-attestation.sigstore.json"} | {
    f"build/{variant}/metadata.json.sigstore" for variant in ("torch-cpu", "torch-cuda")
}


class World:
    """A published kernel, the tree of the run that built it, and what GitHub says of that run."""

    def __init__(self, folder: Path, hub: FakeHub, sigstore: OwnSigstore) -> None:
        self.folder, self.hub, self.sigstore = folder, hub[REPO], sigstore
        kernel = folder / "repository" / "gated-norm"
        (kernel / "torch-ext/gated_norm").mkdir(parents=True)
        (kernel / "torch-ext/gated_norm/__init__.py").write_text("")
        (kernel / "build.toml").write_text(BUILD)
        (folder / "repository" / "sigstore.json").write_text(sigstore.trust_config())
        self.settings = folder / "repository" / "kci.toml"
        self.settings.write_text(f'[publish]\n[signing]\nrepository = "{OWN}"\ntrust-config = "sigstore.json"\n')
        self.tree = make_tree(folder / "here")
        shutil.copytree(self.tree, folder / "built")
        self.run: dict[str, Any] | None = {
            "id": 41, "event": "push", "path": ".github/workflows/kci-publish.yml@refs/tags/v1", "head_sha": SHA,
        }  # fmt: skip
        self.status = "ahead"
        self.asked: list[str] = []

    def publish(self, **changed: bytes) -> str:
        files = {f"build/{path.relative_to(self.tree)}": path for path in self.tree.rglob("*") if path.is_file()}
        there = {name: path.read_bytes() for name, path in files.items()}
        return self.hub.write("v1", {"README.md": b"card", **there, **changed}, "published")

    def answer(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        path = command[4].removeprefix(f"repos/{OWN}/").partition("?")[0]
        self.asked.append(path)
        known = {"actions/runs/41": self.run, f"compare/{SHA}...{COMMIT}": {"status": self.status, "commits": []}}
        if (found := known.get(path)) is None:
            return subprocess.CompletedProcess(command, 1, b"", b"gh: Not Found (HTTP 404)")
        return subprocess.CompletedProcess(command, 0, json.dumps(found).encode(), b"")

    def sign(self, revision: str, evidence: str = "41", built: str = "built", **more: Any) -> Any:
        import kci as library
        from kci.ci.signed_again import SignAgain, sign_again
        from kci.watch.github_api import GitHubApi

        workspace = library.open_workspace([str(self.folder / "repository" / "gated-norm")])
        context = SigningContext(OWN, COMMIT, NOW)
        request = SignAgain(workspace, revision, evidence, self.folder / built, context, "refs/heads/main")
        place = self.folder / f"place-{len(self.asked)}-{len(list(self.folder.iterdir()))}"
        return sign_again(request, GitHubApi(OWN, "may it?", self.answer), place, print, **({"dry_run": False} | more))


@pytest.fixture
def world(hub: FakeHub, token: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in os.environ:
        if name.startswith(("ACTIONS_ID", "GITHUB_")):
            monkeypatch.delenv(name)
    claims = {"repository": OWN, "job_workflow_ref": NOW, "sha": COMMIT, "ref": "refs/heads/main"}
    with serving_sigstore(OwnSigstore(**claims)) as running:
        for name, value in {**running.environment, "GITHUB_ACTIONS": "true"}.items():
            monkeypatch.setenv(name, value)
        yield World(tmp_path, hub, running)


def test_only_signatures_are_published_and_they_say_what_the_tree_was_held_to(world: World) -> None:
    revision = world.publish()
    before = world.hub.files("v1")
    assert world.sign(revision, dry_run=True) is None
    assert world.hub.files("v1") == before
    done = world.sign(revision)
    after = world.hub.files("v1")
    assert after.keys() - before.keys() == SIGNATURES
    assert {name: after[name] for name in before} == before
    assert world.hub.branches["v1"] == done.branches[0].commit
    evidence = {"run": f"https://github.com/{OWN}/actions/runs/41", "commit": SHA, "revision": revision}
    assert claimed_statement(after["build/kci-attestation.sigstore.json"]).predicate["evidence"] == evidence
    daily = kci("compat", "signatures", world.folder / "repository")
    assert daily.code == 0, daily.stdout + daily.stderr
    assert f"signed again: commit {SHA}, revision {revision}, run https://github.com/{OWN}/actions/runs/41" in (
        " ".join(daily.stdout.split())
    )


def signed_before(world: World, workflow: str = OLD) -> str:
    world.sigstore.claims["job_workflow_ref"] = workflow
    os.environ["GITHUB_WORKFLOW_REF"] = workflow
    done = kci("sign", world.tree, "--repository", OWN)
    os.environ.pop("GITHUB_WORKFLOW_REF")
    assert done.code == 0, done.stderr
    world.sigstore.claims["job_workflow_ref"] = NOW
    return world.publish()


@pytest.fixture
def signed_here(world: World) -> World:
    """The tree of the kernel is where kci.toml says who signs."""
    shutil.copy(world.settings, world.folder / "kci.toml")
    shutil.copy(world.settings.with_name("sigstore.json"), world.folder)
    return world


def test_the_old_signature_of_a_named_workflow_is_evidence_too(signed_here: World) -> None:
    revision = signed_before(signed_here)
    before = signed_here.hub.files("v1")
    signed_here.sign(revision, OLD, built="nothing")
    after = signed_here.hub.files("v1")
    assert {name for name in after if after[name] != before[name]} == SIGNATURES
    said = claimed_statement(after["build/kci-attestation.sigstore.json"]).predicate
    assert (said["workflow"], said["evidence"]) == (NOW, {"signature": OLD, "revision": revision})
    assert signed_here.asked == []


def test_a_signature_of_another_workflow_or_of_other_bytes_is_no_evidence(signed_here: World) -> None:
    revision = signed_before(signed_here, OLD.replace("v1", "v0"))
    with pytest.raises(FindingsError, match=r"is not what .*@refs/tags/v1 signed: the attestation does not count"):
        signed_here.sign(revision, OLD)
    revision = signed_here.publish(**{"build/CARD.md": b"# another"})
    with pytest.raises(FindingsError, match=r"CARD\.md is there and was not signed"):
        signed_here.sign(revision, OLD.replace("v1", "v0"))


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        ("", "'' is no evidence"),
        ("0", "is no evidence"),
        ("41; echo", "is no evidence"),
        ("https://github.com/evil/kernels/actions/runs/41", "is no evidence"),
        (OLD.replace(OWN, "evil/kernels"), "is of another repository than acme/kernels"),
        (OLD.replace("tags/v1", "heads/topic"), "a workflow of refs/heads/topic is no evidence"),
        ("42", "HTTP 404"),
    ],
)
def test_what_is_no_evidence_of_this_repository_is_refused(world: World, evidence: str, why: str) -> None:
    refused(world, world.publish(), why, evidence)


def refused(world: World, revision: str, why: str, evidence: str = "41", built: str = "built") -> None:
    before = dict(world.hub.branches)
    with pytest.raises((FindingsError, UsageError), match=why):
        world.sign(revision, evidence, built)
    assert world.hub.branches == before
    assert world.sigstore.asked == []


@pytest.mark.parametrize(
    ("run", "status", "why"),
    [
        ({"event": "pull_request"}, "ahead", "for pull_request"),
        ({"path": ".github/workflows/other.yml"}, "ahead", "one of .github/workflows/other.yml"),
        ({}, "diverged", "not in the history of refs/heads/main"),
        ({}, "behind", "not in the history of refs/heads/main"),
    ],
)
def test_a_run_counts_that_is_of_reviewed_code(world: World, run: dict[str, str], status: str, why: str) -> None:
    assert world.run is not None
    world.run |= run
    world.status = status
    refused(world, world.publish(), why)


def test_other_bytes_than_the_run_built_are_refused(world: World) -> None:
    (world.folder / "built" / "torch-cpu" / "_ops.py").write_text("another")
    refused(world, world.publish(), r"is not what run 41 built: torch-cpu/_ops\.py")


def test_a_file_that_no_manifest_names_is_held_to_the_run_too(world: World) -> None:
    refused(world, world.publish(**{"build/CARD.md": b"# another"}), r"is not what run 41 built: CARD\.md")


def test_a_tree_that_is_damaged_is_refused(world: World) -> None:
    refused(world, world.publish(**{"build/torch-cpu/added.py": b""}), "does not meet the requirements")


def test_a_run_whose_tree_is_gone_is_missing_evidence(world: World) -> None:
    refused(world, world.publish(), "run 41 has no tree of this kernel", built="nothing")


def test_another_kernel_is_not_signed(world: World) -> None:
    build = world.folder / "repository" / "gated-norm" / "build.toml"
    build.write_text(build.read_text().replace('name = "gated-norm"', 'name = "other-norm"'))
    refused(world, world.publish(), "is 'gated-norm', not other-norm")


@pytest.mark.parametrize("revision", ["v1", "", "A" * 40, "a" * 39])
def test_a_revision_is_a_full_commit(world: World, revision: str) -> None:
    world.publish()
    refused(world, revision, "is not a full commit")


def test_a_branch_that_has_moved_on_is_left_alone(world: World, hub: FakeHub) -> None:
    revision = world.publish()
    world.publish(**{"README.md": b"more"})
    refused(world, revision, "v1 of acme/gated-norm is at .*, not at")
    revision = world.hub.branches["v1"]
    hub.once(r"POST .*/commit/", lambda: world.publish(**{"README.md": b"meanwhile"}) and None)
    with pytest.raises(FindingsError, match="and what is to be added is about"):
        world.sign(revision)
    assert not SIGNATURES & world.hub.files("v1").keys()


def test_a_signature_that_kci_toml_would_not_take_is_not_published(world: World) -> None:
    world.settings.write_text(world.settings.read_text() + f'workflow = "{OLD}"\n')
    revision = world.publish()
    with pytest.raises(FindingsError, match="would not take the signature"):
        world.sign(revision)
    assert world.hub.branches["v1"] == revision


def test_the_action_takes_what_a_dispatch_gives_as_data(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    action, revision = load("publish"), world.publish()
    (world.folder / "temp").mkdir()
    given = {"RUNNER_TEMP": str(world.folder / "temp"), "GITHUB_OUTPUT": str(world.folder / "output")}
    given |= {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REF": "refs/heads/main", "GITHUB_REPOSITORY": OWN}
    given |= {"GITHUB_SHA": COMMIT, "GITHUB_WORKFLOW_REF": NOW, "KCI_INPUT_TREE": str(world.folder / "built")}
    given |= {"KCI_INPUT_KERNEL": str(world.folder / "repository"), "KCI_INPUT_AGAIN": revision}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(action.GitHubApi, "ask", lambda _self, *words: world.answer(["", "", "", "", words[1]]).stdout)
    for name, evidence in (("$(id)", "41"), ("gated-norm", "")):
        monkeypatch.setenv("KCI_INPUT_NAME", name)
        monkeypatch.setenv("KCI_INPUT_EVIDENCE", evidence)
        with pytest.raises(SystemExit) as ended:
            action.main()
        assert ended.value.code == 2
        assert world.hub.branches["v1"] == revision
    monkeypatch.setenv("KCI_INPUT_EVIDENCE", "41")
    action.main()
    assert world.hub.files("v1").keys() >= SIGNATURES
