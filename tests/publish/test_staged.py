"""What a pull request built, on a branch of its own in a staging repository; with a Hub on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kci.errors import FindingsError, UsageError
from kci.publish.publish_tree import PublishedTree, PublishRequest, publish_tree, remove_staged
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, below, hub, make_tree, publish, token  # noqa: F401  - fixtures

pytestmark = [
    pytest.mark.usefixtures("hub", "token"),
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]


def stage(tree: Path, branch: str = "pr-7", kernel: str = "gated-norm", **more: object) -> PublishedTree:
    request = PublishRequest(tree, repo_id=REPO, branch=branch, staged=kernel, **more)  # type: ignore[arg-type]
    return publish_tree(request, print)


def test_each_time_the_branch_is_made_anew_and_the_others_stay(hub: FakeHub, tmp_path: Path) -> None:  # noqa: F811
    assert publish(make_tree(tmp_path)).code == 0
    before = hub[REPO].branches["v1"], hub[REPO].files("main")
    stage(make_tree(tmp_path / "a", unique="2b3c4d5"))
    assert below(hub, "pr-7") == {"torch-cpu", "torch-cuda", "kci-manifest.json", "SHA256SUMS"}
    stage(make_tree(tmp_path / "b", ("torch-cpu",), unique="3c4d5e6"))
    assert below(hub, "pr-7") == {"torch-cpu", "kci-manifest.json", "SHA256SUMS"}, "nothing of the first push"
    assert (hub[REPO].branches["v1"], hub[REPO].files("main")) == before
    assert remove_staged(REPO, "pr-7") == f"{REPO}: removed pr-7"
    assert remove_staged(REPO, "pr-7") == f"{REPO} has no branch pr-7"
    assert hub[REPO].branches.keys() == {"main", "v1"}


@pytest.mark.parametrize("branch", ["main", "v1", "pr-0", "pr-", "refs/heads/main"])
def test_no_other_branch_is_replaced_or_removed(hub: FakeHub, tmp_path: Path, branch: str) -> None:  # noqa: F811
    assert publish(make_tree(tmp_path)).code == 0
    before = dict(hub[REPO].branches)
    with pytest.raises(UsageError, match="not the branch of a pull request"):
        stage(make_tree(tmp_path / "a", unique="2b3c4d5"), branch)
    with pytest.raises(UsageError, match="not the branch of a pull request"):
        remove_staged(REPO, branch)
    assert hub[REPO].branches == before


def test_a_tree_that_lies_about_its_kernel_stays_out(hub: FakeHub, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(FindingsError, match="'gated-norm', not relu"):
        stage(make_tree(tmp_path), kernel="relu")
    assert hub[REPO].branches.keys() == {"main"}


def test_a_dry_run_changes_nothing(hub: FakeHub, tmp_path: Path) -> None:  # noqa: F811
    stage(make_tree(tmp_path))
    before = dict(hub[REPO].branches)
    stage(make_tree(tmp_path / "a", unique="2b3c4d5"), dry_run=True)
    assert hub[REPO].branches == before


def test_a_hub_that_refuses_is_said(hub: FakeHub, tmp_path: Path) -> None:  # noqa: F811
    stage(make_tree(tmp_path))
    hub.fail(r"DELETE .*/branch/", 403)
    with pytest.raises(FindingsError, match="does not remove pr-7"):
        remove_staged(REPO, "pr-7")
