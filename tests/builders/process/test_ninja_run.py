"""A compiler that is killed for want of memory is run again alone, and what has no time left is
ended.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from buildkit import program, warm_cache
from conftest import failure
from kci.builders.native.ninja import (
    Step,
    deadline,
    failed_commands,
    ninja_status,
    ninja_text,
    run_ninja,
)
from kci.builders.process.machine import Progress, read_progress
from kci.builders.process.run import ProgramResult, run_in_group
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
        environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
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
    says = r"a\.o was killed because memory ran out, even alone; this machine has \d+\.\d GiB"
    assert "more memory" in failure(BuildFailedError, says, runs.go).hint
    # another failure is not tried again
    runs = Runs(tmp_path, {"a.o": "echo tried >> tries; false; exit 1; : -o a.o"})
    assert code(runs.go()) not in (0, None)
    assert (tmp_path / "tries").read_text() == "tried\n"


@pytest.mark.parametrize(
    ("said", "killed"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus\n"
         "compilation terminated.", True),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", True),
        ("Killed", True),
        ("clang++: error: unable to execute command: Killed", True),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 90000 bytes", True),
        ("virtual memory exhausted: Cannot allocate memory", True),
        ("LLVM ERROR: out of memory", True),
        ("ptxas fatal   : Memory allocation failure", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("a.cpp:3:5: error: static assertion failed: out of memory\n"
         '    3 |   static_assert(x, "out of memory");', False),
        ("   12 |   throw std::bad_alloc();\na.cpp:12:3: error: no", False),
        ("a.cpp:1:1: error: 'Killed' was not declared", False),
    ],
)  # fmt: skip
def test_what_compilers_say_of_it_and_what_a_source_says(said: str, killed: bool) -> None:
    (failed,) = failed_commands(f"FAILED: a.o \nnvcc a.cu\n{said}\nninja: build stopped")
    assert failed.killed is killed


def test_what_runs_at_the_end_is_ended(tmp_path: Path) -> None:
    commands = {"a.o": "touch a.o; : -o a.o", "b.o": "mkfifo b.fifo && cat b.fifo; : -o b.o"}
    runs = Runs(tmp_path, commands, "-j1")
    assert runs.go(deadline(1 / 60)) is None
    assert [(tmp_path / name).exists() for name in ("a.o", "b.o")] == [True, False]
    (tmp_path / "b.fifo").unlink()
    assert runs.go(0.0) is None, "an end that has passed"


# --- its progress and its pools ---


def test_only_a_newer_ninja_is_asked_for_the_time(tmp_path: Path) -> None:
    for says, asked in (("echo 1.13.2", True), ("echo 1.11.1", False), ("exit 1", False)):
        assert ("%W" in ninja_status(program(tmp_path, "ninja", says))) is asked, says


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("[3/10] c++ csrc/relu.cpp", Progress(3, 10, None, "c++ csrc/relu.cpp")),
        ("[3/10 01:05] nvcc a b.cu", Progress(3, 10, 65, "nvcc a b.cu")),
        ("[3/10 1:00:05] link x.so", Progress(3, 10, 3605, "link x.so")),
        ("[3/10 ?] link x.so", Progress(3, 10, None, "link x.so")),
        ("[note] hello", None),
        ("a.cpp:3: [1/2] warning", None),
        ("[1/2", None),
    ],
)
def test_what_ninja_says_of_its_progress(line: str, progress: Progress | None) -> None:
    assert read_progress(line) == progress


@pytest.mark.torch
def test_a_real_ninja_says_its_progress_and_keeps_to_a_pool(tmp_path: Path) -> None:
    cache = warm_cache(tmp_path)
    ninja = next((cache / "envs").glob("torch-2.13.0-cpu-*/bin/ninja")).absolute()
    alone = "mkdir busy && touch $@ && rmdir busy"  # fails beside another one
    steps = [
        Step(f"{name}.o", (), ("sh", "-c", alone.replace("$@", f"{name}.o")), name, pool="cuda")
        for name in "abc"
    ]
    (tmp_path / "build.ninja").write_text(ninja_text(steps, "a.o", "b.o", "c.o", pools={"cuda": 1}))
    said: list[str] = []
    environment = {**os.environ, "NINJA_STATUS": ninja_status(ninja)}
    command = [str(ninja), "-C", str(tmp_path), "-j3"]
    assert run_in_group(command, said.append, env=environment).code == 0
    told = [progress for line in said if (progress := read_progress(line))]
    assert [(item.done, item.total) for item in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1].seconds_left == 0


# --- the build file ---


def test_the_whole_text() -> None:
    command = ("cc", "-DX=$HOME", "a b")
    what = ("obj/a b.o", ("/k$1/a b:c.cpp",), command, "c++ a", ("gen.h",))
    link = Step("lib.so", ("obj/a b.o",), ("cc", "-o", "lib.so"), "link")
    steps = [Step(*what, depfile=True, pool="cpu"), link]
    assert ninja_text(steps, "lib.so", pools={"cpu": 2}) == (
        "# Generated by kci.\n"
        "ninja_required_version = 1.7\n"
        "pool cpu\n  depth = 2\n"
        "rule make\n  command = $run\n  description = $what\n"
        "build obj/a$ b.o: make /k$$1/a$ b$:c.cpp | gen.h\n"
        "  run = cc '-DX=$$HOME' 'a b'\n"
        "  what = c++ a\n"
        "  pool = cpu\n"
        "build lib.so: make obj/a$ b.o\n"
        "  run = cc -o lib.so\n"
        "  what = link\n"
        "default lib.so\n"
    )


NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned;",
    "a'b\"c",
    "$out $in ${x}",
    "&& touch pwned",
]
NASTY += ["#", "*", "\\", "~", ""]


def test_every_argument_arrives_as_it_is(tmp_path: Path) -> None:
    ninja = shutil.which("ninja", path=str(Path(sys.executable).parent)) or shutil.which("ninja")
    if ninja is None:
        pytest.skip("ninja is not installed")
    code = "import sys, pathlib; pathlib.Path('out.txt').write_text(repr(sys.argv[1:]))"
    step = Step("out.txt", (), (sys.executable, "-c", code, *NASTY), "say $HOME")
    (tmp_path / "build.ninja").write_text(ninja_text([step], "out.txt", pools={}))
    subprocess.run([ninja, "-C", str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "out.txt").read_text() == repr(NASTY)
    assert not (tmp_path / "pwned").exists()
