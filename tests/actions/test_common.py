from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from action_inputs import begin_job, inputs_of
from buildkit import write_tree
from conftest import failure
from kci.actions import common, merge, plan
from kci.diagnostics import Span, finding
from kci.errors import FindingsError
from kci.run.records import MergeJob


def give(monkeypatch: pytest.MonkeyPatch, **inputs: object) -> None:
    for name, value in inputs_of(**inputs).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    return tmp_path / "summary"


def test_the_annotation_of_a_failure_stands_at_its_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = finding("KCI513", "no", path="k/a,b:\nc.cu", span=Span(7, 3, 7, 0))
    for at in (first, finding("KCI513", "2", path="d.cu"), None):
        assert failure(SystemExit, "", common.fail, "it\nfailed", 4, at=at).code == 4
    assert capsys.readouterr().out.splitlines() == [
        "::error file=k/a%2Cb%3A%0Ac.cu,line=7,col=3::it%0Afailed",
        "::error file=d.cu::it%0Afailed",
        "::error::it%0Afailed",
    ]


@pytest.mark.parametrize(
    "found", [(), (finding("KCI305", "too many"),), (finding("KCI117", "near"),)]
)
def test_one_fault_is_one_annotation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: tuple[Any, ...]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    refuse = Mock(side_effect=FindingsError("too many", diagnostics=found))
    assert failure(SystemExit, "", common.run_action, refuse).code == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("::error") == 1


def test_outputs_have_random_delimiters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    common.set_outputs(a="one\ntwo", b="EOF\nb=evil")
    lines = (tmp_path / "output").read_text().splitlines()
    assert lines[0].startswith("a<<kci-")
    assert lines[1:3] == ["one", "two"]
    assert lines[3] == lines[0].removeprefix("a<<")
    assert lines[0].split("<<")[1] != lines[4].split("<<")[1]


def test_summaries_end_before_the_row_that_is_too_much(summary: Path) -> None:
    row = "| " + "ä" * 500 + " |"
    common.add_summary(["| x |", "|---|"], [row] * 3000)
    text = summary.read_text(encoding="utf-8")
    assert len(text.encode()) <= common.SUMMARY_LIMIT
    assert len(text.encode()) > common.SUMMARY_LIMIT - 3000
    lines = text.splitlines()
    more = f"{3000 - lines.count(row)} more rows are left out: GitHub takes 1 MiB."
    assert set(lines) == {"| x |", "|---|", row, "", more}
    common.add_summary(["| y |"], [row])
    assert len(summary.read_bytes()) <= common.SUMMARY_LIMIT


def test_many_findings_of_a_merge_fit_into_its_summary(
    summary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [finding("KCI117", "x" * 200, path=f"{number}.py") for number in range(10_000)]
    monkeypatch.setattr("kci.run.records.verify", lambda _: found)
    assert merge.verify(MergeJob((), tmp_path, None, None, None), {}) == 0
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("### Verification\n\n")
    assert "more rows are left out" in text
    assert len(text.encode()) <= common.SUMMARY_LIMIT


def test_cells_cannot_leave_their_column(summary: Path) -> None:
    common.add_table("t", ("a", "b", "c", "d"), [("a|b", "<img src=x>", "c\nd", "`e`")])
    row = "| a&#124;b | &lt;img src=x> | c\N{REPLACEMENT CHARACTER}d | &#96;e&#96; |"
    head = "### t\n\n| a | b | c | d |\n| --- | --- | --- | --- |"
    assert summary.read_text() == f"{head}\n{row}\n\n"


@pytest.mark.parametrize("value", ["0", "-1", "2 3", "many", "99999", "1.5", "²"])
def test_a_count_is_a_number_from_1_on(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    give(monkeypatch, jobs=value)
    failure(SystemExit, "2", common.count_input, "jobs")


def test_a_flag_is_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "True", "TRUE", "yes", "1", " true", "true\n"):
        give(monkeypatch, upload=value)
        failure(SystemExit, "2", common.flag_input, "upload", default="false")
    for value, flag in (("true", True), ("false", False)):
        give(monkeypatch, upload=value)
        assert common.flag_input("upload") is flag
    monkeypatch.delenv("KCI_INPUTS")
    assert common.flag_input("upload", default="true") is True


@pytest.mark.parametrize("folders", [".", "tree.relu.1 tree.relu.2", "tree.relu.9 tree.relu.10"])
def test_trees_are_unpacked_wherever_they_are_downloaded_to(
    folders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of several attempts the newest."""
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    for folder in folders.split():
        tree = write_tree(tmp_path / folder.replace("/", "-"), {"file": folder})
        place = write_tree(tmp_path / "downloaded" / folder, {"x": ""})
        with tarfile.open(place / "kci-tree.tar", "w") as archive:
            archive.add(tree / "file", "file")
    assert (common.unpacked(tmp_path / "downloaded") / "file").read_text() == folder


def test_records_that_cannot_be_read_cost_a_build_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version of kci may have written them, and whoever uploads an artifact can."""
    newer = {"run-record.relu.1/kci-record.json": '{"schema": 2, "kernel": "relu"}'}
    earlier = write_tree(tmp_path / "earlier", newer)
    begin_job(monkeypatch, tmp_path, **inputs_of(earlier=earlier, earlier_run="7"))
    assert plan.earlier_trees().trees == {}
    assert (tmp_path / "temp" / "kci-plan" / "kci-trees.json").is_file()
    assert capsys.readouterr().out.startswith("::warning::everything is built once more: ")
