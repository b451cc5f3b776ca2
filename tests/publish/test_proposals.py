"""Pull requests on the Hub, a main branch that mirrors a kernel's first version, and what has to be
set there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import only_these
from cli.runner import Result, ended, kci
from conftest import only, write_noarch
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import open_workspace
from kci.publish.branch_plan import read_release
from kci.publish.hub_branch import HubKernel
from kci.publish.publish import Publisher, PublishState
from kci.publish.targets import hub_settings, require_branches
from publish.fake_hub import STRANGER, FakeHub
from publish.test_publish import OTHER, REPO, hub, make_tree, there, tree

__all__ = ["hub", "tree"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def publish(tree: Path, *options: str) -> Result:
    """As somebody who may not write."""
    return kci("publish", tree, "--repo-id", REPO, "--create-pr", *options, HF_TOKEN=STRANGER)


@pytest.fixture
def branch(hub: FakeHub) -> str:
    """The branch of version 1, which somebody who may write has made; its head."""
    return hub[REPO].add("v1", {**there(OTHER), f"build/{OTHER}/x": b"1"}, "another variant")


def test_who_may_not_write_proposes(hub: FakeHub, branch: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path)
    refused = kci("publish", tree, "--repo-id", REPO, HF_TOKEN=STRANGER)
    assert refused.code == 1, "without the option"
    said = ended(publish(tree), 0)
    assert said.startswith(f"{REPO}@v1: proposed at ")
    assert " in refs/pr/1; " in said
    assert hub[REPO].branches["v1"] == branch, "nothing changes before somebody has accepted it"
    proposed = hub[REPO].proposals["refs/pr/1"]
    assert {"build/torch-cpu/metadata.json", f"build/{OTHER}/x"} <= hub[REPO].commits[
        proposed
    ].keys()
    assert publish(tree).stdout == said
    assert len(hub[REPO].proposals) == 1, "the same again opens no second one"
    publish(make_tree(tmp_path / "other", unique="other"), "--leave-out", "allow")
    assert len(hub[REPO].proposals) == 2, "other builds are another proposal"
    hub[REPO].branches["v1"] = proposed
    assert "unchanged at " in publish(tree).stdout, "what was accepted is not proposed again"


def test_a_lost_reply_opens_no_second_one(hub: FakeHub, branch: str, tree: Path) -> None:
    hub.fail("POST .*/commit/", None, after=True)
    stranger = HubKernel(REPO, lambda: STRANGER)
    publisher = Publisher(stranger, REPO, propose=True, wait=lambda _seconds: None)
    (done,) = publisher.publish(read_release(tree), "v1")
    assert (done.state, done.proposal) == (PublishState.PROPOSED, "refs/pr/1")
    assert len(hub[REPO].proposals) == 1


def test_a_pull_request_needs_the_branch(hub: FakeHub, tree: Path) -> None:
    told = f"make it first, as an account that may write to {REPO}"
    ended(publish(tree), 1, f"{REPO} has no branch v1: 403", told)
    assert hub[REPO].proposals == {}


def versioned(place: Path, version: int, hub: str) -> Path:
    """A kernel with the name of its folder, of a version, and where it is published."""
    write_noarch(place, place.name, general=hub)
    build = place / "build.toml"
    build.write_text(build.read_text().replace("version = 1", f"version = {version}"))
    return place


@pytest.mark.parametrize(
    ("setting", "proposed"), [("true", True), ('["gated-norm"]', True), ('["gated"]', False)]
)
def test_kci_toml_says_which_kernels_are_proposed(
    setting: str, proposed: bool, hub: FakeHub, branch: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kci.toml").write_text(f"[publish]\npull-request = {setting}\n")
    monkeypatch.chdir(tmp_path / "mine")
    done = kci("publish", make_tree(tmp_path / "fetched"), "--repo-id", REPO)
    assert (f"{REPO}@v1: proposed at " in done.stdout) is proposed, done.stderr
    assert (hub[REPO].branches["v1"] == branch) is proposed


@pytest.mark.rule("KCI816", triggers=True)
def test_a_branch_that_lacks_is_found_before_anything_is_built(
    hub: FakeHub, branch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    kernels = {"has-it": (1, REPO), "lacks-it": (2, REPO), "commits": (2, REPO)}
    for name, (version, repo) in (kernels | {"unseen": (3, "acme/hidden")}).items():
        versioned(tmp_path / name, version, f'hub.repo-id = "{repo}"\n')
    proposed = '[publish]\npull-request = ["has-it", "lacks-it", "unseen"]\n'
    (tmp_path / "kci.toml").write_text(proposed)
    checked = require_branches(open_workspace([str(tmp_path)]))
    assert [kernel.build.name for kernel in checked.kernels] == ["commits", "has-it", "unseen"]
    (unread,) = checked.unread
    found = only(unread.diagnostics, "KCI816", f"kernels/{REPO} has no branch v2")
    assert found.line == 3
    assert [item.kernel for item in plan_run(checked, PlanRequest()).plan.faulty] == ["lacks-it"]


@pytest.mark.rule("KCI816", triggers=False)
def test_nothing_is_asked_where_nothing_is_proposed(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    kernel = versioned(tmp_path / "ab", 2, f'hub.repo-id = "{REPO}"\n')
    assert require_branches(open_workspace([str(kernel)])).unread == ()
    assert hub.log == []


# --- the main branch as a mirror ---


def mirrored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str = "mirror = true"
) -> None:
    (tmp_path / "own" / "kernels").mkdir(parents=True)
    (tmp_path / "own" / "kci.toml").write_text(f"[publish]\n{settings}\n")
    monkeypatch.chdir(tmp_path / "own" / "kernels")


def test_main_has_the_first_version_too_where_kci_toml_says_so(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored(tmp_path, monkeypatch)
    tree = make_tree(tmp_path / "made")
    (tree / "CARD.md").write_text("# gated-norm\n")
    for state in ("published", "unchanged"):
        said = ended(kci("publish", tree, "--repo-id", REPO), 0)
        assert [f"@{name}: {state}" in said for name in ("v1", "main")] == [True, True]
    version, main = hub[REPO].files("v1"), hub[REPO].files("main")
    builds = {path: data for path, data in version.items() if path.startswith("build/")}
    assert builds.items() <= main.items()
    assert main["README.md"] == b"# gated-norm\n"
    assert [path.rsplit("/", 1)[1] for path in hub.asked(r"POST .*/commit/")] == ["v1", "main"]


@pytest.mark.parametrize(
    ("version", "settings", "options"),
    [
        (2, "mirror = true", ()),
        (1, 'mirror = true\nbranch = "own"', ()),
        (1, "mirror = true", ("--branch", "own")),
        (1, "", ()),
    ],
)
def test_nothing_else_is_mirrored(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, settings: str,
    options: tuple[str, ...],
) -> None:  # fmt: skip
    mirrored(tmp_path, monkeypatch, settings)
    tree = make_tree(tmp_path / "made", version=version)
    ended(kci("publish", tree, "--repo-id", REPO, *options), 0)
    assert not any(path.startswith("build/") for path in hub[REPO].files("main"))


# --- what has to be set ---


def test_the_doctor_lists_the_trusted_publishers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versioned(tmp_path / "one", 2, "")
    versioned(tmp_path / "two", 2, 'hub.repo-id = "vendor/second"\nhub.branch = "b"\n')
    monkeypatch.chdir(tmp_path)
    only_these(monkeypatch, tmp_path, "git")  # no compiler is asked for its version

    def said() -> list[str]:
        return hub_settings(open_workspace(["."]))

    assert said() == []
    settings = tmp_path / "kci.toml"
    settings.write_text('[publish]\nenvironment = "release"\ntags = ["r*"]\n')
    assert "one: nothing says where one is published" in said()[-2]
    settings.write_text(settings.read_text() + 'repo-prefix = "acme"\n')
    environment, publisher, _owner, *repositories = said()
    assert ("`release`" in environment, "`r*`" in environment) == (True, True)
    assert ("`kci-publish.yml`" in publisher, "`release`" in publisher) == (True, True)
    second = "two: kernels/vendor/second, branch b"
    assert repositories == ["one: kernels/acme/one, branch v2", second]
    assert f"- {second}" in kci("doctor").stdout
