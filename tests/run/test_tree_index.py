"""Where the newest tree of each kernel is, from run to run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kci.errors import FindingsError
from kci.run.run_records import RECORD_FILE, KernelRecord, write_record
from kci.run.tree_index import INDEX_FILE, KEPT_DAYS, TreeIndex, next_index, today
from kci.tree.manifest import FILE_NAME, Manifest, load_manifest


def manifest(kernel: str, version: int = 1) -> Manifest:
    return Manifest(kernel, version, (), (), (), complete=True)


def hand_over(folder: Path, index: TreeIndex, *records: KernelRecord) -> Path:
    """What a run leaves for the next one."""
    index.write(folder / "run-plan.1" / INDEX_FILE)
    for record in records:
        write_record(folder / f"run-record.{record.kernel}.1" / RECORD_FILE, record)
    return folder


def good(kernel: str, version: int = 1) -> KernelRecord:
    return KernelRecord(kernel, 1, complete=True, manifest=manifest(kernel, version))


def places(index: TreeIndex) -> dict[str, tuple[str, int]]:
    return {kernel: (place.run, place.manifest.version) for kernel, place in index.trees.items()}


def test_the_first_run_knows_nothing(tmp_path: Path) -> None:
    assert next_index(None, "", 5) == TreeIndex(day=5)
    assert next_index(tmp_path / "gone", "41", 5) == TreeIndex(day=5)


def test_trees_stay_where_they_are_until_there_is_a_newer_one(tmp_path: Path) -> None:
    first = next_index(None, "", 5)
    second = next_index(hand_over(tmp_path / "1", first, good("aa"), good("bb")), "41", 6)
    assert places(second) == {"aa": ("41", 1), "bb": ("41", 1)}
    third = next_index(hand_over(tmp_path / "2", second, good("aa", 2)), "42", 7)
    assert places(third) == {"aa": ("42", 2), "bb": ("41", 1)}


def test_a_kernel_that_failed_keeps_its_last_tree(tmp_path: Path) -> None:
    known = next_index(hand_over(tmp_path / "1", TreeIndex(), good("aa")), "41", 6)
    failed = KernelRecord("aa", 1, complete=False, error="no")
    assert places(next_index(hand_over(tmp_path / "2", known, failed), "42", 7)) == {"aa": ("41", 1)}
    partial = KernelRecord("aa", 1, complete=False, manifest=manifest("aa", 3))
    assert places(next_index(hand_over(tmp_path / "3", known, partial), "43", 7)) == {"aa": ("41", 1)}


def test_old_trees_are_forgotten_before_their_artifacts_are_gone(tmp_path: Path) -> None:
    known = next_index(hand_over(tmp_path / "1", TreeIndex(day=100), good("aa")), "41", 101)
    again = hand_over(tmp_path / "2", known)
    assert places(next_index(again, "42", 100 + KEPT_DAYS)) == {"aa": ("41", 1)}
    assert places(next_index(again, "42", 101 + KEPT_DAYS)) == {}
    assert KEPT_DAYS < 90


def test_manifests_for_the_plan(tmp_path: Path) -> None:
    known = next_index(hand_over(tmp_path / "1", TreeIndex(), good("aa"), good("bb", 2)), "41", 6)
    written = known.write_manifests(tmp_path / "manifests")
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        f"manifests/aa/{FILE_NAME}",
        f"manifests/bb/{FILE_NAME}",
    ]
    assert load_manifest(written[1]) == manifest("bb", 2)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"trees": {"a": {"run": 1}}}'])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX_FILE).write_text(text)
    with pytest.raises(FindingsError, match="no index of trees"):
        next_index(tmp_path, "41", 6)


def test_a_day_is_a_number_that_grows() -> None:
    assert today() > 20_000


@pytest.mark.parametrize(
    ("kernel", "of", "run"),
    [("../../aa", "../../aa", "41"), ("/tmp/aa", "/tmp/aa", "41"), ("aa", "bb", "41"), ("aa", "aa", "41\nx=1")],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, kernel: str, of: str, run: str) -> None:
    place = {"run": run, "day": 1, "manifest": msgspec.to_builtins(manifest(of))}
    file = tmp_path / "run-plan.1" / INDEX_FILE
    file.parent.mkdir()
    file.write_bytes(msgspec.json.encode({"trees": {kernel: place}, "day": 1, "schema": 1}))
    with pytest.raises(FindingsError, match="is no index of trees"):
        next_index(tmp_path, "41", 2)


def test_a_record_with_another_kernels_tree_is_refused(tmp_path: Path) -> None:
    hand_over(tmp_path, TreeIndex(), good("aa"))
    file = tmp_path / "run-record.aa.1" / RECORD_FILE
    file.write_bytes(file.read_bytes().replace(b'"kernel":"aa"', b'"kernel":"bb"', 1))
    with pytest.raises(FindingsError, match="is no record of a run"):
        next_index(tmp_path, "41", 2)
