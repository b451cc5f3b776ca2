"""Recording the results of scheduled runs: nothing is lost, nothing is changed, and what is broken
is said.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.runner import kci
from conftest import failure, ids, only
from kci.config.settings import Decisions
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.watch import history as history_module
from kci.watch.decide import FailureTracker, latest_decisions
from kci.watch.history import (
    HistoryBranch,
    RecordedRun,
    append,
    group_results,
    leg_key,
    read_results,
    read_runs,
)

NOW = datetime(2026, 11, 21, 3, 17, tzinfo=UTC)
VARIANT = "torch213-cxx11-cpu-x86_64-linux"


def read_history(history: Path) -> tuple[list[RecordedRun], list[Diagnostic]]:
    problems: list[Diagnostic] = []
    return list(read_runs(history, problems.append)), problems


def result(
    run: int = 1, kernel: str = "relu", outcome: str = "passed", **more: Any
) -> dict[str, Any]:
    return {
        "schema": 1, "run": run, "at": NOW.isoformat(), "kernel": kernel, "variant": VARIANT,
        "system": "x86_64-linux", "torch": "2.13", "outcome": outcome, **more,
    }  # fmt: skip


def failed(
    run: int = 1, kernel: str = "relu", error: str = "error: no member 'x'", **more: Any
) -> dict[str, Any]:
    return result(run, kernel, "failed", error=error, **more)


def files(folder: Path, *results: dict[str, Any] | str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, item in enumerate(results):
        (folder / f"{number}.json").write_text(item if isinstance(item, str) else json.dumps(item))
    return folder


def recorded(history: Path, folder: Path) -> list[Path]:
    return append(history, group_results(read_results([folder])[0]))


def summary(history: Path) -> list[tuple[int, int, int, int]]:
    """Run, passed, failed, unknown."""
    return [
        (run.run, len(run.passed), len(run.failed), len(run.unknown))
        for run in read_history(history)[0]
    ]


def test_a_run_is_recorded_and_read_again(tmp_path: Path) -> None:
    error = "some log\n\x1b[31mcsrc/a.cu:1: error: x\x1b[0m\nmore"
    other = failed(kernel="norm", error=error, replay="kci build")
    (path,) = recorded(tmp_path / "h", files(tmp_path / "r", result(), other))
    assert path.name.startswith("0000000000000000001-1-")
    (run,) = read_history(tmp_path / "h")[0]
    assert run.passed == (f"relu {VARIANT} x86_64-linux 2.13 -",)
    (failure,) = run.failed
    assert (failure.error, failure.replay) == ("csrc/a.cu:1: error: x", "kci build")


def names(legs: Iterable[str]) -> list[str]:
    return [leg.partition(" ")[0] for leg in legs]


def test_a_leg_that_is_skipped_for_want_of_a_wheel_has_failed(tmp_path: Path) -> None:
    gone = "cannot install torch 2.15\nERROR: No matching distribution found for torch==2.15.0"
    away = f"WARNING: Retrying after connection broken by 'ReadTimeoutError'\n{gone}"
    told = {"gone": gone, "away": away, "hipcc": "there is no hipcc on this machine"}
    skipped = [result(kernel=name, outcome="skipped", error=text) for name, text in told.items()]
    recorded(tmp_path / "h", files(tmp_path / "r", *skipped))
    (run,) = read_history(tmp_path / "h")[0]
    assert names(failure.leg for failure in run.failed) == ["gone"]
    assert names(run.unknown) == ["away", "hipcc"]


def test_a_second_look_says_how_a_leg_is_and_the_first_is_remembered(tmp_path: Path) -> None:
    first = [failed(kernel=name) for name in ("flake", "broken", "lost")]
    second = [result(kernel="flake", look=2), failed(kernel="broken", look=2)]
    second.append(result(kernel="lost", outcome="outage", look=2))
    recorded(tmp_path / "h", files(tmp_path / "b", *second))
    recorded(tmp_path / "h", files(tmp_path / "a", *first))
    (run,) = read_history(tmp_path / "h")[0]
    assert (names(run.passed), run.unknown) == (["flake"], ())
    assert names(failure.leg for failure in run.failed) == ["broken", "lost"]
    assert names(failure.leg for failure in run.earlier) == ["broken", "flake"]
    assert all("earlier" not in json.loads(path.read_text()) for path in (tmp_path / "h").iterdir())


def test_a_history_of_an_older_version_is_read_and_decided_about(tmp_path: Path) -> None:
    """Its files know no looks, and its errors were cut in another way."""
    leg = f"relu {VARIANT} x86_64-linux 2.13 -"
    symbol = "_ZN3c105ErrorC1ENS_14SourceLocationERKSs"
    error = f"error: failed: ImportError: /b/_relu_cpu_1234567.abi3.so: undefined symbol: {symbol}"
    (tmp_path / "h").mkdir()
    for number in (1, 2, 3):
        failure = {"leg": leg, "error": error}
        old = {"run": number, "at": NOW.isoformat(), "passed": [], "failed": [failure], "schema": 1}
        (tmp_path / "h" / f"{number:019d}-1-{number:016x}.json").write_text(json.dumps(old))
    runs, problems = read_history(tmp_path / "h")
    assert problems == []
    (action,) = latest_decisions(runs, FailureTracker(Decisions()))
    assert (action.since, action.legs) == (2, (leg,))
    assert action.title.startswith("relu: undefined symbol ")
    assert "1234567" not in action.title


def test_an_outage_in_a_later_attempt_replaces_nothing(tmp_path: Path) -> None:
    first = [failed(), result(kernel="norm", outcome="outage")]
    recorded(tmp_path / "h", files(tmp_path / "a", *first))
    again = [result(attempt=2, outcome="outage"), result(kernel="norm", attempt=2)]
    recorded(tmp_path / "h", files(tmp_path / "b", *again))
    assert summary(tmp_path / "h") == [(1, 1, 1, 0)]


def test_of_two_results_in_one_attempt_the_failure_counts_and_it_is_said(tmp_path: Path) -> None:
    for order in ([result(), failed()], [failed(), result()]):
        found, problems = read_results([files(tmp_path / "r", *order)])
        assert problems == []
        (run,) = group_results(found)
        assert (len(run.passed), len(run.failed)) == (0, 1)


WRONG = [
    {"schema": 2}, {"outcome": "fine"}, {"at": "yesterday"}, {"at": "2026-11-21T00:00:00"},
    {"run": -1}, {"run": "1"}, {"kernel": "two words"}, {"kernel": ""}, {"kernel": "a\n"},
]  # fmt: skip
BROKEN = ["", "{", "[]", "null", '{"schema": 1}', "[" * 100_000, json.dumps(result())[:-20]]
BROKEN += [json.dumps(result() | wrong) for wrong in WRONG]


@pytest.mark.rule("KCI801", triggers=True)
@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_result_is_said_and_the_others_are_recorded(tmp_path: Path, text: str) -> None:
    folder = files(tmp_path / "r", text, result())
    found, problems = read_results([folder])
    assert Path(only(problems, "KCI801").path).name == "0.json"
    assert len(found) == 1
    done = kci("compat", "record", folder, "--history", tmp_path / "history")
    assert (done.code, "1 result of 1 run; 1 new file" in done.stdout) == (1, True)
    assert "Traceback" not in done.stderr


OF_THE_HISTORY = ["", "{", '{"run": 0}', '{"run": 0, "at": "x", "passed": ["a b"]}']
OF_THE_HISTORY.append('{"run": 5, "at": "x"}')  # under the name of another run


@pytest.mark.rule("KCI801", triggers=True)
@pytest.mark.parametrize("text", OF_THE_HISTORY)
def test_a_broken_file_of_the_history_is_said_and_the_others_count(
    tmp_path: Path, text: str
) -> None:
    recorded(tmp_path / "h", files(tmp_path / "r", result()))
    (tmp_path / "h" / "0000000000000000000-1-x.json").write_text(text)
    runs, problems = read_history(tmp_path / "h")
    assert ([run.run for run in runs], ids(problems)) == ([1], ["KCI801"])
    done = kci("compat", "decide", "--history", tmp_path / "h")
    assert (done.code, "Traceback" in done.stderr) == (1, False)


@pytest.mark.rule("KCI801", triggers=False)
def test_good_results_are_read_silently(tmp_path: Path) -> None:
    soon = (NOW + timedelta(hours=3)).isoformat()
    assert read_results([files(tmp_path / "r", result(at=soon), failed(run=2))])[1] == []


def test_a_write_that_fails_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = group_results(read_results([files(tmp_path / "r", result(1), result(2))])[0])
    real, calls = history_module.write_atomic, []

    def full(path: Path, raw: bytes) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, os.strerror(28))
        real(path, raw)

    monkeypatch.setattr(history_module, "write_atomic", full)
    failure(OSError, "No space left", append, tmp_path / "h", runs)
    assert summary(tmp_path / "h") == [(1, 1, 0, 0)]
    monkeypatch.undo()
    assert len(append(tmp_path / "h", runs)) == 1
    assert summary(tmp_path / "h") == [(1, 1, 0, 0), (2, 1, 0, 0)]


# --- on a branch, which is complete whoever records at the same time -----------------------------

LEG = leg_key("relu", "torch213-cxx11-cpu-x86_64-linux", "x86_64-linux", "2.13")


def passing(number: int) -> RecordedRun:
    return RecordedRun(number, "2026-11-21T03:17:00+00:00", passed=(LEG,))


@pytest.fixture
def remote(tmp_path: Path) -> str:
    place = tmp_path / "origin.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(place)], check=True)
    return str(place)


def numbers(remote: str, tmp_path: Path) -> list[int]:
    """The runs that a new clone has."""
    clone = tmp_path / f"look-{len(list(tmp_path.iterdir()))}"
    return sorted(int(path.name[:19]) for path in HistoryBranch(remote).fetch(clone).iterdir())


def test_the_branch_is_made_and_grows(remote: str, tmp_path: Path) -> None:
    branch = HistoryBranch(remote)
    assert numbers(remote, tmp_path) == []
    assert [branch.record([passing(1)]), branch.record([passing(2), passing(3)])] == [1, 2]
    assert numbers(remote, tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("empty", [True, False], ids=["the first two runs", "later runs"])
def test_a_run_that_was_recorded_in_between_stays(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    branch = HistoryBranch(remote)
    if not empty:
        branch.record([passing(1)])
    pushes: list[str] = []
    ask = history_module.remote_git

    def with_another_first(place: Path, *arguments: str, **how: Any) -> Any:
        if arguments[0] == "push":
            pushes.append(arguments[0])
            if len(pushes) == 1:
                branch.record([passing(7)])
        return ask(place, *arguments, **how)

    monkeypatch.setattr(history_module, "remote_git", with_another_first)
    assert branch.record([passing(6)]) == 1
    assert len(pushes) == 3, "of the other, and two"
    assert numbers(remote, tmp_path) == [*([] if empty else [1]), 6, 7]


def test_a_remote_that_gives_or_takes_nothing_is_said(remote: str, tmp_path: Path) -> None:
    nowhere = HistoryBranch(str(tmp_path / "nowhere"))
    failure(FindingsError, "cannot read", nowhere.fetch, tmp_path / "clone")
    hook = Path(remote) / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho this branch is protected >&2\nexit 1\n")
    hook.chmod(0o755)
    failure(FindingsError, "takes no commit", HistoryBranch(remote).record, [passing(1)])
