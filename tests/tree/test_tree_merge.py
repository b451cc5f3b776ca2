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
from kci.errors import FindingsError, UsageError
from kci.plan.plan import KernelPlan, Plan, read_plan
from kci.tree.artifacts import CiRun
from kci.tree.identity import GitState
from kci.tree.manifest import read_manifest
from kci.tree.merge import merge
from kci.tree.metadata import MARK
from kci.tree.verify import verify
from variants import COMMIT, CPU, CUDA, STABLE, make_artifact, make_variant, variant_digest


def contents(tree: Path) -> dict[str, bytes | None]:
    """Every file below a tree with its bytes, and every directory."""
    return {
        path.relative_to(tree).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(tree.rglob("*"))
    }


def plan(*variants: str, kernel: str = "gated-norm", version: int = 1) -> Plan:
    return Plan(1, "release", (KernelPlan(kernel, ".", version, variants),))


def artifact(root: Path, variant: str = CPU, folder: str = "", **changes: object) -> Path:
    """An artifact in a folder of its own, as a download makes it."""
    made = {
        key: changes.pop(key)
        for key in ("name", "version", "unique", "files", "source")
        if key in changes
    }
    where = root / (folder or f"{made.get('name', '')}{variant}{changes.get('attempt', '')}")
    return make_artifact(where, make_variant(where / "src", variant, **made), **changes)  # type: ignore[arg-type]


@pytest.mark.rule("KCI606", "KCI607", "KCI713", "KCI610", "KCI611", "KCI617", triggers=False)
def test_a_tree_has_the_variants_and_a_manifest_and_nothing_else(tmp_path: Path) -> None:
    files = [artifact(tmp_path, CPU), artifact(tmp_path, STABLE, suffix=".tar.zst")]
    (manifest,) = merge(files, tmp_path / "build", plan(CPU, STABLE))
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == [
        "SHA256SUMS", "kci-manifest.json", STABLE, CPU,
    ]  # fmt: skip
    assert manifest.complete
    assert manifest.missing == ()
    data = json.loads((tmp_path / "build" / "kci-manifest.json").read_text())
    assert list(data) == [
        "schema", "created_by", "kernel", "version", "complete", "card", "planned", "present",
        "missing", "replaced",
    ]  # fmt: skip
    assert data["planned"] == [STABLE, CPU]
    first = data["present"][1]
    assert first["variant"] == CPU
    assert first["backend"] == "cpu"
    assert first["digest"] == variant_digest(tmp_path / "build" / CPU)
    assert first["origin"] == {
        "artifact": f"kci-gated-norm-{CPU}.tar", "commit": COMMIT, "dirty": False, "attempt": 1,
        "builder": "native",
        "committed": None, "carried": False,
    }  # fmt: skip
    assert read_manifest(tmp_path / "build") == manifest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "build").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "build" / CPU).stat().st_mode & 0o777 == 0o755


