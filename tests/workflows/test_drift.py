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


def made(version: str = "1.2.0", **inputs: str) -> dict[str, str]:
    return render(Inputs(names=("relu",), **inputs), shipped_pins(), version)  # type: ignore[arg-type]


FILES = made()
CHECKOUT = shipped_pins()["actions/checkout"]
PINNED = f"{CHECKOUT.sha} # {CHECKOUT.version}"


def replaced(files: dict[str, str], old: str, new: str) -> dict[str, str]:
    return {path: text.replace(old, new) for path, text in files.items()}


SAME = {
    "everything": FILES,
    "version and digest of the header": replaced(made("1.1.0"), "kci-inputs: ", "kci-inputs: 00"),
    "another pin": replaced(FILES, PINNED, f"{'b' * 40} # v6.0.0"),
}
OTHER = {
    "no pin": (replaced(FILES, PINNED, "v7"), Drift.EDITED),
    "command": (replaced(FILES, "#   kci render", "#   kci render --branch x"), Drift.EDITED),
    "what another kci wrote": (made(branch="trunk"), Drift.CHANGED),
    "somebody else's": (dict.fromkeys(FILES, "name: mine\n"), Drift.FOREIGN),
}


@pytest.mark.rule("KCI401", "KCI402", "KCI406", triggers=False)
@pytest.mark.parametrize("what", SAME)
def test_what_does_not_count(what: str) -> None:
    found = compare(FILES, SAME[what])
    assert {item.state for item in found} == {Drift.SAME}
    assert (drift_diagnostics(found), [item.diff for item in found]) == ([], [""] * len(FILES))


@pytest.mark.parametrize("what", OTHER)
def test_what_counts_as_drift(what: str) -> None:
    committed, state = OTHER[what]
    found = compare(FILES, committed)
    assert {item.state for item in found} == {state}
    assert [item.rule for item in drift_diagnostics(found)] == [state.value[0]] * len(FILES)


@pytest.mark.rule("KCI401", "KCI402", "KCI406", triggers=True)
def test_a_file_that_is_missing_edited_or_huge_has_a_diff() -> None:
    edited = FILES[RELEASE_FILE].replace("timeout-minutes: 15", "timeout-minutes: 99")
    found = compare({RELEASE_FILE: FILES[RELEASE_FILE]}, {RELEASE_FILE: edited})
    assert "-    timeout-minutes: 99\n+    timeout-minutes: 15\n" in found[0].diff
    assert [item.rule for item in drift_diagnostics(found)] == ["KCI406"]
    missing = next(item for item in compare(FILES, {}) if item.path == RELEASE_FILE)
    assert drift_diagnostics([missing])[0].rule == "KCI401"
    assert missing.state is Drift.MISSING
    assert missing.diff.startswith(f"--- /dev/null\n+++ b/{RELEASE_FILE}\n")
    assert missing.diff.count("\n+") >= FILES[RELEASE_FILE].count("\n")
    huge, foreign = compare({"a": "x\n", "b": ""}, {"a": "y\n" * 30_000, "b": "mine\n"})
    assert drift_diagnostics([foreign])[0].rule == "KCI402"
    assert huge.diff == "--- a\n+++ a\n(too long to compare: 30001 and 2 lines)\n"


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_do_not_count(tmp_path: Path, end: str) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, newline=end)
    found = compare(FILES, read_committed(tmp_path, FILES))
    assert {item.state for item in found} == {Drift.SAME}
