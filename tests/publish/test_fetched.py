"""What is published, fetched with the Hub's own program and verified."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cli.runner import kci
from outside_tools import program
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, hub, hub_environment, make_tree
from tree.own_sigstore import OwnSigstore
from tree.test_own_sigstore import OWN, sigstore

__all__ = ["hub", "sigstore"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


FETCH = f"hf download {REPO} --repo-type kernel --revision v1 --local-dir fetched".split()


@pytest.mark.slow  # the Hub's own program starts twice
def test_a_published_tree_is_fetched_and_verified(
    hub: FakeHub, sigstore: OwnSigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = make_tree(tmp_path)
    assert kci("sign", str(tree), GITHUB_REPOSITORY="acme/norm").code == 0
    assert kci("publish", str(tree), "--repo-id", REPO).code == 0
    environment = {**os.environ, **hub_environment(hub, tmp_path / "fetch-home")}

    def fetched_and_verified() -> tuple[int, str]:
        command = [program(FETCH[0]), *FETCH[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        trusted = ("--signatures", *OWN, "--trust-config", "sigstore.json")
        said = kci("verify", "fetched/build", *trusted)
        return said.code, said.stderr

    assert fetched_and_verified()[0] == 0
    name = "build/torch-cpu/__init__.py"
    hub[REPO].add("v1", {name: b"evil"}, "by somebody else")
    code, said = fetched_and_verified()
    assert code == 1
    assert "KCI792" in said