@pytest.mark.rule("KCI608", triggers=False)
def test_the_order_of_the_artifacts_does_not_matter(tmp_path: Path) -> None:
    noarch = {"files": {"__init__.py": ""}}
    files = [
        artifact(tmp_path, CPU),
        artifact(tmp_path, CUDA),
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
        assert [(entry.variant, entry.origin.carried) for entry in manifest.present] == [
            (STABLE, False),
            (CPU, False),
        ]
    assert manifest.planned is None
    assert manifest.complete


def test_the_newest_attempt_wins_even_over_a_broken_one(tmp_path: Path) -> None:
    old = artifact(tmp_path, CPU, attempt=1, files={"__init__.py": "old"})
    new = artifact(tmp_path, CPU, attempt=10, files={"__init__.py": "new"})
    old.write_bytes(old.read_bytes()[:3000])
    (manifest,) = merge([new, old], tmp_path / "build")
    assert (tmp_path / "build" / CPU / "__init__.py").read_text() == "new"
    assert manifest.present[0].origin.attempt == 10


@pytest.mark.rule("KCI608", triggers=True)
def test_different_files_for_one_variant_name_both_origins(tmp_path: Path) -> None:
    one = artifact(tmp_path, "torch-cuda", folder="a", files={"__init__.py": "x"})
    two = artifact(
        tmp_path, "torch-cuda", folder="b", files={"__init__.py": "y"}, system="aarch64-linux"
    )
    with pytest.raises(FindingsError) as caught:
        merge([one, two], tmp_path / "build")
    assert caught.value.diagnostics[0].rule == "KCI608"
    assert str(one) in caught.value.message
    assert str(two) in caught.value.message
    assert "diffoscope" in caught.value.hint
    assert not (tmp_path / "build").exists()


@pytest.mark.rule("KCI606", triggers=True)
def test_a_missing_variant_fails_unless_it_may(tmp_path: Path) -> None:
    one = artifact(tmp_path, CPU)
    with pytest.raises(FindingsError) as caught:
        merge([one], tmp_path / "build", plan(CPU, STABLE, CUDA))
    assert [item.rule for item in caught.value.diagnostics] == ["KCI606", "KCI606"]
    assert STABLE in caught.value.diagnostics[0].message
    assert not (tmp_path / "build").exists()
    (manifest,) = merge([one], tmp_path / "build", plan(CPU, STABLE, CUDA), allow_partial=True)
    assert not manifest.complete
    assert manifest.missing == (STABLE, CUDA)


@pytest.mark.rule("KCI607", triggers=True)
def test_what_is_not_planned_is_refused(tmp_path: Path) -> None:
    files = [
        artifact(tmp_path, CPU),
        artifact(tmp_path, CUDA),
        artifact(tmp_path, CPU, name="relu"),
    ]
    with pytest.raises(FindingsError) as caught:
        merge(files, tmp_path / "build", plan(CPU))
    assert [item.rule for item in caught.value.diagnostics] == ["KCI607", "KCI607"]
    assert "that kernel is not planned" in "".join(
        item.message for item in caught.value.diagnostics
    )


def test_what_nobody_builds_here_is_taken_from_whoever_hands_it_over(tmp_path: Path) -> None:
    """The plan of a real kernel, and a folder that a job of the repository's own made of the
    variant for macOS.
    """
    kernel = tmp_path / "gated-norm"
    (kernel / "torch-ext/gated_norm").mkdir(parents=True)
    (kernel / "torch-ext/gated_norm/__init__.py").write_text("")
    (kernel / "norm.cpp").write_text("")
    (kernel / "norm.metal").write_text("")
    (kernel / "build.toml").write_text(
        '[general]\nname = "gated-norm"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        'backends = ["cpu", "metal"]\n'
        '[torch]\n[kernel.a]\nbackend = "cpu"\ndepends = ["torch"]\nsrc = ["norm.cpp"]\n'
        '[kernel.b]\nbackend = "metal"\ndepends = ["torch"]\nsrc = ["norm.metal"]\n'
    )
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
    assert (manifest.complete, name in {entry.variant for entry in manifest.present}) == (
        True,
        True,
    )
    judged = {item.rule for item in verify(tmp_path / "build") if name in item.path}
    assert judged == {"KCI741"}, "its library is none"
    packed = kci("pack", brought, "--output", tmp_path / "packed", KCI_RUN="", GITHUB_RUN_ID="8")
    assert packed.code == 0, packed.stderr
    (again,) = merge(
        [*others, Path(packed.stdout.strip())], tmp_path / "again", planned, run=CiRun("7", 1)
    )
    assert [entry.digest for entry in again.present] == [entry.digest for entry in manifest.present]

    def refused(*given: Path) -> str:
        with pytest.raises(FindingsError) as caught:
            merge([*others, *given], tmp_path / "lies", planned, run=CiRun("7", 1))
        assert not (tmp_path / "lies").exists()
        return caught.value.diagnostics[0].rule

    assert (
        refused(make_variant(tmp_path / "late", name, source=GitState("f" * 40, dirty=False)))
        == "KCI612"
    )
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
    assert [(manifest.kernel, manifest.version) for manifest in manifests] == [
        ("gated-norm", 1),
        ("relu", 3),
    ]
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == ["gated-norm", "relu"]
    assert (tmp_path / "trees" / "relu" / CPU / "metadata.json").is_file()
    (manifest,) = merge(files, tmp_path / "one", kernel="relu")
    assert manifest.kernel == "relu"
    assert (tmp_path / "one" / CPU / "metadata.json").is_file()
    with pytest.raises(UsageError, match="'other'"):
        merge(files, tmp_path / "one", kernel="other")


@pytest.mark.rule("KCI606", "KCI607", "KCI713", "KCI610", triggers=False)
def test_other_variants_of_the_tree_are_carried_and_replaced_ones_replaced_whole(
    tmp_path: Path,
) -> None:
    first = [
        artifact(tmp_path, CPU, files={"__init__.py": "", "stale.py": ""}),
        artifact(tmp_path, STABLE),
    ]
    tree = tmp_path / "build"
    merge(first, tree)
    (tree / "CARD.md").write_text("card")
    (tree / "benchmarks").mkdir()
    (tree / "benchmarks" / "benchmark.py").write_text("b")
    (manifest,) = merge([artifact(tmp_path, CPU, attempt=2)], tree, plan(CPU, STABLE))
    assert not (tree / CPU / "stale.py").exists()
    assert (tree / "CARD.md").read_text() == "card"
    assert (tree / "benchmarks" / "benchmark.py").is_file()
    assert [(entry.variant, entry.origin.carried) for entry in manifest.present] == [
        (STABLE, True),
        (CPU, False),
    ]
    assert manifest.present[0].origin.artifact == f"kci-gated-norm-{STABLE}.tar"
    assert manifest.complete


def test_a_tree_has_the_card_of_its_newest_legs_and_the_manifest_its_digest(tmp_path: Path) -> None:
    tree = tmp_path / "build"

    def card() -> str | None:
        return (tree / "CARD.md").read_text() if (tree / "CARD.md").exists() else None

    first, again = (
        artifact(tmp_path, CPU, card="# old\n"),
        artifact(tmp_path, STABLE, attempt=2, card="# new\n"),
    )
    (manifest,) = merge([first, again], tree, plan(CPU, STABLE))
    assert (card(), manifest.card) == ("# new\n", hashlib.sha256(b"# new\n").hexdigest())
    assert read_manifest(tree) == manifest
    (carried,) = merge(
        [artifact(tmp_path, CPU, attempt=3)], tree, plan(CPU, STABLE)
    )  # a leg that had no kernel to ask
    assert (card(), carried.card) == ("# new\n", manifest.card)
    (tree / "CARD.md").write_text("# by hand\n")
    assert [(item.rule, item.message) for item in verify(tree) if item.rule == "KCI718"] == [
        ("KCI718", "CARD.md changed after it was merged")
    ]
    (gone,) = merge([artifact(tmp_path, CPU, attempt=4, card="")], tree, plan(CPU, STABLE))
    assert (card(), gone.card) == (None, None)
    (tree / "CARD.md").write_text("# by hand\n")
    merge([artifact(tmp_path, CPU, attempt=5, card="")], tree, plan(CPU, STABLE))
    assert card() == "# by hand\n"


@pytest.mark.rule("KCI713", triggers=True)
def test_a_tree_of_another_kernel_or_version_is_not_added_to(tmp_path: Path) -> None:
    merge([artifact(tmp_path, STABLE)], tmp_path / "build")
    for changes in ({"version": 2}, {"name": "relu"}):
        with pytest.raises(FindingsError) as caught:
            merge([artifact(tmp_path, CPU, folder=str(changes), **changes)], tmp_path / "build")
        assert caught.value.diagnostics[0].rule == "KCI713"


@pytest.mark.rule("KCI610", triggers=True)
@pytest.mark.parametrize(
    "stranger", ["src/main.py", ".git/config", "notes.txt", "torch-cpu/readme"]
)
def test_a_directory_of_other_things_is_not_replaced(tmp_path: Path, stranger: str) -> None:
    path = tmp_path / "project" / stranger
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(FindingsError, match="is not a tree") as caught:
        merge([artifact(tmp_path, CPU)], tmp_path / "project")
    assert caught.value.diagnostics[0].rule == "KCI610"
    assert path.read_text() == "mine"


KERNEL = {"name": "relu", "path": "examples/relu", "version": 1, "planned": [CPU]}
PLAN = {
    "schema": 1, "tier": "release", "kernels": [KERNEL], "anything": [{"legs": 1}],
}  # fmt: skip


@pytest.mark.rule("KCI611", triggers=True)
@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"schema": None},
        {"schema": "1"},
        {"kernels": None},
        {"kernels": [KERNEL | {"planned": ["../x"]}]},
        {"kernels": [KERNEL | {"elsewhere": ["../x"]}]},
        {"kernels": [KERNEL | {"name": "../relu"}]},
        {"kernels": [KERNEL | {"planned": None}]},
        {"kernels": [KERNEL] * 2},
    ],
)
def test_a_plan_that_is_none_is_an_error(change: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN | change))
    with pytest.raises(FindingsError) as caught:
        read_plan(tmp_path / "plan.json")
    assert caught.value.diagnostics[0].rule == "KCI611"


