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


def told(display: RunDisplay, outcome: Outcome, **changes: object) -> None:
    for name, value in changes.items():
        setattr(outcome, name, value)
    display.changed(outcome)


def test_lines_of_variants_do_not_run_into_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = Outcome("relu", variant(CPU)), Outcome("relu", variant(STABLE_CPU))
    with RunDisplay([one, other], Options(verbose=True)) as display:
        for outcome in (one, other):
            told(display, outcome, state=OutcomeState.BUILDING)
        told(display, one, line="one a")
        told(display, other, line="other a")
        told(display, one, line="one b")
        told(display, other, state=OutcomeState.BUILT, seconds=3)
        told(display, one, line="one c")
    assert capsys.readouterr().err.splitlines() == [
        f"relu {CPU}: building",
        f"relu {STABLE_CPU}: building",
        "  other a",
        f"relu {STABLE_CPU}: built in 3 s",
        "  one a",  # what was stopped is told at the end
        "  one b",
        "  one c",
    ]


def test_a_terminal_keeps_steps_and_warnings_above_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table shows the last line of each variant, so that the next one would take its place."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    kept = (
        "warning: torch is for [CUDA 13.0]",
        "note: torch is not in the cache: getting it, which took 52 s the last time",
        "waiting for another kci process that uses /cache/envs",
    )
    one = Outcome("relu", variant(CPU), progress=Progress(3, 10, 65, ""), note="c++ csrc/a.cpp")
    far = Outcome("relu", variant(STABLE_CPU), state=OutcomeState.LEFT)
    with RunDisplay([one, far], Options()) as display:
        for line in (*kept, kept[0], "installing torch"):
            told(display, one, state=OutcomeState.BUILDING, line=line)
    shown = terminal.getvalue()
    assert [shown.count(f"{line}\n") for line in kept] == [1, 1, 1]
    assert "installing torch" not in shown
    left = ("3/10, 1 min 05 s left", "1 left for other machines")
    assert [part for part in (CPU, "building", "c++ csrc/a.cpp", *left) if part not in shown] == []
