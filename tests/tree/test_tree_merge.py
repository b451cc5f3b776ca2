"""Merging: what a tree holds, what is refused, and that order and repetition change nothing."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from cli.runner import kci
from conftest import AT_TOP, ids, only, refusal, write_torch
from kci.errors import FindingsError, UsageError
from kci.plan.plan import Plan, read_plan
from kci.tree.artifacts import CiRun
from kci.tree.identity import GitState
from kci.tree.manifest import Manifest, read_manifest
from kci.tree.merge import merge
from kci.tree.metadata import MARK
from kci.tree.verify import verify
from variants import COMMIT, CPU, CUDA, STABLE, make_variant, variant_digest
from variants import artifact_of as artifact
from variants import tree_plan as plan


def contents(tree: Path) -> dict[str, bytes | None]:
    """Every file below a tree with its bytes, and every directory."""
    return {
        path.relative_to(tree).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(tree.rglob("*"))
    }


def carried(manifest: Manifest) -> dict[str, bool]:
    """The variants of a tree in their order, and which of them were there before."""
    return {entry.variant: entry.origin.carried for entry in manifest.present}


@pytest.mark.rule("KCI606", "KCI607", "KCI713", "KCI610", "KCI611", "KCI617", triggers=False)
def test_a_tree_has_the_variants_and_a_manifest_and_nothing_else(tmp_path: Path) -> None:
    files = [artifact(tmp_path, CPU), artifact(tmp_path, STABLE, suffix=".tar.zst")]
    (manifest,) = merge(files, tmp_path / "build", plan(CPU, STABLE))
    tree = tmp_path / "build"
    assert sorted(path.name for path in tree.iterdir()) == [*AT_TOP, STABLE, CPU]
    assert (manifest.complete, manifest.missing) == (True, ())
    data = json.loads((tree / "kci-manifest.json").read_text())
    assert list(data) == [
        "schema", "created_by", "kernel", "version", "complete", "card", "planned", "present",
        "missing", "replaced",
    ]  # fmt: skip
    assert data["planned"] == [STABLE, CPU]
    first = data["present"][1]
    assert (first["variant"], first["backend"]) == (CPU, "cpu")
    assert first["digest"] == variant_digest(tree / CPU)
    assert first["origin"] == {
        "artifact": f"kci-gated-norm-{CPU}.tar", "commit": COMMIT, "dirty": False, "attempt": 1,
        "builder": "native", "committed": None, "carried": False,
    }  # fmt: skip
    assert read_manifest(tree) == manifest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert {path.stat().st_mode & 0o777 for path in (tree, tree / CPU)} == {0o755}
    before = contents(tree)
    merge(files, tree, plan(CPU, STABLE))
    assert contents(tree) == before, "merging again changes nothing"


@pytest.mark.rule("KCI608", triggers=False)
def test_the_order_of_the_artifacts_does_not_matter(tmp_path: Path) -> None:
    noarch = {"files": {"__init__.py": ""}}
    files = [
        *(artifact(tmp_path, variant) for variant in (CPU, CUDA)),
        artifact(tmp_path, "torch-cuda", folder="x86", **noarch),
        artifact(tmp_path, "torch-cuda", folder="arm", system="aarch64-linux", **noarch),
        artifact(tmp_path, CPU, folder="again", attempt=2, files={"__init__.py": "second"}),
    ]
    results = []
    for number, order in enumerate(itertools.permutations(files)):
        if number % 10 == 0:
            merge(order, tmp_path / str(number))
            results.append(contents(tmp_path / str(number)))
    assert all(result == results[0] for result in results)
    assert results[0][f"{CPU}/__init__.py"] == b"second"


def test_folders_are_searched_and_other_files_in_them_ignored(tmp_path: Path) -> None:
    artifact(tmp_path / "down", CPU)
    artifact(tmp_path / "down" / "deep", STABLE)
    for name in ("plan.json", "tree.tar", "kci-log.txt"):
        (tmp_path / "down" / name).write_text("x")
    (tmp_path / "down" / "loop").symlink_to("..")
    for folder in (tmp_path / "down").rglob("src"):
        folder.rename(tmp_path / f"moved-{folder.parent.name}")
    artifact(tmp_path / "down" / ".hidden", CUDA)
    for into in (tmp_path / "build", tmp_path / "down" / "build", tmp_path / "down" / "build"):
        (manifest,) = merge([tmp_path / "down"], into)  # the tree itself is not searched either
        assert [*carried(manifest).items()] == [(STABLE, False), (CPU, False)]
    assert (manifest.planned, manifest.complete) == (None, True)


def test_the_newest_attempt_wins_even_over_a_broken_one(tmp_path: Path) -> None:
    old = artifact(tmp_path, CPU, attempt=1, files={"__init__.py": "old"})
    new = artifact(tmp_path, CPU, attempt=10, files={"__init__.py": "new"})
    old.write_bytes(old.read_bytes()[:3000])
    (manifest,) = merge([new, old], tmp_path / "build")
    assert (tmp_path / "build" / CPU / "__init__.py").read_text() == "new"
    assert manifest.present[0].origin.attempt == 10


@pytest.mark.rule("KCI608", triggers=True)
def test_different_files_for_one_variant_name_both_origins(tmp_path: Path) -> None:
    systems = {"x": "x86_64-linux", "y": "aarch64-linux"}
    one, two = (
        artifact(tmp_path, "torch-cuda", name, files={"__init__.py": name}, system=system)
        for name, system in systems.items()
    )
    found = only(refusal(merge, [one, two], tmp_path / "build"), "KCI608", str(one), str(two))
    assert "diffoscope" in found.hint
    assert not (tmp_path / "build").exists()


@pytest.mark.rule("KCI606", triggers=True)
def test_a_missing_variant_fails_unless_it_may(tmp_path: Path) -> None:
    given = ([artifact(tmp_path, CPU)], tmp_path / "build", plan(CPU, STABLE, CUDA))
    found = refusal(merge, *given)
    assert (ids(found), STABLE in found[0].message) == (["KCI606", "KCI606"], True)
    assert not (tmp_path / "build").exists()
    (manifest,) = merge(*given, allow_partial=True)
    assert (manifest.complete, manifest.missing) == (False, (STABLE, CUDA))


@pytest.mark.rule("KCI607", triggers=True)
def test_what_is_not_planned_is_refused(tmp_path: Path) -> None:
    files = [artifact(tmp_path, variant) for variant in (CPU, CUDA)]
    files.append(artifact(tmp_path, CPU, name="relu"))
    found = refusal(merge, files, tmp_path / "build", plan(CPU))
    assert ids(found) == ["KCI607", "KCI607"]
    assert "that kernel is not planned" in "".join(item.message for item in found)


def test_what_nobody_builds_here_is_taken_from_whoever_hands_it_over(tmp_path: Path) -> None:
    """The plan of a real kernel, and a folder that a job of the repository's own made of the
    variant for macOS.
    """
    sources = {"cpu": "norm.cpp", "metal": "norm.metal"}
    kernel = write_torch(tmp_path / "gated-norm", sources, "gated-norm")
    said = json.loads(kci("plan", kernel, "--format", "json").stdout)
    left = [item["variant"] for item in said["left_out"]]
    name = next(variant for variant in left if "metal" in variant)
    assert said["kernels"][0]["elsewhere"] == left
    compact = msgspec.convert(said | {"commit": COMMIT}, Plan).tree_plan()
    assert compact.kernels[0].elsewhere == tuple(left)
    (tmp_path / "planned.json").write_bytes(msgspec.json.encode(compact))
    planned = read_plan(tmp_path / "planned.json")
    others = [artifact(tmp_path / "legs", variant) for variant in planned.kernels[0].planned]
    (manifest,) = merge(others, tmp_path / "without", planned)
    assert manifest.complete, "nobody has to hand it over"

    brought = make_variant(tmp_path / "own", name)
    (manifest,) = merge([*others, brought.parent], tmp_path / "build", planned, run=CiRun("7", 1))
    assert (manifest.complete, name in carried(manifest)) == (True, True)
    judged = {item.rule for item in verify(tmp_path / "build") if name in item.path}
    assert judged == {"KCI741"}, "its library is none"
    packed = kci("pack", brought, "--output", tmp_path / "packed", KCI_RUN="", GITHUB_RUN_ID="8")
    assert packed.code == 0, packed.stderr
    given = [*others, Path(packed.stdout.strip())]
    (again,) = merge(given, tmp_path / "again", planned, run=CiRun("7", 1))
    assert [entry.digest for entry in again.present] == [entry.digest for entry in manifest.present]

    def refused(given: Path) -> str:
        lies = tmp_path / "lies"
        found = refusal(merge, [*others, given], lies, planned, run=CiRun("7", 1))
        assert not lies.exists()
        return found[0].rule

    late = make_variant(tmp_path / "late", name, source=GitState("f" * 40, dirty=False))
    assert refused(late) == "KCI612"
    assert refused(make_variant(tmp_path / "alien", CUDA)) == "KCI607", "nobody left that out"
    assert refused(make_variant(tmp_path / "renamed", name, built_as=CUDA)) == "KCI612"
    (brought / "__init__.py").write_text("# other than what was sealed\n")
    assert refused(brought) == "KCI603"


def test_versions_must_agree_with_each_other_and_the_plan(tmp_path: Path) -> None:
    one, two = artifact(tmp_path, CPU), artifact(tmp_path, CUDA, version=2)
    with pytest.raises(FindingsError, match=r"more than one version: 1 in .*, 2 in "):
        merge([one, two], tmp_path / "build")
    with pytest.raises(FindingsError, match="2 in the plan"):
        merge([one], tmp_path / "build", plan(CPU, version=2))


def test_several_kernels_get_a_tree_each(tmp_path: Path) -> None:
    files = [artifact(tmp_path, CPU), artifact(tmp_path, CPU, name="relu", version=3)]
    manifests = merge(files, tmp_path / "trees")
    trees = [(manifest.kernel, manifest.version) for manifest in manifests]
    assert trees == [("gated-norm", 1), ("relu", 3)]
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == ["gated-norm", "relu"]
    assert (tmp_path / "trees" / "relu" / CPU / "metadata.json").is_file()
    (manifest,) = merge(files, tmp_path / "one", kernel="relu")
    assert manifest.kernel == "relu"
    assert (tmp_path / "one" / CPU / "metadata.json").is_file()
    with pytest.raises(UsageError, match="'other'"):
        merge(files, tmp_path / "one", kernel="other")


@pytest.mark.rule("KCI606", "KCI607", "KCI713", "KCI610", triggers=False)
def test_other_variants_of_the_tree_are_carried_others_replaced_whole(tmp_path: Path) -> None:
    first, tree = {"__init__.py": "", "stale.py": ""}, tmp_path / "build"
    merge([artifact(tmp_path, CPU, files=first), artifact(tmp_path, STABLE)], tree)
    (tree / "CARD.md").write_text("card")
    (tree / "benchmarks").mkdir()
    (tree / "benchmarks" / "benchmark.py").write_text("b")
    (manifest,) = merge([artifact(tmp_path, CPU, attempt=2)], tree, plan(CPU, STABLE))
    assert not (tree / CPU / "stale.py").exists()
    assert (tree / "CARD.md").read_text() == "card"
    assert (tree / "benchmarks" / "benchmark.py").is_file()
    assert [*carried(manifest).items()] == [(STABLE, True), (CPU, False)]
    assert manifest.present[0].origin.artifact == f"kci-gated-norm-{STABLE}.tar"
    assert manifest.complete


def test_a_tree_has_the_card_of_its_newest_legs_and_the_manifest_its_digest(tmp_path: Path) -> None:
    tree = tmp_path / "build"

    def card() -> str | None:
        return (tree / "CARD.md").read_text() if (tree / "CARD.md").exists() else None

    def merged(*legs: Path) -> str | None:
        (manifest,) = merge(legs, tree, plan(CPU, STABLE))
        assert read_manifest(tree) == manifest
        return manifest.card

    new = hashlib.sha256(b"# new\n").hexdigest()
    first = artifact(tmp_path, CPU, card="# old\n")
    assert merged(first, artifact(tmp_path, STABLE, attempt=2, card="# new\n")) == new
    assert card() == "# new\n"
    assert merged(artifact(tmp_path, CPU, attempt=3)) == new, "a leg that had no kernel to ask"
    assert card() == "# new\n"
    (tree / "CARD.md").write_text("# by hand\n")
    changed = [item.message for item in verify(tree) if item.rule == "KCI718"]
    assert changed == ["CARD.md changed after it was merged"]
    assert merged(artifact(tmp_path, CPU, attempt=4, card="")) is None
    assert card() is None
    (tree / "CARD.md").write_text("# by hand\n")
    merged(artifact(tmp_path, CPU, attempt=5, card=""))
    assert card() == "# by hand\n"


@pytest.mark.rule("KCI713", triggers=True)
def test_a_tree_of_another_kernel_or_version_is_not_added_to(tmp_path: Path) -> None:
    merge([artifact(tmp_path, STABLE)], tmp_path / "build")
    for changes in ({"version": 2}, {"name": "relu"}):
        other = artifact(tmp_path, CPU, folder=str(changes), **changes)
        assert refusal(merge, [other], tmp_path / "build")[0].rule == "KCI713"


@pytest.mark.rule("KCI610", triggers=True)
@pytest.mark.parametrize(
    "stranger", ["src/main.py", ".git/config", "notes.txt", "torch-cpu/readme"]
)
def test_a_directory_of_other_things_is_not_replaced(tmp_path: Path, stranger: str) -> None:
    path = tmp_path / "project" / stranger
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    found = refusal(merge, [artifact(tmp_path, CPU)], tmp_path / "project")
    only(found, "KCI610", "is not a tree")
    assert path.read_text() == "mine"


KERNEL = {"name": "relu", "path": "examples/relu", "version": 1, "planned": [CPU]}
PLAN = {"schema": 1, "tier": "release", "kernels": [KERNEL], "anything": [{"legs": 1}]}


NO_PLANS: list[dict[str, object]] = [
    {"schema": 2}, {"schema": None}, {"schema": "1"}, {"kernels": None}, {"kernels": [KERNEL] * 2},
    *({"kernels": [KERNEL | wrong]} for wrong in (
        {"planned": ["../x"]}, {"elsewhere": ["../x"]}, {"name": "../relu"}, {"planned": None},
    )),
]  # fmt: skip


@pytest.mark.rule("KCI611", triggers=True)
def test_plans_and_manifests_that_are_none_are_errors(tmp_path: Path) -> None:
    only(refusal(read_plan, tmp_path / "plan.json"), "KCI611", "cannot read")
    for change in NO_PLANS:
        (tmp_path / "plan.json").write_text(json.dumps(PLAN | change))
        only(refusal(read_plan, tmp_path / "plan.json"), "KCI611")
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    assert read_plan(tmp_path / "plan.json").kernels
    merge([artifact(tmp_path, CPU)], tmp_path / "build")
    file = tmp_path / "build" / "kci-manifest.json"
    newer = json.loads(file.read_text()) | {"schema": 2}
    for text, why in ((json.dumps(newer), "schema 2 is not known"), ("{}", "is not a manifest")):
        file.write_text(text)
        only(refusal(read_manifest, tmp_path / "build"), "KCI611", why)


@pytest.mark.rule("KCI617", triggers=True)
def test_a_part_for_ones_own_gpu_is_no_part_of_a_tree_nor_carried_along(tmp_path: Path) -> None:
    whole, partial = artifact(tmp_path, CPU), {"__init__.py": b"", MARK: b"{}\n"}
    part = artifact(tmp_path, CUDA, files=partial)
    for merged in ([part], [whole, part]):
        found = refusal(merge, merged, tmp_path / "build")
        only(found, "KCI617", f"{CUDA} was built with --arch")
    assert not (tmp_path / "build").exists()
    make_variant(tmp_path / "build", CUDA, files=partial)
    only(refusal(merge, [whole], tmp_path / "build"), "KCI617", "was built with --arch")


@pytest.mark.parametrize("packed", [True, False])
def test_what_changes_after_it_was_compared_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Commit, attempt and version of an artifact are judged before its files are read."""
    one = artifact(tmp_path, folder="one", files={"__init__.py": "# one\n"})
    other = artifact(tmp_path, folder="other", files={"__init__.py": "# other\n"})
    place = one if packed else one.parent / "src" / CPU

    def exchange(*_: object) -> list[object]:
        if packed:
            shutil.copy(other, one)
        else:
            shutil.rmtree(place)
            shutil.copytree(other.parent / "src" / CPU, place)
        return []

    monkeypatch.setattr("kci.tree.merge.require_same_commit", exchange)
    with pytest.raises(FindingsError, match="changed while it was merged"):
        merge([place], tmp_path / "build")
    assert not (tmp_path / "build").exists()


