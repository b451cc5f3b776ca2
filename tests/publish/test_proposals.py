"""Pull requests on the Hub, a main branch that mirrors a kernel's first version, and what has to be
set there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import only_these
from cli.runner import Result, kci
from conftest import add_package
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import open_workspace
from kci.publish.branch_plan import read_release
from kci.publish.hub_branch import HubKernel
from kci.publish.publish import PublishedBranch, Publisher, PublishState
from kci.publish.targets import hub_settings, require_branches
from publish.fake_hub import STRANGER, FakeHub
from publish.test_publish import OTHER, REPO, hub, make_tree, there

__all__ = ["hub"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", STRANGER)


def publish(tree: Path, *options: str) -> Result:
    return kci("publish", str(tree), "--repo-id", REPO, "--create-pr", *options)


def propose(tree: Path) -> PublishedBranch:
    publisher = Publisher(
        HubKernel(REPO, lambda: STRANGER), REPO, propose=True, wait=lambda _seconds: None
    )
    return publisher.publish(read_release(tree), "v1")[0]


@pytest.fixture
def branch(hub: FakeHub) -> str:
    """The branch of version 1, which somebody who may write has made; its head."""
    theirs = {**there(OTHER), f"build/{OTHER}/x": b"1"}
    return hub[REPO].write("v1", {**hub[REPO].files("main"), **theirs}, "another variant")


def test_who_may_not_write_proposes(
    hub: FakeHub, stranger: None, branch: str, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path)
    assert kci("publish", str(tree), "--repo-id", REPO).code == 1, (
        "without the option it is refused"
    )
    done = publish(tree)
    assert done.code == 0, done.stderr
    assert f"{REPO}@v1: proposed at " in done.stdout
    assert " in refs/pr/1; " in done.stdout
    assert hub[REPO].branches["v1"] == branch, "nothing changes before somebody has accepted it"
    proposed = hub[REPO].commits[hub[REPO].proposals["refs/pr/1"]]
    assert {"build/torch-cpu/metadata.json", f"build/{OTHER}/x"} <= proposed.keys()


def test_the_same_again_opens_no_second_one(
    hub: FakeHub, stranger: None, branch: str, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path)
    first, second = publish(tree), publish(tree)
    assert (first.code, second.code) == (0, 0), second.stderr
    assert first.stdout == second.stdout
    assert " in refs/pr/1; " in second.stdout
    assert len(hub[REPO].proposals) == 1
    publish(make_tree(tmp_path / "other", unique="other"), "--leave-out", "allow")
    assert len(hub[REPO].proposals) == 2, "other builds are another proposal"


def test_what_was_accepted_is_not_proposed_again(
    hub: FakeHub, stranger: None, branch: str, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path)
    publish(tree)
    hub[REPO].branches["v1"] = hub[REPO].proposals["refs/pr/1"]
    assert "unchanged at " in publish(tree).stdout


def test_a_lost_reply_opens_no_second_one(hub: FakeHub, branch: str, tmp_path: Path) -> None:
    hub.fail("POST .*/commit/", None, after=True)
    done = propose(make_tree(tmp_path))
    assert (done.state, done.proposal) == (PublishState.PROPOSED, "refs/pr/1")
    assert len(hub[REPO].proposals) == 1


def test_a_pull_request_needs_the_branch(hub: FakeHub, stranger: None, tmp_path: Path) -> None:
    done = publish(make_tree(tmp_path))
    assert (done.code, f"{REPO} has no branch v1: 403" in done.stderr) == (1, True)
    assert f"make it first, as an account that may write to {REPO}" in done.stderr
    assert hub[REPO].proposals == {}


NOARCH = """[general]
name = "{name}"
version = {version}
edition = 5
license = "MIT"
backends = ["cpu"]
hub.repo-id = "{repo}"
[torch-noarch]
"""


@pytest.mark.parametrize(
    ("setting", "proposed"), [("true", True), ('["gated-norm"]', True), ('["gated"]', False)]
)
def test_kci_toml_says_which_kernels_are_proposed(
    setting: str,
    proposed: bool,
    hub: FakeHub,
    branch: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kci.toml").write_text(f"[publish]\npull-request = {setting}\n")
    monkeypatch.chdir(tmp_path / "mine")
    done = kci("publish", str(make_tree(tmp_path / "fetched")), "--repo-id", REPO)
    assert (f"{REPO}@v1: proposed at " in done.stdout) is proposed, done.stderr
    assert (hub[REPO].branches["v1"] == branch) is proposed


@pytest.mark.rule("KCI816", triggers=True)
def test_a_branch_that_lacks_is_found_before_anything_is_built(
    hub: FakeHub, branch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    kernels = {
        "has-it": (1, REPO),
        "lacks-it": (2, REPO),
        "commits": (2, REPO),
        "unseen": (3, "acme/hidden"),
    }
    for name, (version, repo) in kernels.items():
        package = tmp_path / name / "torch-ext" / name.replace("-", "_")
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (tmp_path / name / "build.toml").write_text(
            NOARCH.format(name=name, version=version, repo=repo)
        )
    (tmp_path / "kci.toml").write_text(
        '[publish]\npull-request = ["has-it", "lacks-it", "unseen"]\n'
    )
    checked = require_branches(open_workspace([str(tmp_path)]))
    assert [kernel.build.name for kernel in checked.kernels] == ["commits", "has-it", "unseen"]
    ((found,),) = [item.diagnostics for item in checked.unread]
    assert (found.rule, found.line) == ("KCI816", 3)
    assert f"kernels/{REPO} has no branch v2" in found.message
    assert [item.kernel for item in plan_run(checked, PlanRequest()).plan.faulty] == ["lacks-it"]


@pytest.mark.rule("KCI816", triggers=False)
def test_nothing_is_asked_where_nothing_is_proposed(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    (tmp_path / "build.toml").write_text(NOARCH.format(name="ab", version=2, repo=REPO))
    assert require_branches(open_workspace([str(tmp_path)])).unread == ()
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
        done = kci("publish", str(tree), "--repo-id", REPO)
        assert done.code == 0, done.stderr
        assert [f"@{name}: {state}" in done.stdout for name in ("v1", "main")] == [True, True]
    builds = {
        path: data for path, data in hub[REPO].files("v1").items() if path.startswith("build/")
    }
    there = hub[REPO].files("main")
    assert builds.items() <= there.items()
    assert there["README.md"] == b"# gated-norm\n"
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
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    settings: str,
    options: tuple[str, ...],
) -> None:
    mirrored(tmp_path, monkeypatch, settings)
    done = kci(
        "publish", str(make_tree(tmp_path / "made", version=version)), "--repo-id", REPO, *options
    )
    assert done.code == 0, done.stderr
    assert not any(path.startswith("build/") for path in hub[REPO].files("main"))


# --- what has to be set ---

BUILD = (
    '[general]\nname = "{0}"\nversion = 2\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    "{1}[torch-noarch]\n"
)


def test_the_doctor_lists_the_trusted_publishers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, more in (
        ("one", ""),
        ("two", '[general.hub]\nrepo-id = "vendor/second"\nbranch = "b"\n'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "build.toml").write_text(BUILD.format(name, more))
        add_package(tmp_path / name)
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
    assert repositories == [
        "one: kernels/acme/one, branch v2",
        "two: kernels/vendor/second, branch b",
    ]
    assert "- two: kernels/vendor/second, branch b" in kci("doctor").stdout
