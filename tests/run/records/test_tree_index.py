"""Where the newest tree of each kernel is, from run to run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from buildkit import write_tree
from conftest import ROOT, failure
from kci.errors import FindingsError
from kci.plan.hardware_tests import TestPass, tree_under_test
from kci.plan.plan import Plan, SkippedVariant, TestLeg
from kci.run.gate import (
    INDEX_FILE,
    KEPT_DAYS,
    ObjectsPlace,
    RunUploads,
    TreeIndex,
    TreePlace,
    index_after,
    next_index,
    read_index,
    read_uploads,
)
from kci.run.records import (
    OBJECTS_FILE,
    PLAN_FILE,
    RECORD_FILE,
    TEST_FILE,
    KernelRecord,
    LegObjects,
    TestRecord,
    kernel_record,
    write_record,
)
from kci.tree.manifest import FILE_NAME, Manifest, Origin, Present, encode, read_published
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import decode_json
from planning import hardware_leg, leg, manifest_of, plan


def manifest(kernel: str, version: int = 1) -> Manifest:
    return manifest_of(kernel, (), {}, version)


NEWEST = TreeIndex({"aa": TreePlace("41", 6, manifest("aa"))}, 6)


def write_plan(folder: Path, index: TreeIndex, *records: KernelRecord, attempt: int = 1) -> Path:
    """What a run leaves for the next one."""
    write_record(folder / f"run-plan.{attempt}" / INDEX_FILE, index)
    for record in records:
        write_record(folder / f"run-record.{record.kernel}.1" / RECORD_FILE, record)
    return folder


def good(kernel: str, version: int = 1) -> KernelRecord:
    return KernelRecord(kernel, 1, complete=True, manifest=manifest(kernel, version))


def kept(leg: str, artifact: str = "objects.aa.cpu-1", kernel: str = "aa") -> LegObjects:
    return LegObjects(kernel, leg, 1, artifact, found=3, made=1)


def places(index: TreeIndex) -> dict[str, tuple[str, int]]:
    return {kernel: (place.run, place.manifest.version) for kernel, place in index.trees.items()}


def test_trees_stay_where_they_are_until_there_is_a_newer_one(tmp_path: Path) -> None:
    assert next_index(None, "", 5) == next_index(tmp_path / "gone", "41", 5) == TreeIndex(day=5)
    first = write_plan(tmp_path / "1", TreeIndex(day=5), good("aa"), good("bb"))
    second = next_index(first, "41", 6)
    assert places(second) == {"aa": ("41", 1), "bb": ("41", 1)}
    failed = KernelRecord("bb", 1, complete=False, error="no")
    third = next_index(write_plan(tmp_path / "2", second, good("aa", 2), failed), "42", 7)
    assert places(third) == {"aa": ("42", 2), "bb": ("41", 1)}
    partial = KernelRecord("aa", 1, complete=False, manifest=manifest("aa", 3))
    assert places(next_index(write_plan(tmp_path / "3", third, partial), "43", 8)) == places(third)
    write_plan(tmp_path / "3", TreeIndex({}, 9, attempt=2), attempt=2)
    assert read_uploads(tmp_path / "3").index.trees == {}, "of several attempts, the newest counts"


def test_trees_and_objects_are_forgotten_before_their_artifacts_are_gone(tmp_path: Path) -> None:
    built = msgspec.structs.replace(good("aa"), objects=(kept("cpu"),))
    known = next_index(write_plan(tmp_path / "1", TreeIndex(day=100), built), "41", 101)
    again = write_plan(tmp_path / "2", known)
    last = next_index(again, "42", 99 + KEPT_DAYS)
    assert (places(last), set(last.objects)) == ({"aa": ("41", 1)}, {"aa"})
    later = next_index(again, "42", 100 + KEPT_DAYS)
    assert (places(later), later.objects) == ({}, {})
    assert KEPT_DAYS < 90
    for file in ("action.yml", "merge/action.yml"):  # GitHub is asked for what kci counts on
        assert f'retention-days: "{KEPT_DAYS}"' in (ROOT / file).read_text()


CUDA = "torch-cuda"
TEST = hardware_leg("aa", CUDA, inputs="1" * 64)
ROCM = msgspec.structs.replace(TEST, name="rocm-x86_64-linux")


def left(
    folder: Path,
    index: TreeIndex,
    legs: tuple[TestLeg, ...],
    digest: str,
    *tests: TestRecord,
    attempt: int = 1,
) -> Path:
    """What a run leaves that has tests; one that merges the kernel if its tests are not of an
    earlier run's tree.
    """
    merged = KernelRecord(
        "aa", attempt, complete=True, manifest=manifest_of("aa", (), {CUDA: digest})
    )
    write_plan(folder, index, *([] if any(leg.run for leg in legs) else [merged]))
    write_record(folder / "run-plan.1" / PLAN_FILE, plan((), tests=legs, attempt=attempt))
    for number, record in enumerate(tests):
        write_record(folder / f"run-test.{number}" / TEST_FILE, record)
    return folder


def passed_on(
    digest: str, leg: TestLeg = TEST, attempt: int = 1, *, good: bool = True
) -> TestRecord:
    tree = tree_under_test({CUDA: digest}, leg.variants)
    return TestRecord("aa", leg.name, attempt, good, tree=tree)


def known(index: TreeIndex) -> dict[str, TestPass]:
    return index.trees["aa"].passed


def test_what_passed_on_a_tree_is_known_with_it_until_it_is_merged_again(tmp_path: Path) -> None:
    run = left(tmp_path / "1", TreeIndex(), (TEST,), "d1", passed_on("d1"))
    first = next_index(run, "41", 6)
    assert known(first) == {TEST.name: TestPass(tree_under_test({CUDA: "d1"}, (CUDA,)), "1" * 64)}
    assert first.for_plan()["trees"]["aa"].passed == known(first)
    # A run in which nothing is merged and another machine tests the tree.
    carried = msgspec.structs.replace(ROCM, run="41")
    second = next_index(left(tmp_path / "2", first, (carried,), "", passed_on("d1", ROCM)), "42", 6)
    assert (set(known(second)), places(second)) == ({TEST.name, ROCM.name}, {"aa": ("41", 1)})
    # One in which it fails, and one in which nothing is heard of it.
    failed = left(tmp_path / "3", second, (carried,), "", passed_on("d1", ROCM, good=False))
    assert set(known(next_index(failed, "43", 6))) == {TEST.name}
    silent = left(tmp_path / "4", second, (carried,), "")
    assert set(known(next_index(silent, "43", 6))) == {TEST.name}
    # One that does not find the tree.
    not_found = TestRecord("aa", ROCM.name, 1, False, error="gone")
    gone = left(tmp_path / "6", second, (carried,), "", not_found)
    assert places(next_index(gone, "43", 6)) == {}
    # One whose merge fails, so that its test does not run, and one about a tree that is not the
    # newest.
    untested = {"aa": msgspec.structs.replace(first.trees["aa"], passed={})}
    unmerged = msgspec.structs.replace(first, trees=untested)
    failing = plan((leg(CUDA, "aa"),), tests=(TEST,))
    broken = RunUploads(failing, {"aa": KernelRecord("aa", 1, complete=False)}, index=unmerged)
    assert index_after(broken, "43", 6).trees["aa"].passed == {}
    stranger = plan((), tests=(msgspec.structs.replace(TEST, run="40"),))
    elsewhere = RunUploads(stranger, tests={("aa", TEST.name): passed_on("d1")}, index=unmerged)
    assert index_after(elsewhere, "43", 6).trees["aa"].passed == {}
    # One that merges another tree, and does not come to testing.
    assert known(next_index(left(tmp_path / "5", second, (TEST, ROCM), "d2"), "43", 6)) == {}


@pytest.mark.parametrize(
    ("attempt", "records"),
    [
        (1, ()),
        (1, (passed_on("d1", good=False),)),
        (1, (passed_on("d2"),)),
        (1, (passed_on("d1"), passed_on("d1", attempt=2, good=False))),
        (1, (TestRecord("aa", TEST.name, 1, True),)),
        (2, (passed_on("d1"),)),
    ],
    ids=["silence", "failed", "another tree", "failed again", "of no tree", "all ran again"],
)
def test_what_did_not_pass_on_the_very_tree_is_not_known_as_passed(
    tmp_path: Path, attempt: int, records: tuple[TestRecord, ...]
) -> None:
    run = left(tmp_path, TreeIndex(), (TEST,), "d1", *records, attempt=attempt)
    assert known(next_index(run, "41", 6)) == {}


def test_what_the_trees_have_is_what_their_manifests_say(tmp_path: Path) -> None:
    told = Present(CUDA, "0" * 64, "cuda", Origin(""), fingerprint="1" * 64)
    untold = Present("torch-rocm", "0" * 64, "rocm", Origin(""))
    tree = msgspec.structs.replace(manifest("aa"), present=(told, untold))
    write_atomic(tmp_path / FILE_NAME, encode(tree))
    known = TreeIndex({"aa": TreePlace("41", 1, tree)})
    assert known.for_plan()["published"].keys() == {("aa", CUDA)}
    assert known.for_plan()["published"] == read_published([tmp_path / FILE_NAME])[0]


@pytest.mark.parametrize(
    ("kernel", "of", "run"),
    [(name, name, "41") for name in ("../../aa", "/tmp/aa")]
    + [("aa", "bb", "41"), ("aa", "aa", "41\nx=1")],
)
def test_names_that_lead_elsewhere_are_refused(
    tmp_path: Path, kernel: str, of: str, run: str
) -> None:
    place = {"run": run, "day": 1, "manifest": msgspec.to_builtins(manifest(of))}
    text = json.dumps({"trees": {kernel: place}, "day": 1, "schema": 1})
    write_tree(tmp_path, {f"run-plan.1/{INDEX_FILE}": text})
    failure(FindingsError, "is not a record of a run", next_index, tmp_path, "41", 2)


def test_objects_of_a_leg_are_those_of_the_newest_run_that_kept_some(tmp_path: Path) -> None:
    objects = (kept("cpu"), kept("cuda", "objects.aa.cuda-2"))
    failed = KernelRecord("aa", 1, complete=False, error="no", objects=objects)
    first = next_index(write_plan(tmp_path / "1", TreeIndex(day=5), failed), "41", 6)
    assert first.for_plan()["objects"].keys() == {("aa", "cpu"), ("aa", "cuda")}
    again = KernelRecord("aa", 1, complete=False, objects=(kept("cpu"),))
    second = next_index(write_plan(tmp_path / "2", first, again, good("bb")), "42", 7)
    found = {
        leg: (place.run, place.artifact) for (_, leg), place in second.for_plan()["objects"].items()
    }
    assert found == {"cpu": ("42", "objects.aa.cpu-1"), "cuda": ("41", "objects.aa.cuda-2")}


@pytest.mark.parametrize("artifact", ["kci-aa.cpu-1", "objects.bb.cpu-1", "objects.aa.cpu 1"])
def test_a_record_can_name_objects_of_its_kernel_only(tmp_path: Path, artifact: str) -> None:
    text = {"kernel": "aa", "leg": "cpu", "attempt": 1, "artifact": artifact}
    (tmp_path / OBJECTS_FILE).write_text(json.dumps(text))
    failure(FindingsError, "", kernel_record, "aa", [tmp_path], tmp_path / "into", None)


def after(plan: Plan, record: KernelRecord) -> dict[str, tuple[str, int]]:
    return places(index_after(RunUploads(plan, {record.kernel: record}, index=NEWEST), "42", 7))


def test_a_tree_that_a_merge_could_not_build_upon_is_forgotten() -> None:
    """Its legs did what they could, so only what was to be carried over can be at fault: the next
    run builds it all.
    """
    legs, same = (leg(CUDA, "aa"),), (SkippedVariant("aa", "torch-cpu", "the same"),)
    failed = KernelRecord("aa", 1, complete=False)
    built = msgspec.structs.replace(failed, present=(CUDA,))
    assert after(plan(legs, skipped=same), failed) == {"aa": ("41", 1)}, "its leg failed"
    assert after(plan(legs, skipped=same), built) == {}
    assert after(plan((), skipped=same), failed) == {}
    assert after(plan(legs), built) != {}
    # What was only fetched stays where it was built.
    assert after(plan((), skipped=same), good("aa")) == {"aa": ("41", 1)}
    assert after(plan(()), good("aa")) == {"aa": ("42", 1)}


def test_a_list_of_trees_that_cannot_be_read_is_an_empty_one_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    write_tree(tmp_path, {"bad": "[", "old": '{"schema": 99}'})
    for name in ("none", "bad", "old"):
        assert read_index(tmp_path / name, said.append) == TreeIndex()
    assert ["everything is built" in line for line in said] == [True] * 3
    write_record(tmp_path / "good", NEWEST)
    assert read_index(tmp_path / "good", said.append).trees.keys() == {"aa"}


@pytest.mark.parametrize(
    "lie", [{"run": "41 --repo a/b"}, {"run": ""}, {"run": "\u0661"}, {"artifact": "tree.aa.1"}]
)
def test_an_index_can_name_objects_of_a_run_only(lie: dict[str, str]) -> None:
    good = {"run": "41", "artifact": "objects.aa.cpu-1", "day": 5}
    assert decode_json(json.dumps(good).encode(), ObjectsPlace).run == "41"
    failure(ValueError, "no objects", decode_json, json.dumps(good | lie).encode(), ObjectsPlace)
