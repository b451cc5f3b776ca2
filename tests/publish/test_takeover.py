"""What makes way for a tree on a branch, and what does not: another version, a newer tree, what it
leaves out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from act.harness import commit_all
from cli.runner import Result, kci
from kci.tree.identity import provenance
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, below, hub, kernel_dir, make_tree, publish, published, there

__all__ = ["hub"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

OLD, NEW = "a" * 40, "b" * 40
OLDER = "9999999"


def refused(done: Result, rule: str, *words: str) -> None:
    assert done.code == 1, done.stderr + done.stdout
    assert [word for word in (f"error[{rule}]", *words) if word not in done.stderr] == []


def settings(place: Path, text: str, kernel: str = "") -> Path:
    """A repository with a kernel and a kci.toml."""
    (place / ".git").mkdir(parents=True)
    (place / "kci.toml").write_text(text)
    return kernel_dir(place, kernel)


# --- another version ---


@pytest.mark.parametrize("published", [True, False])
def test_a_version_does_not_go_on_the_branch_of_another_one(
    hub: FakeHub, tmp_path: Path, published: bool
) -> None:
    if published:
        assert publish(make_tree(tmp_path / "2", version=2)).code == 0
    before = dict(hub[REPO].branches)
    done = publish(make_tree(tmp_path / "1"), "--branch", "v2")
    assert (
        done.code,
        "gated-norm is version 1, and v2 is the branch of another version" in done.stderr,
    ) == (2, True)
    assert hub[REPO].branches == before


@pytest.mark.rule("KCI813", triggers=True)
@pytest.mark.parametrize("manifest", [True, False], ids=["with a manifest", "of another builder"])
def test_a_constant_branch_is_refused_at_a_bump(
    hub: FakeHub, tmp_path: Path, manifest: bool
) -> None:
    kernel = settings(
        tmp_path / "repository", '[publish]\nrepo-prefix = "acme"\nbranch = "stable"\n'
    )
    if manifest:
        make_tree(tmp_path / "1", into=kernel / "build")
        assert kci("publish", kernel).code == 0
    else:
        hub[REPO].write("stable", there("torch-cpu"), "by another builder")
    head = hub[REPO].branches["stable"]
    (kernel / "build.toml").write_text(
        (kernel / "build.toml").read_text().replace("version = 1", "version = 2")
    )
    done = kci("publish", make_tree(tmp_path / "2", version=2), "--kernel", kernel)
    refused(
        done,
        "KCI813",
        "stable has version 1 of gated-norm, and the tree is version 2",
        '"v{version}"',
    )
    assert hub[REPO].branches["stable"] == head


@pytest.mark.rule("KCI813", triggers=False)
def test_what_lies_wrongly_on_the_branch_of_a_version_makes_way(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub[REPO].write("v2", {**there("torch-cpu"), **there("torch-cuda")}, "version 1, by mistake")
    published(make_tree(tmp_path, version=2))
    assert b'"version": 2' in hub[REPO].files("v2")["build/torch-cpu/metadata.json"]


# --- variants that the tree leaves out ---


@pytest.fixture
def left(hub: FakeHub, tmp_path: Path) -> Path:
    """A kernel for cpu, cuda and xpu whose older builds are published; of a backend that it had
    once, too.
    """
    older = [there(f"torch-{backend}", unique=OLDER) for backend in ("cpu", "xpu", "rocm")]
    hub[REPO].write(
        "v1", {path: data for files in older for path, data in files.items()}, "of other sources"
    )
    return settings(tmp_path / "repository", '[publish]\nrepo-prefix = "acme"\n')


@pytest.mark.rule("KCI814", triggers=True)
@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["", "dry run"])
def test_what_is_left_out_and_published_asks_for_a_decision(
    hub: FakeHub, left: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    head = hub[REPO].branches["v1"]
    done = kci("publish", make_tree(tmp_path), "--kernel", left, *options)
    refused(
        done,
        "KCI814",
        f"{REPO}@v1 has 1 variant of other sources that this tree leaves out: torch-xpu\n",
    )
    assert "`leave-out` in [publish] of kci.toml" in done.stderr
    assert hub[REPO].branches["v1"] == head
    assert hub.asked("^(POST|PUT) ") == []


@pytest.mark.rule("KCI814", triggers=False)
@pytest.mark.parametrize("how", ["kci.toml", "option"])
@pytest.mark.parametrize("decided", ["allow", "remove"])
def test_what_was_decided_is_done(
    hub: FakeHub, left: Path, tmp_path: Path, how: str, decided: str
) -> None:
    if how == "kci.toml":
        (left.parent / "kci.toml").write_text(
            f'[publish]\nrepo-prefix = "acme"\nleave-out = "{decided}"\n'
        )
    options = ("--leave-out", decided) if how == "option" else ()
    done = kci("publish", make_tree(tmp_path), "--kernel", left, *options)
    assert done.code == 0, done.stderr
    # rocm is none of the kernel's backends any more: that is what `prune` is about.
    assert {"torch-cpu", "torch-cuda", "torch-rocm"} <= below(hub)
    assert ("torch-xpu" in below(hub)) == (decided == "allow")
    assert (
        "kept, not in the tree: torch-xpu" if decided == "allow" else "removed: torch-xpu"
    ) in done.stdout
    assert "1 variant of other sources that this tree leaves out: torch-xpu; " in done.stderr


@pytest.mark.rule("KCI814", triggers=True)
def test_a_variant_that_says_nothing_of_its_sources_is_of_others(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub[REPO].write(
        "v1", {"build/torch-rocm/metadata.json": b'{"python-depends": []}'}, "of an early builder"
    )
    tree = make_tree(tmp_path)
    refused(publish(tree), "KCI814", "torch-rocm", "with --kernel, only those count")
    assert publish(tree, "--leave-out", "allow").code == 0


def test_what_the_mirror_would_refuse_is_refused_before_the_branch(
    hub: FakeHub, tmp_path: Path
) -> None:
    kernel = settings(tmp_path / "repository", '[publish]\nrepo-prefix = "acme"\nmirror = true\n')
    hub[REPO].write("v1", hub[REPO].files("main"), "empty")
    hub[REPO].write("main", there("torch-xpu", unique=OLDER), "the mirror")
    done = kci("publish", make_tree(tmp_path), "--kernel", kernel)
    refused(done, "KCI814", f"{REPO}@main has 1 variant")
    assert hub.asked("^(POST|PUT) ") == []


# --- older trees ---


@pytest.fixture
def newer(hub: FakeHub, tmp_path: Path) -> bytes:
    """The newer of two trees is published; its manifest."""
    done = publish(
        make_tree(tmp_path / "new", unique="1111111", commit=NEW, committed=1_760_000_000)
    )
    assert done.code == 0, done.stderr
    return hub[REPO].files("v1")["build/kci-manifest.json"]


@pytest.mark.rule("KCI815", triggers=True)
def test_an_older_tree_does_not_replace_a_newer_one(
    hub: FakeHub, newer: bytes, tmp_path: Path
) -> None:
    old = make_tree(tmp_path / "old", unique="2222222", commit=OLD, committed=1_750_000_000)
    theirs = (
        "torch-cpu, torch-cuda, built from commit bbbbbbbbbbbb of 2025-10-09 08:53, would be "
        "replaced"
    )
    refused(publish(old), "KCI815", theirs, "commit aaaaaaaaaaaa of 2025-06-15")
    refused(publish(old, "--dry-run"), "KCI815", "--older")
    assert hub[REPO].files("v1")["build/kci-manifest.json"] == newer
    done = publish(old, "--older")
    assert done.code == 0, done.stderr
    assert f"{REPO}@v1 is newer than the tree" in done.stderr
    assert OLD.encode() in hub[REPO].files("v1")["build/kci-manifest.json"]


@pytest.mark.parametrize("manifest", [True, False], ids=["with a manifest", "of another builder"])
@pytest.mark.parametrize("made", [True, False], ids=["", "without the branch"])
def test_a_main_branch_at_a_version_is_no_other_version(
    hub: FakeHub, tmp_path: Path, manifest: bool, made: bool
) -> None:
    """Such as after `git push origin v2:main`."""
    assert (
        publish(
            make_tree(tmp_path / "new", version=2, unique="1111111", commit=NEW, committed=2000)
        ).code
        == 0
    )
    if not manifest:
        kept = {
            name: data
            for name, data in hub[REPO].files("v2").items()
            if name != "build/kci-manifest.json"
        }
        hub[REPO].branches["v2"] = ""
        hub[REPO].write("v2", kept, "no manifest")
    hub[REPO].branches["main"] = hub[REPO].branches["v2"]
    if not made:
        del hub[REPO].branches["v2"]
    old = make_tree(
        tmp_path / "old", ("torch-cpu",), version=2, unique="2222222", commit=OLD, committed=1000
    )
    refused(
        publish(old), "KCI815" if manifest else "KCI814", "torch-cpu" if manifest else "torch-cuda"
    )
    third = publish(make_tree(tmp_path / "3", ("torch-cpu",), version=3))
    assert third.code == 0, third.stderr
    assert below(hub, "v3") == {"torch-cpu", "kci-manifest.json", "SHA256SUMS"}, (
        "what is of another version stays out"
    )


@pytest.mark.rule("KCI815", triggers=False)
def test_a_newer_tree_says_what_makes_way_for_it(
    hub: FakeHub, newer: bytes, tmp_path: Path
) -> None:
    done = publish(
        make_tree(tmp_path / "newest", unique="3333333", commit=OLD, committed=1_770_000_000)
    )
    assert done.code == 0, done.stderr
    assert (
        "torch-cpu, torch-cuda, built from commit bbbbbbbbbbbb of 2025-10-09 08:53, are replaced"
        in done.stderr
    )


def test_an_older_build_of_the_same_inputs_is_not_older(hub: FakeHub, tmp_path: Path) -> None:
    """Nothing of the kernel has changed since: a run that builds everything made the newer one."""
    prints = {"torch-cpu": "c" * 64, "torch-cuda": "d" * 64}
    new = make_tree(
        tmp_path / "new", unique="1111111", commit=NEW, committed=1_760_000_000, prints=prints
    )
    assert publish(new).code == 0
    changed = make_tree(
        tmp_path / "changed",
        unique="3333333",
        commit=OLD,
        committed=1_750_000_000,
        prints=prints | {"torch-cpu": "e" * 64},
    )
    refused(publish(changed), "KCI815", "torch-cpu, built from")
    old = make_tree(
        tmp_path / "old", unique="2222222", commit=OLD, committed=1_750_000_000, prints=prints
    )
    assert publish(old).code == 0


@pytest.mark.programs
@pytest.mark.rule("KCI815", triggers=True)
def test_the_history_knows_where_the_manifest_does_not(
    hub: FakeHub, tmp_path: Path, no_git_environment: None
) -> None:
    """Builds of an earlier kci, and two commits of one second."""
    kernel = kernel_dir(tmp_path)
    commits = []
    for _ in range(2):
        commit_all(tmp_path)
        state = provenance(tmp_path)
        assert state is not None
        commits.append(state.commit)
    trees = [make_tree(tmp_path / commit, unique=commit[:7], commit=commit) for commit in commits]
    options = ("--repo-id", REPO, "--kernel", str(kernel))
    assert kci("publish", trees[1], *options).code == 0
    refused(kci("publish", trees[0], *options), "KCI815", commits[0][:12], commits[1][:12])
    assert kci("publish", trees[0], *options, "--older").code == 0
    assert kci("publish", trees[1], *options).code == 0
