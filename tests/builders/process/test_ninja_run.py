"""A compiler that is killed for want of memory is run again alone, and what has no time left is
ended.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from conftest import failure
from kci.builders.native.ninja import deadline, failed_commands, run_ninja, was_killed
from kci.builders.process.machine import ninja_status
from kci.builders.process.run import ProgramResult
from kci.errors import BuildFailedError

# as a driver says it of its compiler
KILLED = "sh -c 'kill -9 $$$$'"


class Runs:
    """Runs of a real ninja in one folder, and what was said and told."""

    def __init__(self, work: Path, commands: Mapping[str, str], jobs: str = "-j3") -> None:
        self.said: list[str] = []
        made = "".join(f"build {name}: run\n  c = {text}\n" for name, text in commands.items())
        (work / "build.ninja").write_text(f"rule run\n  command = $c\n{made}")
        ninja = shutil.which("ninja")
        assert ninja is not None
        environment = {**os.environ, "NINJA_STATUS": ninja_status(())}
        self.command, self.environment = [ninja, "-C", str(work), jobs], environment
        self.objects = {name: name for name in commands}

    def go(self, ends_at: float = math.inf) -> ProgramResult | None:
        what = (self.command, self.objects, self.said.append)
        return run_ninja(*what, env=self.environment, ends_at=ends_at)


def code(done: ProgramResult | None) -> int | None:
    return done.code if done else None


def killed_in_company(output: str) -> str:
    """A command whose compiler is killed as long as its first run has left no trace."""
    first = f"if [ ! -e {output}.again ]; then touch {output}.again; {KILLED} || exit 1; fi"
    return f"{first}; touch {output}; : -o {output}"


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
    assert all((tmp_path / output).exists() for output in commands)
    said = "\n".join(runs.said)
    for output in ("a.o", "b.o"):
        assert f"{output} was killed because memory ran out" in said


def test_what_is_killed_alone_as_well_fails_with_what_to_do(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"a.o": f"{KILLED} || exit 1; : -o a.o", "b.o": "touch b.o; : -o b.o"})
    says = r"a\.o was killed because memory ran out, even alone"
    raised = failure(BuildFailedError, says, runs.go)
    assert re.search(r"this machine has \d+\.\d GiB", raised.message)
    assert "more memory" in raised.hint


def test_another_failure_is_not_tried_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"a.o": "echo tried >> tries; false; exit 1; : -o a.o"})
    assert code(runs.go()) not in (0, None)
    assert (tmp_path / "tries").read_text() == "tried\n"


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
        "a.cpp:3:5: error: static assertion failed: out of memory\n"
        '    3 |   static_assert(x, "out of memory");',
        "   12 |   throw std::bad_alloc();\na.cpp:12:3: error: no",
        "a.cpp:1:1: error: 'Killed' was not declared",
    ],
)
def test_a_sources_own_words_are_no_sign_of_it(said: str) -> None:
    assert not was_killed(said)


def test_what_runs_at_the_end_is_ended(tmp_path: Path) -> None:
    commands = {"a.o": "touch a.o; : -o a.o", "b.o": "mkfifo b.fifo && cat b.fifo; : -o b.o"}
    runs = Runs(tmp_path, commands, "-j1")
    assert runs.go(deadline(1 / 60)) is None
    assert [(tmp_path / name).exists() for name in ("a.o", "b.o")] == [True, False]


def test_an_end_that_has_passed_ends_it_at_once(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"a.o": "mkfifo a.fifo && cat a.fifo; : -o a.o"})
    assert runs.go(0.0) is None
