"""Fingerprints in the manifest, variants that are carried over because of them, and recorded
durations.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import only
from kci.errors import FindingsError
from kci.matrix.variants import ObjectUse
from kci.plan.plan import Plan
from kci.tree.artifacts import record_durations
from kci.tree.identity import GitState
from kci.tree.manifest import read_manifest, read_published
from kci.tree.merge import merge
from kci.tree.metadata import metadata_for, seal
from variants import COMMIT, CPU, CUDA, STABLE, build_of, make_artifact, make_variant, tree_plan
from variants import artifact_of as artifact
from watch.test_coverage import SPOILS as SPOILED

NEXT = "f" * 40
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def plan(prints: dict[str, str], commit: str | None = COMMIT) -> Plan:
    return tree_plan(*prints, prints=prints, commit=commit)


def fingerprints(tree: Path) -> dict[str, str | None]:
    manifest = read_manifest(tree)
    assert manifest is not None
    return {entry.variant: entry.fingerprint for entry in manifest.present}


# --- reading what is published ---


def seal_anew(variant: Path) -> None:
    SPOILED["changed after hashing"](variant)
    seal(variant, metadata_for(build_of(), "cpu", "1a2b3c4"))


def another_version(variant: Path) -> None:
    shutil.rmtree(variant)
    make_variant(variant.parent, CPU, version=2)


ALIKE = ("broken metadata", "changed after hashing", "a link out of the tree")
SPOILS = [shutil.rmtree, *map(SPOILED.__getitem__, ALIKE)]


@pytest.mark.rule("KCI314", triggers=True)
@pytest.mark.parametrize("spoil", [*SPOILS, seal_anew, another_version])
def test_a_listed_variant_that_is_not_whole(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    tree = tmp_path / "t"
    merge([artifact(tmp_path, CPU), artifact(tmp_path, CUDA)], tree, plan({CPU: A, CUDA: B}))
    spoil(tree / CPU)
    for place in (tree, tree / "kci-manifest.json"):
        found, problems = read_published([place])
        assert [key[1] for key in found] == [CUDA]
        only(problems, "KCI314", CPU)


@pytest.mark.rule("KCI611", triggers=False)
@pytest.mark.rule("KCI314", triggers=False)
def test_a_manifest_alone_a_tree_and_a_folder_of_trees_are_read(tmp_path: Path) -> None:
    tree = tmp_path / "trees" / "gated-norm"
    merge([artifact(tmp_path, CPU)], tree, plan({CPU: A}))
    alone = tmp_path / "alone.json"
    shutil.copy(tree / "kci-manifest.json", alone)
    for place in (tree, tree.parent, alone):
        assert read_published([place]) == ({("gated-norm", CPU): A}, [])


@pytest.mark.parametrize(
    ("source", "commit"), [(GitState(COMMIT, dirty=True), COMMIT), (GitState(COMMIT, False), None)]
)
def test_what_was_built_from_something_else_gets_no_fingerprint(
    tmp_path: Path, source: GitState, commit: str | None
) -> None:
    tree = tmp_path / "t"
    merge([artifact(tmp_path, CPU, source=source)], tree, plan({CPU: A}, commit))
    assert fingerprints(tree) == {CPU: None}
    (present,) = json.loads((tree / "kci-manifest.json").read_text())["present"]
    assert "fingerprint" not in present


def test_a_published_variant_is_carried_over_and_counts(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    first = [artifact(tmp_path / "1", variant) for variant in (CPU, CUDA)]
    merge(first, tree, plan({CPU: A, CUDA: B}))
    # The next release has another commit, so another unique id, and only CUDA changed.
    later = artifact(tmp_path / "2", CUDA, unique="ffffff0", source=GitState(NEXT, dirty=False))
    (manifest,) = merge([later], tree, plan({CPU: A, CUDA: C}, NEXT))
    assert manifest.complete
    assert fingerprints(tree) == {CPU: A, CUDA: C}
    assert [entry.origin.carried for entry in manifest.present] == [True, False]
    with pytest.raises(FindingsError, match="only from another source"):
        merge([later], tree, plan({CPU: B, CUDA: C}, NEXT))


def test_a_variant_that_somebody_replaced_loses_what_is_known_of_it(tmp_path: Path) -> None:
    tree, use = tmp_path / "t", ObjectUse(1, 2, ("7",))
    merge([artifact(tmp_path / "1", CPU, objects=use)], tree, plan({CPU: A}))

    def carried(number: str) -> tuple[str | None, ObjectUse | None]:
        (manifest,) = merge([artifact(tmp_path / number, STABLE)], tree)
        (entry,) = [entry for entry in manifest.present if entry.variant == CPU]
        return entry.fingerprint, entry.objects

    assert carried("2") == (A, use)
    (tree / CPU / "extra.py").write_text("")
    seal(tree / CPU, metadata_for(build_of(), "cpu", "1a2b3c4"))
    assert carried("3") == (None, None)


# --- durations ---


def durations_after(root: Path, *known: str) -> list[tuple[str, float]]:
    """What is recorded of the artifacts in `in`, where each of these took five seconds before."""
    path = root / "durations.json"
    before = [{"kernel": "gated-norm", "variant": name, "seconds": 5} for name in known]
    path.write_text(json.dumps({"schema": 1, "durations": before}))
    record_durations(path, [root / "in"])
    recorded = json.loads(path.read_text())["durations"]
    assert {item.pop("kernel") for item in recorded} == {"gated-norm"}
    return [(item["variant"], item["seconds"]) for item in recorded]


def test_durations_of_the_newest_attempt_are_recorded(tmp_path: Path) -> None:
    directory = make_variant(tmp_path / "src", CPU)
    for attempt, seconds in ((1, 10.0), (2, 20.0)):
        make_artifact(tmp_path / "in" / str(attempt), directory, attempt=attempt, seconds=seconds)
    other = make_artifact(tmp_path / "in" / "cuda", make_variant(tmp_path / "src", CUDA))
    taken = durations_after(tmp_path, CUDA, CPU)
    assert other.is_file()
    # A leg that does not say how long it took changes nothing.
    assert taken == [(CPU, 20.0), (CUDA, 5.0)]


@pytest.mark.parametrize(("found", "seconds"), [(0, 20.0), (1, 5.0)])
def test_a_leg_that_found_objects_does_not_say_what_building_takes(
    tmp_path: Path, found: int, seconds: float
) -> None:
    use = ObjectUse(found, 9 - found)
    make_artifact(tmp_path / "in", make_variant(tmp_path / "src", CPU), seconds=20.0, objects=use)
    assert durations_after(tmp_path, CPU) == [(CPU, seconds)]