def test_a_carried_variant_of_another_source_does_not_count(tmp_path: Path) -> None:
    merge([artifact(tmp_path, STABLE, unique="0000000")], tmp_path / "build")
    new = artifact(tmp_path, CPU)
    with pytest.raises(FindingsError, match="only from another source"):
        merge([new], tmp_path / "build", plan(CPU, STABLE))
    (manifest,) = merge([new], tmp_path / "build", plan(CPU, STABLE), allow_partial=True)
    assert (manifest.missing, [*carried(manifest)]) == ((STABLE,), [STABLE, CPU])


def test_a_merge_that_fails_leaves_the_old_tree(tmp_path: Path) -> None:
    tree = tmp_path / "build"
    merge([artifact(tmp_path, CPU)], tree)
    before = contents(tree)
    good, bad = artifact(tmp_path, STABLE), artifact(tmp_path, CUDA)
    bad.write_bytes(bad.read_bytes()[:-9000])
    with pytest.raises(FindingsError, match="truncated or corrupt"):
        merge([good, bad], tree)
    assert contents(tree) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".kci")] == []


def test_the_tree_behind_a_link_is_replaced_and_the_link_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    merge([artifact(tmp_path, CPU, folder="a")], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / CPU).is_dir()
    real = tmp_path / "elsewhere"
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "gated-norm").symlink_to(real)
    files = [artifact(tmp_path, CPU), artifact(tmp_path, CPU, folder="b", name="relu")]
    merge(files, tmp_path / "build")
    assert (tmp_path / "build" / "gated-norm").is_symlink()
    assert (real / CPU).is_dir()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_merges_at_once_have_both_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    names = (CPU, CUDA)
    files = {name: artifact(tmp_path / "in", name, archs=("9.0",)) for name in names}
    for pair in range(4):
        tree = tmp_path / "trees" / str(pair)
        children = []
        for name in names:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    merge([files[name]], tree)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
        assert verify(tree, ignore=["KCI74"]) == []
        assert sorted(path.name for path in tree.iterdir()) == [*AT_TOP, CPU, CUDA]
    assert {path.name for path in (tmp_path / "trees").iterdir()} == set("0123")
