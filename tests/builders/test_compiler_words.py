"""What is said of a command that failed: the first error, its place in the kernel, and the command
to repeat.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from buildkit import CPU, copy_kernel, quiet, request, write_tree
from conftest import failure
from kci.builders.native import builder
from kci.builders.native.failures import (
    build_error,
    error_excerpt,
    failure_hint,
    find_error,
    show_kernel_paths,
)
from kci.builders.native.ninja import NINJA_LOG, failed_commands
from kci.builders.native.recipe import Recipe
from kci.builders.process.run import ProgramResult
from kci.builders.toolchains.environment import Environment
from kci.errors import BuildFailedError, first_error

NINJA = """\
ninja: Entering directory `/work'
[1/3 00:05] nvcc csrc/b.cu
FAILED: [code=2] obj/001/plus.cpp.o
/usr/bin/g++ -Ikernel/csrc -c kernel/csrc/plus.cpp -o obj/001/plus.cpp.o
{said}
[2/3 00:02] c++ torch-ext/torch_binding.cpp
FAILED: [code=1] obj/002/other.cpp.o
/usr/bin/g++ -c kernel/csrc/other.cpp
kernel/csrc/other.cpp:1:1: error: another one
ninja: build stopped: subcommand failed.
"""
GCC = (
    "kernel/csrc/plus.cpp: In function 'int f()':\n"
    "kernel/csrc/plus.cpp:7:3: error: 'x' was not declared\n    7 |   x;"
)
NVCC = (
    'kernel/csrc/a.cu(20): error: identifier "blokDim" is undefined\n'
    "    int64_t stride = blokDim.x;"
)
INSTANTIATED = """\
In file included from kernel/csrc/plus.cpp:2:
torch/include/c10/x.h: In instantiation of 'void f(T) [with T = int]':
kernel/csrc/plus.cpp:5:4:   required from here
torch/include/c10/x.h:3:5: error: static assertion failed"""
CUTLASS = """\
cutlass_4_0/include/a.hpp(44): error: static assertion failed with "no tile"
          detected during:
            instantiation of "void g<T>() [with T=int]" at line 50 of cutlass_4_0/include/b.hpp
            instantiation of "void h<T>() [with T=int]" at line 31 of kernel/csrc/a.cu"""


@pytest.mark.parametrize(
    ("said", "place", "text"),
    [
        (GCC, ("csrc/plus.cpp", 7, 3), "'x' was not declared"),
        (NVCC, ("csrc/a.cu", 20, 0), 'identifier "blokDim" is undefined'),
        (INSTANTIATED, ("csrc/plus.cpp", 5, 4),
            "static assertion failed (torch/include/c10/x.h:3)"),
        (CUTLASS, ("csrc/a.cu", 31, 0),
            'static assertion failed with "no tile" (cutlass_4_0/include/a.hpp:44)'),
        ("torch/include/a.h:1:2: error: alone", ("", 0, 0), "alone (torch/include/a.h:1)"),
        ("kernel/csrc/../../common/x.h:1:10: fatal error: y.h: No such file or "
         "directory", ("../common/x.h", 1, 10),
         "y.h: No such file or directory"),
        ("/usr/bin/ld: obj/001/a.o: in function `f':\n"
         "a.cpp:(.text+0x5): undefined reference to `g'\n"
         "collect2: error: ld returned 1 exit status", ("", 0, 0), "undefined reference to `g'"),
        ("ptxas error   : Entry function 'k' uses too much shared data", ("", 0, 0),
         "ptxas error   : Entry function 'k' uses too much shared data"),
        ('kernel/csrc/a.cu(7): warning #177-D: variable "error" was declared\n\n' + NVCC,
            ("csrc/a.cu", 20, 0),
         'identifier "blokDim" is undefined'),
        ("hip/csrc/cuda/a.cu:9:1: error: unknown type", ("csrc/cuda/a.cu", 9, 1), "unknown type"),
    ],
)  # fmt: skip
def test_the_first_error_and_its_place_in_the_kernel(
    said: str, place: tuple[str, int, int], text: str
) -> None:
    spot = find_error(said.splitlines())
    assert spot is not None
    assert ((spot.path, spot.line, spot.column), spot.text) == (place, text)


