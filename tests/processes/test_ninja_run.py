"""A compiler that is killed for want of memory is run again alone, and what has no time left is ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from eaters import MIB, AfterLook, eat, let_go, linux, ninja_folder
from kci.errors import BuildFailedError
from kci.processes.memory_gate import Need
from kci.processes.ninja_run import NinjaRun, failed_commands, run_ninja, was_killed
from kci.processes.process import Finished
from kci.processes.running_commands import EndedCommand, RunningCommands

TEMPLATES = '#include <regex>\n#include <map>\n#include <iostream>\nstd::regex r{"a"};\nstd::map<int, std::regex> m;\n'

# as a driver says it of its compiler
KILLED = "sh -c 'kill -9 $$$$'"


class Runs:
    """Runs of a real ninja in one folder, and what was said and told."""

    def __init__(self, work: Path, commands: Mapping[str, str]) -> None:
        self.said: list[str] = []
        self.told: dict[str, EndedCommand] = {}
        self.run = NinjaRun(
            [*ninja_folder(work, commands), "-j3"], work, dict(os.environ), dict.fromkeys(commands, Need())
        )

    def go(self) -> Finished | None:
        return run_ninja(self.run, self.said.append, lambda item: self.told.update({item.output: item}))


def code(done: Finished | None) -> int | None:
    return done.code if done else None


def killed_in_company(output: str) -> str:
    """A command whose compiler is killed as long as its first run has left no trace."""
    return (
        f"if [ ! -e {output}.again ]; then touch {output}.again; {KILLED} || exit 1; fi; touch {output}; : -o {output}"
    )


def test_what_is_killed_is_compiled_again_alone(tmp_path: Path) -> None:
    commands = {
        "a.o": killed_in_company("a.o"),
        "b.o": killed_in_company("b.o"),
        "c.o": "touch c.o; : -o c.o",
        # after them: it would not be made if the build ended with the first failure
        "d.o": "touch d.o; : -o d.o",
    }
    runs = Runs(tmp_path, commands)
    assert code(runs.go()) == 0
    assert {output: item.alone for output, item in runs.told.items()} == {
        "a.o": True,
        "b.o": True,
        "c.o": False,
        "d.o": False,
    }
    for output in ("a.o", "b.o"):
        assert any(line.startswith(f"{output} was killed for want of memory") for line in runs.said)


def test_what_is_killed_alone_as_well_fails_with_what_to_do(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"a.o": f"{KILLED} || exit 1; : -o a.o", "b.o": "touch b.o; : -o b.o"})
    with pytest.raises(BuildFailedError, match=r"a\.o was killed for want of memory, alone as well") as raised:
        runs.go()
    assert re.search(r"this machine has \d+\.\d GiB", raised.value.message)
    assert "more memory" in raised.value.hint


def test_another_failure_is_not_tried_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"a.o": "echo tried >> tries; false; exit 1; : -o a.o"})
    assert code(runs.go()) not in (0, None)
    assert (tmp_path / "tries").read_text() == "tried\n"


@linux
def test_a_real_compiler_without_memory(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(TEMPLATES)
    runs = Runs(tmp_path, {"a.o": "ulimit -v 100000; g++ -O2 -c a.cpp -o a.o"})
    with pytest.raises(BuildFailedError, match="want of memory"):
        runs.go()
    # the same limit, and once room for it
    limit = "[ -e a.o.again ] && limit=unlimited || limit=100000; touch a.o.again; ulimit -v $$limit"
    runs = Runs(tmp_path, {"a.o": f"{limit}; g++ -O2 -c a.cpp -o a.o"})
    assert code(runs.go()) == 0
    assert runs.told["a.o"].alone


@pytest.mark.parametrize(
    "said",
    [
        "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "Killed",
        "clang++: error: unable to execute command: Killed",
        "cc1plus: out of memory allocating 65536 bytes after a total of 90000 bytes",
        "virtual memory exhausted: Cannot allocate memory",
        "LLVM ERROR: out of memory",
        "ptxas fatal   : Memory allocation failure",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_what_compilers_say_of_it(said: str) -> None:
    assert was_killed(said)
    (failed,) = failed_commands(f"FAILED: a.o \nnvcc a.cu\n{said}\nninja: build stopped")
    assert failed.killed


@pytest.mark.parametrize(
    "said",
    [
        'a.cpp:3:5: error: static assertion failed: out of memory\n    3 |   static_assert(x, "out of memory");',
        "   12 |   throw std::bad_alloc();\na.cpp:12:3: error: no",
        "a.cpp:1:1: error: 'Killed' was not declared",
    ],
)
def test_a_sources_own_words_are_no_sign_of_it(said: str) -> None:
    assert not was_killed(said)


@linux
def test_what_runs_may_end_and_nothing_begins_when_the_time_is_near(
    tmp_path: Path, after_look: AfterLook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of six run; then there is no time for another one: these two are made, and ninja is ended."""
    outputs = [f"{number}.o" for number in range(6)]
    watches: list[RunningCommands] = []

    def go(running: RunningCommands) -> None:
        watches.append(running)
        ready = [item.output for item in running._running.values() if item.running and item.resident > 20 * MIB]
        if len(ready) == 2 or running._ends_at is not None:
            running._needs = dict.fromkeys(outputs, Need(seconds=3600))
            running.end_at(now() + 1800)
            for output in ready:
                let_go(tmp_path, output)

    now = getattr(time, "monotonic")  # noqa: B009  - the end is half an hour away, and nothing waits for it
    after_look(go)
    runs = Runs(tmp_path, {output: eat(20, output) for output in outputs})
    runs.run = NinjaRun([*runs.run.command[:-1], "-j2"], tmp_path, dict(os.environ), runs.run.needs)
    assert runs.go() is None
    assert sorted(runs.told) == ["0.o", "1.o"]
    assert sorted(path.name for path in tmp_path.glob("?.o")) == ["0.o", "1.o"]


