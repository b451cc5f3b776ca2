"""What makes way for a tree on a branch, and what does not: another version, a newer tree, what it
leaves out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from act.harness import commit_all
from cli.runner import Result, ended, kci
from conftest import AT_TOP
from kci.tree.identity import provenance
from publish.fake_hub import FakeHub
from publish.test_publish import (
    REPO,
    below,
    hub,
    kernel_dir,
    make_tree,
    publish,
    published,
    there,
    tree,
)

__all__ = ["hub", "tree"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

OLD, NEW = "a" * 40, "b" * 40
OLDER = "9999999"


def refused(done: Result, rule: str, *words: str) -> None:
    ended(done, 1, f"error[{rule}]", *words)


def settings(place: Path, more: str = "") -> Path:
    """A repository with a kernel and a kci.toml."""
    (place / ".git").mkdir(parents=True)
    (place / "kci.toml").write_text(f'[publish]\nrepo-prefix = "acme"\n{more}')
    return kernel_dir(place)


def of_commit(place: Path, commit: str, committed: int, **more: Any) -> Path:
    """A tree of a commit, which was made at this time."""
    return make_tree(place / commit, unique=commit[:7], commit=commit, committed=committed, **more)


# --- another version ---


@pytest.mark.parametrize("published", [True, False])
def test_a_version_does_not_go_on_the_branch_of_another_one(
    hub: FakeHub, tmp_path: Path, published: bool
) -> None:
    if published:
        ended(publish(make_tree(tmp_path / "2", version=2)), 0)
    before = dict(hub[REPO].branches)
    told = "gated-norm is version 1, and v2 is the branch of another version"
    ended(publish(make_tree(tmp_path / "1"), "--branch", "v2"), 2, told)
    assert hub[REPO].branches == before


@pytest.mark.rule("KCI813", triggers=True)
@pytest.mark.parametrize("manifest", [True, False], ids=["with a manifest", "of another builder"])
def test_a_constant_branch_is_refused_at_a_bump(
    hub: FakeHub, tmp_path: Path, manifest: bool
) -> None:
    kernel = settings(tmp_path / "repository", 'branch = "stable"\n')
    if manifest:
        make_tree(tmp_path / "1", into=kernel / "build")
        ended(kci("publish", kernel), 0)
    else:
        hub[REPO].write("stable", there("torch-cpu"), "by another builder")
    head = hub[REPO].branches["stable"]
    build = kernel / "build.toml"
    build.write_text(build.read_text().replace("version = 1", "version = 2"))
    done = kci("publish", make_tree(tmp_path / "2", version=2), "--kernel", kernel)
    told = "stable has version 1 of gated-norm, and the tree is version 2"
    refused(done, "KCI813", told, '"v{version}"')
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
    for backend in ("cpu", "xpu", "rocm"):
        hub[REPO].add("v1", there(f"torch-{backend}", unique=OLDER), "of other sources")
    return settings(tmp_path / "repository")


@pytest.mark.rule("KCI814", triggers=True)
@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["", "dry run"])
def test_what_is_left_out_and_published_asks_for_a_decision(
    hub: FakeHub, left: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    head = hub[REPO].branches["v1"]
    done = kci("publish", make_tree(tmp_path), "--kernel", left, *options)
    told = f"{REPO}@v1 has 1 variant of other sources that this tree leaves out: torch-xpu\n"
    refused(done, "KCI814", told, "`leave-out` in [publish] of kci.toml")
    assert hub[REPO].branches["v1"] == head
    assert hub.asked("^(POST|PUT) ") == []


@pytest.mark.rule("KCI814", triggers=False)
@pytest.mark.parametrize("how", ["kci.toml", "option"])
@pytest.mark.parametrize("decided", ["allow", "remove"])
def test_what_was_decided_is_done(
    hub: FakeHub, left: Path, tmp_path: Path, how: str, decided: str
) -> None:
    options = ("--leave-out", decided) if how == "option" else ()
    if not options:
        with (left.parent / "kci.toml").open("a") as file:
            file.write(f'leave-out = "{decided}"\n')
    done = kci("publish", make_tree(tmp_path), "--kernel", left, *options)
    said = ended(done, 0, "1 variant of other sources that this tree leaves out: torch-xpu; ")
    # rocm is none of the kernel's backends any more: that is what `prune` is about.
    assert {"torch-cpu", "torch-cuda", "torch-rocm"} <= below(hub)
    assert ("torch-xpu" in below(hub)) == (decided == "allow")
    kept = decided == "allow"
    assert ("kept, not in the tree: torch-xpu" if kept else "removed: torch-xpu") in said


@pytest.mark.rule("KCI814", triggers=True)
def test_a_variant_that_says_nothing_of_its_sources_is_of_others(hub: FakeHub, tree: Path) -> None:
    early = {"build/torch-rocm/metadata.json": b'{"python-depends": []}'}
    hub[REPO].write("v1", early, "of an early builder")
    refused(publish(tree), "KCI814", "torch-rocm", "with --kernel, only those count")
    published(tree, "--leave-out", "allow")


def test_what_the_mirror_would_refuse_is_refused_before_the_branch(
    hub: FakeHub, tmp_path: Path
) -> None:
    kernel = settings(tmp_path / "repository", "mirror = true\n")
    hub[REPO].write("v1", hub[REPO].files("main"), "empty")
    hub[REPO].write("main", there("torch-xpu", unique=OLDER), "the mirror")
    done = kci("publish", make_tree(tmp_path), "--kernel", kernel)
    refused(done, "KCI814", f"{REPO}@main has 1 variant")
    assert hub.asked("^(POST|PUT) ") == []


# --- older trees ---

THEIRS = "torch-cpu, torch-cuda, built from commit bbbbbbbbbbbb of 2025-10-09 08:53"


@pytest.fixture
def newer(hub: FakeHub, tmp_path: Path) -> bytes:
    """The newer of two trees is published; its manifest."""
    published(of_commit(tmp_path / "new", NEW, 1_760_000_000))
    return hub[REPO].files("v1")["build/kci-manifest.json"]


@pytest.mark.rule("KCI815", triggers=True)
def test_an_older_tree_does_not_replace_a_newer_one(
    hub: FakeHub, newer: bytes, tmp_path: Path
) -> None:
    old = of_commit(tmp_path / "old", OLD, 1_750_000_000)
    refused(publish(old), "KCI815", f"{THEIRS}, would be replaced", "aaaaaaaaaaaa of 2025-06-15")
    refused(publish(old, "--dry-run"), "KCI815", "--older")
    assert hub[REPO].files("v1")["build/kci-manifest.json"] == newer
    ended(publish(old, "--older"), 0, f"{REPO}@v1 is newer than the tree")
    assert OLD.encode() in hub[REPO].files("v1")["build/kci-manifest.json"]


@pytest.mark.parametrize("manifest", [True, False], ids=["with a manifest", "of another builder"])
@pytest.mark.parametrize("made", [True, False], ids=["", "without the branch"])
def test_a_main_branch_at_a_version_is_no_other_version(
    hub: FakeHub, tmp_path: Path, manifest: bool, made: bool
) -> None:
    """Such as after `git push origin v2:main`."""
    published(of_commit(tmp_path / "new", NEW, 2000, version=2))
    repository = hub[REPO]
    if not manifest:
        kept = dict(repository.files("v2"))
        del kept["build/kci-manifest.json"]
        repository.branches["v2"] = ""
        repository.write("v2", kept, "no manifest")
    repository.branches["main"] = repository.branches["v2"]
    if not made:
        del repository.branches["v2"]
    old = of_commit(tmp_path / "old", OLD, 1000, version=2, variants=("torch-cpu",))
    rule, named = ("KCI815", "torch-cpu") if manifest else ("KCI814", "torch-cuda")
    refused(publish(old), rule, named)
    published(make_tree(tmp_path / "3", ("torch-cpu",), version=3))
    assert below(hub, "v3") == {"torch-cpu", *AT_TOP}, "what is of another version stays out"


@pytest.mark.rule("KCI815", triggers=False)
def test_a_newer_tree_says_what_makes_way_for_it(
    hub: FakeHub, newer: bytes, tmp_path: Path
) -> None:
    newest = of_commit(tmp_path / "newest", OLD, 1_770_000_000)
    ended(publish(newest), 0, f"{THEIRS}, are replaced")


def test_an_older_build_of_the_same_inputs_is_not_older(hub: FakeHub, tmp_path: Path) -> None:
    """Nothing of the kernel has changed since: a run that builds everything made the newer one."""
    prints = {"torch-cpu": "c" * 64, "torch-cuda": "d" * 64}
    published(of_commit(tmp_path / "new", NEW, 1_760_000_000, prints=prints))
    other = prints | {"torch-cpu": "e" * 64}
    changed = of_commit(tmp_path / "changed", OLD, 1_750_000_000, prints=other)
    refused(publish(changed), "KCI815", "torch-cpu, built from")
    published(of_commit(tmp_path / "old", OLD, 1_750_000_000, prints=prints))


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
    options = ("--kernel", kernel)
    published(trees[1], *options)
    refused(publish(trees[0], *options), "KCI815", commits[0][:12], commits[1][:12])
    published(trees[0], *options, "--older")
    published(trees[1], *options)
