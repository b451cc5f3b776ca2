from __future__ import annotations

from pathlib import Path

import pytest

from kci.workflows.render import RELEASE_FILE, Inputs, render
from kci.workflows.rendered_files import (
    Drift,
    compare,
    drift_diagnostics,
    read_committed,
    shipped_pins,
)

FILES = render(Inputs(names=("relu",)), shipped_pins(), "1.2.0")


def replaced(files: dict[str, str], old: str, new: str) -> dict[str, str]:
    return {path: text.replace(old, new) for path, text in files.items()}


def states(committed: dict[str, str]) -> dict[str, Drift]:
    return {item.path: item.state for item in compare(FILES, committed)}


def rules(committed: dict[str, str]) -> list[str]:
    return [item.rule for item in drift_diagnostics(compare(FILES, committed))]


@pytest.mark.rule("KCI401", "KCI402", "KCI406", triggers=False)
def test_same() -> None:
    assert set(states(FILES).values()) == {Drift.SAME}
    assert rules(FILES) == []


@pytest.mark.rule("KCI401", triggers=True)
def test_missing_file_has_a_whole_diff() -> None:
    others = {path: text for path, text in FILES.items() if path != RELEASE_FILE}
    missing = next(item for item in compare(FILES, others) if item.path == RELEASE_FILE)
    assert missing.state is Drift.MISSING
    assert missing.diff.startswith(f"--- /dev/null\n+++ b/{RELEASE_FILE}\n")
    assert missing.diff.count("\n+") >= FILES[RELEASE_FILE].count("\n")
    assert rules(others) == ["KCI401"]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_do_not_count(tmp_path: Path, end: str) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, newline=end)
    assert set(states(read_committed(tmp_path, FILES)).values()) == {Drift.SAME}


def test_version_and_digest_of_the_header_do_not_count() -> None:
    other = render(Inputs(names=("relu",)), shipped_pins(), "1.1.0")
    other = replaced(other, "# kci-inputs: ", "# kci-inputs: 00")
    assert set(states(other).values()) == {Drift.SAME}


def test_the_recorded_command_counts() -> None:
    other = replaced(FILES, "#   kci render\n", "#   kci render --branch x\n")
    assert set(states(other).values()) == {Drift.EDITED}


@pytest.mark.rule("KCI401", triggers=True)
def test_what_another_kci_wrote_is_drift_and_no_edit() -> None:
    other = render(Inputs(names=("relu",), branch="trunk"), shipped_pins(), "1.2.0")
    assert set(states(other).values()) == {Drift.CHANGED}
    assert rules(other) == ["KCI401"] * len(FILES)


@pytest.mark.rule("KCI406", triggers=True)
def test_an_edit_is_drift_with_a_diff() -> None:
    text = FILES[RELEASE_FILE].replace("timeout-minutes: 15", "timeout-minutes: 99")
    edited = {**FILES, RELEASE_FILE: text}
    found = next(item for item in compare(FILES, edited) if item.path == RELEASE_FILE)
    assert found.state is Drift.EDITED
    assert "-    timeout-minutes: 99\n+    timeout-minutes: 15\n" in found.diff
    assert rules(edited) == ["KCI406"]


@pytest.mark.rule("KCI402", triggers=True)
def test_a_file_by_somebody_else() -> None:
    foreign = {**FILES, RELEASE_FILE: "name: mine\n"}
    assert states(foreign)[RELEASE_FILE] is Drift.FOREIGN
    assert rules(foreign) == ["KCI402"]


def test_a_huge_file_is_not_compared_line_by_line() -> None:
    found = compare({"a": "x\n"}, {"a": "y\n" * 30_000})
    told = "--- a\n+++ a\n(too long to compare: 30001 and 2 lines)\n"
    assert [(item.state, item.diff) for item in found] == [(Drift.FOREIGN, told)]
