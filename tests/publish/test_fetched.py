"""What is published, fetched with the Hub's own program and verified."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.runner import Result, ended, kci
from conftest import ran
from outside_tools import program
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, hub, hub_environment, make_tree, publish
from tree.own_sigstore import OwnSigstore
from tree.test_own_sigstore import OWN, sigstore

__all__ = ["hub", "sigstore"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


FETCH = f"hf download {REPO} --repo-type kernel --revision v1 --local-dir fetched".split()


@pytest.mark.slow  # the Hub's own program starts twice
def test_a_published_tree_is_fetched_and_verified(
    hub: FakeHub, here: Path, sigstore: OwnSigstore
) -> None:
    tree = make_tree(here)
    ended(kci("sign", tree, GITHUB_REPOSITORY="acme/norm"), 0)
    ended(publish(tree), 0)
    environment = {**os.environ, **hub_environment(hub, here / "fetch-home")}

    def fetched_and_verified() -> Result:
        done = ran(program(FETCH[0]), *FETCH[1:], cwd=here, env=environment)
        assert done.returncode == 0, done.stderr
        trusted = ("--signatures", *OWN, "--trust-config", "sigstore.json")
        return kci("verify", "fetched/build", *trusted)

    ended(fetched_and_verified(), 0)
    hub[REPO].add("v1", {"build/torch-cpu/__init__.py": b"evil"}, "by somebody else")
    ended(fetched_and_verified(), 1, "KCI792")