@pytest.mark.rule("KCI611", triggers=True)
def test_unreadable_plans_and_manifests_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="cannot read"):
        read_plan(tmp_path / "none.json")
    merge([artifact(tmp_path, CPU)], tmp_path / "build")
    file = tmp_path / "build" / "kci-manifest.json"
    newer = json.loads(file.read_text()) | {"schema": 2}
    for text, why in ((json.dumps(newer), "schema 2 is not known"), ("{}", "is not a manifest")):
        file.write_text(text)
        with pytest.raises(FindingsError, match=why):
            read_manifest(tmp_path / "build")


@pytest.mark.rule("KCI617", triggers=True)
def test_a_part_for_ones_own_gpu_is_no_part_of_a_tree(tmp_path: Path) -> None:
    whole = artifact(tmp_path, CPU)
    part = artifact(tmp_path, CUDA, files={"__init__.py": b"", MARK: b"{}\n"})
    for merged in ([part], [whole, part]):
        with pytest.raises(FindingsError, match=f"{CUDA} was built with --arch") as caught:
            merge(merged, tmp_path / "build")
        assert caught.value.diagnostics[0].rule == "KCI617"
    assert not (tmp_path / "build").exists()


@pytest.mark.rule("KCI617", triggers=True)
def test_a_part_that_stands_in_the_tree_is_not_carried_along(tmp_path: Path) -> None:
    made = make_variant(tmp_path / "build", CUDA, files={"__init__.py": b"", MARK: b"{}\n"})
    with pytest.raises(FindingsError, match="was built with --arch"):
        merge([artifact(tmp_path, CPU)], tmp_path / "build")
    assert made.is_dir()


