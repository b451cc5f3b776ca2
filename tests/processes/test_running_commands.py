"""What ninja's commands take while they run: a real ninja, real compilers, and programs that hold a known memory."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from eaters import MIB, AfterLook, eat, let_go, linux, ninja_runs
from kci.processes import running_commands
from kci.processes.running_commands import NINJA_LOG, EndedCommand, RunningCommands


@linux
def test_the_memory_of_all_processes_of_a_command_is_told(tmp_path: Path, after_look: AfterLook) -> None:
    told: dict[str, EndedCommand] = {}
    commands = {
        "tree.o": eat(60, "tree.o", more="--child"),
        "shell.o": f"{eat(90, 'shell.o')} && : -o shell.o",
        "short.o": "cp /dev/null -T short.o && : -o short.o",
    }
    wanted = {"tree.o": 120 * MIB, "shell.o": 90 * MIB}

    def go(running: RunningCommands) -> None:
        for output, peak in wanted.items():
            if (running.peak(output) or 0) > peak:
                let_go(tmp_path, output)

    after_look(go)
    ninja_runs(tmp_path, commands, lambda item: told.update({item.output: item}), "-j3")
    peaks = {output: item.peak for output, item in told.items()}
    assert peaks["short.o"] is None
    assert {output: 0 < (peaks[output] or 0) - least < 70 * MIB for output, least in wanted.items()} == {
        "tree.o": True,
        "shell.o": True,
    }
    assert told["tree.o"].seconds > 0


def test_a_real_compiler_is_seen_behind_its_driver(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include <regex>\n#include <iostream>\nstd::regex r{"a"};\n')
    told: list[EndedCommand] = []
    ninja_runs(tmp_path, {"obj/a.o": "g++ -O2 -c a.cpp -o obj/a.o"}, told.append)
    assert [item.output for item in told] == ["obj/a.o"]
    if sys.platform.startswith("linux"):
        assert told[0].peak is not None
        assert 60 * MIB < told[0].peak < 2000 * MIB


@linux
def test_each_end_is_told_while_others_run_and_one_that_fails_is_not(tmp_path: Path, after_look: AfterLook) -> None:
    told: list[str] = []
    commands = {
        "first.o": "touch first.o && : -o first.o",
        "last.o": eat(20, "last.o"),
        "bad.o": f"{eat(40, 'bad.o')} && false",
    }

    def go(running: RunningCommands) -> None:
        if told == ["first.o"] and all((running.peak(output) or 0) > 20 * MIB for output in ("last.o", "bad.o")):
            let_go(tmp_path, "last.o")
        if told == ["first.o", "last.o"] and (running.peak("bad.o") or 0) > 40 * MIB:
            let_go(tmp_path, "bad.o")

    after_look(go)
    running = ninja_runs(tmp_path, commands, lambda item: told.append(item.output), "-j3")
    assert told == ["first.o", "last.o"]
    assert (running.peak("bad.o") or 0) > 40 * MIB


def test_what_ninja_did_before_is_not_told_again(tmp_path: Path) -> None:
    told: list[str] = []
    ninja_runs(tmp_path, {"a.o": "touch a.o && : -o a.o"}, lambda item: told.append(item.output))
    ninja_runs(tmp_path, {"a.o": "touch a.o && : -o a.o"}, lambda item: told.append(item.output))
    assert told == ["a.o"]
    (tmp_path / NINJA_LOG).write_text("# ninja log v1\n1\t2\n")  # ninja makes a new one of one that it cannot read
    ninja_runs(tmp_path, {"b.o": "touch b.o && : -o b.o"}, lambda item: told.append(item.output))
    assert told == ["a.o", "b.o"]


def test_what_the_callback_raises_reaches_the_one_who_builds(tmp_path: Path) -> None:
    def full(_item: EndedCommand) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        ninja_runs(tmp_path, {"a.o": "touch a.o && : -o a.o"}, full)


def test_without_proc_ends_are_told_and_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.cpp").write_text("#include <regex>\n")
    monkeypatch.setattr(running_commands, "_PROC", tmp_path / "proc")
    told: list[EndedCommand] = []
    ninja_runs(tmp_path, {"a.o": "g++ -O2 -c a.cpp -o a.o"}, told.append)
    assert [(item.output, item.peak) for item in told] == [("a.o", None)]


@linux
def test_while_an_object_is_kept_others_are_looked_at(tmp_path: Path, after_look: AfterLook) -> None:
    """Keeping takes seconds where an object has read all of torch and nothing of it is known."""
    seen = threading.Event()
    kept: dict[str, bool] = {}

    def keep(item: EndedCommand) -> None:
        kept[item.output] = seen.wait(30)

    def go(running: RunningCommands) -> None:
        if not seen.is_set() and "first.o" in running._made and (running.peak("last.o") or 0) > 30 * MIB:
            seen.set()
        if kept:
            let_go(tmp_path, "last.o")

    after_look(go)
    commands = {"first.o": "touch first.o && : -o first.o", "last.o": eat(30, "last.o")}
    ninja_runs(tmp_path, commands, keep, "-j1")
    assert kept == {"first.o": True, "last.o": True}
