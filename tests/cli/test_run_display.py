"""What `kci run` shows of several builds at once."""

from __future__ import annotations

import io
import sys

import pytest

from buildkit import CPU, STABLE_CPU, variant
from kci.builders.process.machine import Progress
from kci.cli._output import Options
from kci.cli.run import RunDisplay
from kci.run.local import Outcome, OutcomeState


def change(outcome: Outcome, **changes: object) -> Outcome:
    for name, value in changes.items():
        setattr(outcome, name, value)
    return outcome


def test_lines_of_variants_do_not_run_into_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = Outcome("relu", variant(CPU)), Outcome("relu", variant(STABLE_CPU))
    with RunDisplay([one, other], Options(verbose=True)) as display:
        changed = display.changed
        for outcome in (one, other):
            changed(change(outcome, state=OutcomeState.BUILDING))
        changed(change(one, line="one a"))
        changed(change(other, line="other a"))
        changed(change(one, line="one b"))
        changed(change(other, state=OutcomeState.BUILT, seconds=3))
        changed(change(one, line="one c"))
    assert capsys.readouterr().err.splitlines() == [
        f"relu {CPU}: building",
        f"relu {STABLE_CPU}: building",
        "  other a",
        f"relu {STABLE_CPU}: built in 3 s",
        "  one a",  # what was stopped is told at the end
        "  one b",
        "  one c",
    ]


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal in place of stderr."""
    made = io.StringIO()
    monkeypatch.setattr(made, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return made


def test_a_terminal_shows_units_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    one = Outcome("relu", variant(CPU))
    far = Outcome("relu", variant(STABLE_CPU), state=OutcomeState.LEFT)
    now = {"progress": Progress(3, 10, 65, ""), "note": "c++ csrc/a.cpp"}
    with RunDisplay([one, far], Options()) as display:
        display.changed(change(one, state=OutcomeState.BUILDING, **now))
    shown = terminal.getvalue()
    left = ("3/10, 1 min 05 s left", "1 left for other machines")
    for part in (CPU, "building", "c++ csrc/a.cpp", *left):
        assert part in shown


STEP = "note: torch is not in the cache: getting it, which took 52 s the last time"
WAITING = "waiting for another kci process that uses /cache/envs"
WARNING = "warning: torch is for [CUDA 13.0]"


def test_a_terminal_keeps_steps_and_warnings_above_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table shows the last line of each variant, so that the next one would take its place."""
    terminal = terminal_for(monkeypatch)
    one = Outcome("relu", variant(CPU))
    with RunDisplay([one], Options()) as display:
        for line in (STEP, WARNING, WARNING, WAITING, "installing torch"):
            display.changed(change(one, state=OutcomeState.BUILDING, line=line, note=""))
    for kept in (WARNING, STEP, WAITING):
        assert terminal.getvalue().count(f"{kept}\n") == 1
    assert "installing torch" not in terminal.getvalue()