def test_the_output_of_the_first_command_alone() -> None:
    failed, other = failed_commands(NINJA.format(said=GCC))
    assert (failed.output, other.output) == ("obj/001/plus.cpp.o", "obj/002/other.cpp.o")
    assert failed.command.startswith("/usr/bin/g++ -Ikernel/csrc ")
    assert failed.lines == tuple(GCC.splitlines())
    (older,) = failed_commands("FAILED: obj/a.o \ng++ -c a.cpp\na.cpp:1:1: error: no")
    assert (older.output, older.command) == ("obj/a.o", "g++ -c a.cpp")
    assert failed_commands("ninja: error: loading 'build.ninja': No such file or directory") == []
    assert find_error(["Segmentation fault"]) is None


def test_an_error_between_thousands_of_lines_is_shown() -> None:
    said = ["note"] * 5000 + ["a.cu(1): error: this"] + ["more"] * 5000
    spot = find_error(said)
    assert spot is not None
    shown = error_excerpt(said, spot.line_index)
    assert "a.cu(1): error: this" in shown
    assert shown[0] == "... (4988 lines before it)"
    assert shown[-1] == "... (4983 lines after it)"
    assert len(shown) == 32


@pytest.mark.parametrize(
    ("said", "kernel", "shown"),
    [
        ("kernel/csrc/a.cu(2): error: no", "relu", "relu/csrc/a.cu(2): error: no"),
        ("hip/csrc/a.cu:2:1: error: no", "relu", "relu/csrc/a.cu:2:1: error: no"),
        ("kernel/csrc/a.cpp:2:1: error: no", "", "csrc/a.cpp:2:1: error: no"),
        ("In file included from kernel/a.h:2:", "/src/k", "In file included from /src/k/a.h:2:"),
        ("/usr/bin/g++ -Ikernel/csrc -c kernel/csrc/a.cpp", "relu", ""),
    ],
)
def test_files_are_named_as_the_user_names_them(said: str, kernel: str, shown: str) -> None:
    """And a command is left as it is."""
    assert show_kernel_paths(said, Path(kernel)) == (shown or said)


def failed_with(said: str) -> ProgramResult:
    return ProgramResult(1, NINJA.format(said=said))


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(builder, "this_system", lambda: "x86_64-linux")
    what = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    return builder.plan(what, quiet)


def test_a_first_build_tells_no_time_before_a_source_is_compiled(planned: Recipe) -> None:
    unit = next(step.label for step in planned.steps if step.depfile)
    warned = "a.cpp:1:1: warning: it"
    steps = [f"[2/9 00:31] {unit}", "[3/9 00:20] ar other"]
    for known, first in ((False, "[1/9] ar newer"), (True, "[1/9 00:00] ar newer")):
        shown: list[str] = []
        if known:
            planned.work.mkdir(parents=True)
            (planned.work / NINJA_LOG).touch()
        tell = builder._display_log(shown.append, planned)
        for line in ("[1/9 00:00] ar newer", *steps, f"kernel/{warned}"):
            tell(line)
        assert shown == [first, *steps, f"{planned.request.kernel_dir}/{warned}"]


def test_the_log_has_of_failed_commands_what_the_error_has_not(planned: Recipe) -> None:
    told: list[str] = []
    tell = builder._display_log(told.append, planned)
    for line in NINJA.format(said=GCC).splitlines():
        tell(line)
    steps = [line.partition("] ")[2] for line in told if not line.startswith("ninja: ")]
    assert steps == ["nvcc csrc/b.cu", "c++ torch-ext/torch_binding.cpp"]
    logged: list[str] = []
    build_error(planned, failed_with(GCC), logged.append)
    command = "/usr/bin/g++ -c kernel/csrc/other.cpp"
    other = f"{planned.request.kernel_dir}/csrc/other.cpp:1:1: error: another one"
    assert logged == ["FAILED: obj/002/other.cpp.o", command, other]
    build_error(planned, failed_with(GCC + "\nnote" * 40), logged.append)
    assert logged.count("note") == 40, "the message has 30 lines of it"


@pytest.mark.rule("KCI513", triggers=True)
def test_the_error_of_a_failed_build(planned: Recipe) -> None:
    error = build_error(planned, failed_with(GCC))
    (found,) = error.diagnostics
    place, message = f"{planned.request.kernel_dir}/csrc/plus.cpp:7:3", "'x' was not declared"
    assert (found.rule, found.place, found.message) == ("KCI513", place, message)
    lines = error.message.splitlines()
    assert lines[0].startswith(f"building {CPU} failed at ")
    assert lines[0].endswith("(and 1 other command)")
    command = "/usr/bin/g++ -Ikernel/csrc -c kernel/csrc/plus.cpp -o obj/001/plus.cpp.o"
    assert lines[-1] == f"  cd {planned.work} && {command}"
    assert "another one" not in error.message
    assert lines[2] == first_error(error) == f"{place}: error: {message}"