@pytest.mark.parametrize("packed", [True, False])
def test_what_changes_after_it_was_compared_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Commit, attempt and version of an artifact are judged before its files are read."""
    one, other = (
        artifact(tmp_path, folder=name, files={"__init__.py": f"# {name}\n"})
        for name in ("one", "other")
    )
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


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    files = [artifact(tmp_path, CPU), artifact(tmp_path, CUDA)]
    merge(files, tmp_path / "build", plan(CPU, CUDA))
    before = contents(tmp_path / "build")
    merge(files, tmp_path / "build", plan(CPU, CUDA))
    assert contents(tmp_path / "build") == before


def test_a_carried_variant_of_another_source_does_not_count(tmp_path: Path) -> None:
    merge([artifact(tmp_path, STABLE, unique="0000000")], tmp_path / "build")
    new = artifact(tmp_path, CPU)
    with pytest.raises(FindingsError, match="only from another source"):
        merge([new], tmp_path / "build", plan(CPU, STABLE))
    (manifest,) = merge([new], tmp_path / "build", plan(CPU, STABLE), allow_partial=True)
    assert manifest.missing == (STABLE,)
    assert [entry.variant for entry in manifest.present] == [STABLE, CPU]


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
    merge(
        [artifact(tmp_path, CPU), artifact(tmp_path, CPU, folder="b", name="relu")],
        tmp_path / "build",
    )
    assert (tmp_path / "build" / "gated-norm").is_symlink()
    assert (real / CPU).is_dir()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_merges_at_once_end_with_the_variants_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    names = (CPU, CUDA)
    files = {
        name: make_artifact(
            tmp_path / "in" / name, make_variant(tmp_path / "in" / name, name, archs=("9.0",))
        )
        for name in names
    }
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
        assert sorted(path.name for path in tree.iterdir()) == [
            "SHA256SUMS",
            "kci-manifest.json",
            CPU,
            CUDA,
        ]
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == sorted(
        map(str, range(4))
    )
