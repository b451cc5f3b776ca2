"""Fingerprints in the manifest, variants that are carried over because of them, and recorded
durations.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kci.errors import FindingsError
from kci.matrix.variants import ObjectUse
from kci.plan.plan import KernelPlan, Plan
from kci.tree.artifacts import record_durations
from kci.tree.identity import GitState
from kci.tree.manifest import read_manifest, read_published
from kci.tree.merge import merge
from kci.tree.metadata import metadata_for, seal
from variants import COMMIT, CPU, CUDA, STABLE, build_of, make_artifact, make_variant
from watch.test_coverage import broken_metadata, changed_after_hashing, link_out_of_the_tree

NEXT = "f" * 40
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def plan(prints: dict[str, str], commit: str | None = COMMIT) -> Plan:
    return Plan(
        1, "release", (KernelPlan("gated-norm", ".", 1, tuple(prints), prints),), commit=commit
    )


def artifact(
    root: Path, variant: str, *, unique: str = "1a2b3c4", source: GitState | None = None
) -> Path:
    state = source or GitState(COMMIT, dirty=False)
    return make_artifact(
        root / variant, make_variant(root / variant / "src", variant, unique=unique, source=state)
    )


def fingerprints(tree: Path) -> dict[str, str | None]:
    manifest = read_manifest(tree)
    assert manifest is not None
    return {entry.variant: entry.fingerprint for entry in manifest.present}


# --- reading what is published ---


def seal_anew(variant: Path) -> None:
    changed_after_hashing(variant)
    seal(variant, metadata_for(build_of(), "cpu", "1a2b3c4"))


def another_version(variant: Path) -> None:
    shutil.rmtree(variant)
    make_variant(variant.parent, CPU, version=2)


@pytest.mark.rule("KCI314", triggers=True)
@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        broken_metadata,
        changed_after_hashing,
        seal_anew,
        another_version,
        link_out_of_the_tree,
    ],
)
def test_a_variant_that_is_listed_and_not_whole_is_not_published(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    tree = tmp_path / "t"
    merge([artifact(tmp_path, CPU), artifact(tmp_path, CUDA)], tree, plan({CPU: A, CUDA: B}))
    spoil(tree / CPU)
    for place in (tree, tree / "kci-manifest.json"):
        found, problems = read_published([place])
        assert [key[1] for key in found] == [CUDA]
        assert [item.rule for item in problems] == ["KCI314"]
        assert CPU in problems[0].message


@pytest.mark.rule("KCI611", triggers=False)
@pytest.mark.rule("KCI314", triggers=False)
def test_a_manifest_alone_a_tree_and_a_folder_of_trees_are_read(tmp_path: Path) -> None:
    tree = tmp_path / "trees" / "gated-norm"
    merge([artifact(tmp_path, CPU)], tree, plan({CPU: A}))
    alone = tmp_path / "alone.json"
    shutil.copy(tree / "kci-manifest.json", alone)
    for place in (tree, tree.parent, alone):
        found, problems = read_published([place])
        assert found == {("gated-norm", CPU): A}
        assert problems == []


@pytest.mark.parametrize(
    ("source", "commit"),
    [(GitState(COMMIT, dirty=True), COMMIT), (GitState(COMMIT, False), None)],
)
def test_what_was_built_from_something_else_gets_no_fingerprint(
    tmp_path: Path, source: GitState, commit: str | None
) -> None:
    merge([artifact(tmp_path, CPU, source=source)], tmp_path / "t", plan({CPU: A}, commit))
    assert fingerprints(tmp_path / "t") == {CPU: None}
    assert (
        "fingerprint"
        not in json.loads((tmp_path / "t" / "kci-manifest.json").read_text())["present"][0]
    )


def test_a_published_variant_is_carried_over_and_counts(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    merge(
        [artifact(tmp_path / "1", CPU), artifact(tmp_path / "1", CUDA)],
        tree,
        plan({CPU: A, CUDA: B}),
    )
    # The next release has another commit, so another unique id, and only CUDA changed.
    later = artifact(tmp_path / "2", CUDA, unique="ffffff0", source=GitState(NEXT, dirty=False))
    (manifest,) = merge([later], tree, plan({CPU: A, CUDA: C}, NEXT))
    assert manifest.complete
    assert fingerprints(tree) == {CPU: A, CUDA: C}
    assert [entry.origin.carried for entry in manifest.present] == [True, False]


def test_a_carried_variant_with_another_fingerprint_is_missing(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    merge([artifact(tmp_path / "1", CPU)], tree, plan({CPU: A}))
    later = artifact(tmp_path / "2", CUDA, unique="ffffff0", source=GitState(NEXT, dirty=False))
    with pytest.raises(FindingsError, match="only from another source"):
        merge([later], tree, plan({CPU: C, CUDA: B}, NEXT))


def test_a_variant_that_somebody_replaced_loses_what_is_known_of_it(tmp_path: Path) -> None:
    tree, use = tmp_path / "t", ObjectUse(1, 2, ("7",))
    merge(
        [make_artifact(tmp_path / "1", make_variant(tmp_path / "1", CPU), objects=use)],
        tree,
        plan({CPU: A}),
    )

    def carried(number: str) -> tuple[str | None, ObjectUse | None]:
        (manifest,) = merge([artifact(tmp_path / number, STABLE)], tree)
        (entry,) = [entry for entry in manifest.present if entry.variant == CPU]
        return entry.fingerprint, entry.objects

    assert carried("2") == (A, use)
    (tree / CPU / "extra.py").write_text("")
    seal(tree / CPU, metadata_for(build_of(), "cpu", "1a2b3c4"))
    assert carried("3") == (None, None)


# --- durations ---


def test_durations_of_the_newest_attempt_are_recorded(tmp_path: Path) -> None:
    directory = make_variant(tmp_path / "src", CPU)
    for attempt, seconds in ((1, 10.0), (2, 20.0)):
        make_artifact(tmp_path / "in" / str(attempt), directory, attempt=attempt, seconds=seconds)
    other = make_artifact(tmp_path / "in" / "cuda", make_variant(tmp_path / "src", CUDA))
    path = tmp_path / "durations.json"
    known = [{"kernel": "gated-norm", "variant": name, "seconds": 5} for name in (CUDA, CPU)]
    path.write_text(json.dumps({"schema": 1, "durations": known}))
    record_durations(path, [tmp_path / "in"])
    assert other.is_file()
    assert json.loads(path.read_text())["durations"] == [
        {"kernel": "gated-norm", "variant": CPU, "seconds": 20.0},
        {"kernel": "gated-norm", "variant": CUDA, "seconds": 5.0},
    ], "a leg that does not say how long it took changes nothing"


@pytest.mark.parametrize(("found", "seconds"), [(0, 20.0), (1, 5.0)])
def test_a_leg_that_found_objects_does_not_say_what_building_takes(
    tmp_path: Path, found: int, seconds: float
) -> None:
    use = ObjectUse(found, 9 - found)
    make_artifact(tmp_path / "in", make_variant(tmp_path / "src", CPU), seconds=20.0, objects=use)
    path = tmp_path / "durations.json"
    path.write_text(
        json.dumps(
            {"schema": 1, "durations": [{"kernel": "gated-norm", "variant": CPU, "seconds": 5}]}
        )
    )
    record_durations(path, [tmp_path / "in"])
    assert [item["seconds"] for item in json.loads(path.read_text())["durations"]] == [seconds]