@pytest.mark.rule("KCI513", triggers=False)
def test_a_ninja_that_could_not_begin_is_no_compile_error(planned: Recipe) -> None:
    error = build_error(planned, ProgramResult(1, "ninja: error: build.ninja:3: bad\n"))
    assert error.diagnostics == ()
    assert "ninja: error: build.ninja:3: bad" in error.message


AGAIN = "correct that, and run the same command again: kci keeps what compiled"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("kernel/csrc/plus.cpp:1:10: fatal error: deep/x.h: No such file or directory",
         'deep/x.h is lib/deep/x.h: add "lib/deep/x.h" to `src` and "lib" to `include` of [torch] '
         'in build.toml'),
        ("kernel/csrc/plus_one.cpp:1:10: fatal error: near.h: No such file or directory",
         'near.h is csrc/near.h: add "csrc/near.h" to `src` of [kernel.plus_one_cpu] in '
         'build.toml'),
        ("kernel/torch-ext/torch_binding.cpp:1:10: fatal error: plus_one.h: No such file or "
         "directory",
         'plus_one.h is csrc/plus_one.h: add "csrc" to `include` of [torch] in build.toml'),
        ('kernel/csrc/a.cu(1): catastrophic error: cannot open source file "x.h"',
         'x.h is lib/deep/x.h: add "lib/deep/x.h" to `src` and "lib/deep" to `include` of [torch] '
         'in build.toml'),
        ("kernel/csrc/plus.cpp:1:10: fatal error: 'top.h' file not found",
         'top.h is top.h: add "top.h" to `src` and "." to `include` of [torch] in build.toml'),
        ("kernel/csrc/plus.cpp:1:10: fatal error: old.h: No such file or directory", AGAIN),
        ("kernel/csrc/plus.cpp:1:10: fatal error: gone.h: No such file or directory", AGAIN),
        ("kernel/csrc/plus.cpp:1:10: error: x.h", AGAIN),
    ],
)  # fmt: skip
def test_a_header_that_lies_elsewhere_in_the_kernel(planned: Recipe, said: str, hint: str) -> None:
    names = ("lib/deep/x.h", "top.h", "csrc/near.h", "build/old.h", ".git/gone.h")
    write_tree(planned.request.kernel_dir, dict.fromkeys(names, ""))
    assert build_error(planned, failed_with(said)).hint == hint


# --- a full disk, and a flag of another processor ---


def test_a_full_cache_is_not_taken_for_a_full_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    monkeypatch.setattr(builder, "this_system", lambda: "x86_64-linux")
    monkeypatch.setattr(Environment, "ensure", lambda *_: None)
    monkeypatch.setattr(builder, "_check_torch", lambda *_: None)
    monkeypatch.setattr(builder, "_prepare", full)
    caught = failure(BuildFailedError, "No space left on device", builder.build, what, quiet)
    assert str(tmp_path / "cache" / "work") in caught.message
    assert "KCI_CACHE" in caught.hint


UNKNOWN = "error: unrecognized command-line option"
NO_FLAG = "compilers for aarch64-linux have no flag"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (f"aarch64-linux-gnu-g++: {UNKNOWN} ‘-mavx2’; did you mean ‘-maix’?", f"{NO_FLAG} -mavx2,"),
        ("cc1plus: error: unknown value ‘native’ for ‘-march’", f"{NO_FLAG} -march=native,"),
        ("clang++: error: unsupported option '-mavx512f' for target 'a'", f"{NO_FLAG} -mavx512f,"),
        (f"{UNKNOWN} ‘-fno’", ""),
        ("fatal error: error writing to /tmp/x.s: No space left on device", "free space"),
        ("a.cpp:1:10: fatal error: cublas_v2.h: No such file", "cublas_v2.h belongs to a CUDA"),
        ("a.h:5:2: error: #error C++20 or later compatible compiler is required to use PyTorch.",
         "needs C++20: remove `-std` from the flags"),
        ("/x/pybind11/cast.h:1:2: error: no", "pybind11's headers do not compile"),
        ("Killed", "a compiler was killed"),
        ("error: expected ';'", ""),
    ],
)  # fmt: skip
def test_what_is_typical_of_a_bare_machine_gets_a_hint(said: str, hint: str) -> None:
    told = failure_hint(f"{said}\n", Path("work"), "aarch64-linux")
    assert hint in told
    assert bool(told) == bool(hint)