@linux
def test_what_runs_at_the_end_is_ended(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"a.o": eat(20, "a.o")})
    runs.run = NinjaRun(runs.run.command, tmp_path, dict(os.environ), runs.run.needs, ends_at=0.0)
    assert runs.go() is None
    assert [(item.output, item.lost) for item in runs.told.values()] == [("a.o", True)]


@linux
def test_what_is_begun_first_need_not_be_expected_to_end_in_time(tmp_path: Path, after_look: AfterLook) -> None:
    """All the time there is may be too little by what is known; it is tried, and nothing else begins behind it."""

    def go(running: RunningCommands) -> None:
        if running._began:
            let_go(tmp_path, "a.o")

    after_look(go)
    runs = Runs(tmp_path, {output: eat(20, output) for output in ("a.o", "b.o")})
    needs = dict.fromkeys(runs.run.needs, Need(seconds=3600))
    now = getattr(time, "monotonic")  # noqa: B009  - the end is half an hour away, and nothing waits for it
    runs.run = NinjaRun([*runs.run.command[:-1], "-j1"], tmp_path, dict(os.environ), needs, ends_at=now() + 1800)
    assert runs.go() is None
    assert [(item.output, item.lost) for item in runs.told.values()] == [("a.o", False)]


@linux
def test_what_was_lost_had_the_time_that_it_ran(tmp_path: Path, after_look: AfterLook) -> None:
    """Neither what had ended nor what waited for memory was lost."""
    outputs, looked = ("a.o", "b.o", "c.o"), list[float]()

    def go(running: RunningCommands) -> None:
        running._needs = {**running._needs, "c.o": Need(memory=2**50)}
        if len(running._running) == 3:
            let_go(tmp_path, "a.o")
        if running._made:
            looked.extend(item.seconds for item in running._running.values() if item.output == "b.o")
            running.end_at(0.0)

    after_look(go)
    runs = Runs(tmp_path, {output: eat(20, output) for output in outputs})
    assert runs.go() is None
    assert {item.output: item.lost for item in runs.told.values()} == {"a.o": False, "b.o": True}
    assert runs.told["b.o"].seconds >= round(max(looked), 3) > 0
