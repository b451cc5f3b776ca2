# ruff: noqa: E501  - code of other languages, a case a line
"""`kci init --from` with a CMakeLists.txt that finds torch: it is read, and a draft comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import Result, kci
from kci.config.reader import read_kernel
from kci.starter.cmake_text import Argument, Condition, by_language, read_commands
from kci.starter.read_cmake import cmake_file, read_cmake

PYPROJECT = """
[build-system]
requires = ["scikit-build-core", "torch"]
build-backend = "scikit_build_core.build"
[project]
name = "fast-add"
license = "BSD-3-Clause"
[tool.scikit-build]
wheel.packages = ["python/fast_add"]
cmake.define = { WITH_FAST = true }
"""
CMAKE = """
cmake_minimum_required(VERSION 3.26)
project(${SKBUILD_PROJECT_NAME} LANGUAGES CXX) # one
option(USE_CUDA "with CUDA (or not)" OFF)
option(WITH_FAST "fast" OFF)
option(BUILD_TESTS "tests" ON)
find_package(Torch REQUIRED)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -O3")
function(add_flags name)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CUDA>:--use_fast_math;-lineinfo>)
endfunction()
file(GLOB CPU_SOURCES CONFIGURE_DEPENDS csrc/cpu/*.cpp)
list(APPEND SOURCES csrc/ops.cpp ${CPU_SOURCES})
if(USE_CUDA AND NOT (CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0))
  enable_language(CUDA)
  list(APPEND SOURCES csrc/cuda/add.cu)
elseif(DEFINED NOTHING)
  message(FATAL_ERROR "never")
endif()
if(WITH_FAST)
  add_compile_definitions(FAST=2)
endif()
if(BUILD_TESTS)
  add_subdirectory(tests)
endif()
add_subdirectory(csrc/core)
Python_add_library(_C MODULE WITH_SOABI ${SOURCES})
target_link_libraries(_C PRIVATE ${TORCH_LIBRARIES} core magma OpenMP::OpenMP_CXX)
target_include_directories(_C PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
if(USE_CUDA)
  target_compile_definitions(_C PRIVATE WITH_CUDA)
endif()
add_flags(_C)
install(TARGETS _C LIBRARY DESTINATION fast_add)
"""
PROJECT = {
    "pyproject.toml": PYPROJECT,
    "CMakeLists.txt": CMAKE,
    "csrc/core/CMakeLists.txt": "add_library(core STATIC core.cpp)\ntarget_include_directories(core PUBLIC include)\n",
    "csrc/core/core.cpp": '#include "core.h"\nat::Tensor add(at::Tensor a) { return a + 1; }\n',
    "csrc/core/include/core.h": "#pragma once\n#include <torch/all.h>\nat::Tensor add(at::Tensor a);\n",
    "csrc/ops.cpp": '#include <torch/extension.h>\n#include "core.h"\nPYBIND11_MODULE(_C, m) { m.def("add", &add); }\n',
    "csrc/cpu/one.cpp": "",
    "csrc/cpu/deep/other.cpp": "",
    "csrc/cuda/add.cu": "",
    "python/fast_add/__init__.py": "from ._C import add\n",
}


def taken(place: Path, files: dict[str, str]) -> Result:
    write_tree(place / "old", files)
    return kci("init", "fast-add", "--from", "old", "-y")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_variable_can_be_unset(here: Path) -> None:
    text = "set(EXTRA -DFIRST)\nset(KEPT -DKEPT)\nunset(EXTRA)\nunset()\nadd_compile_options(${EXTRA} ${KEPT})\n"
    files = PROJECT | {
        "CMakeLists.txt": CMAKE.replace("find_package(Torch REQUIRED)\n", "find_package(Torch REQUIRED)\n" + text)
    }
    assert taken(here, files).code == 0
    flags = read_kernel(here / "fast-add").build.kernel["fast_add_cpu"].cxx_flags
    assert ("-DKEPT" in flags, "-DFIRST" in flags) == (True, False)


def test_what_each_round_of_a_loop_says_is_said_once(here: Path) -> None:
    text = "foreach(one a b c)\nadd_custom_command(OUTPUT ${one})\nendforeach()\n"
    files = PROJECT | {
        "CMakeLists.txt": CMAKE.replace("find_package(Torch REQUIRED)\n", "find_package(Torch REQUIRED)\n" + text)
    }
    made = taken(here, files)
    assert made.stdout.count("add_custom_command: kci fetches and generates nothing") == 1
    build = (here / "fast-add" / "build.toml").read_text()
    assert build.count("add_custom_command") == 1
    assert "taken over from an existing extension" in build


def test_what_cmake_would_build_becomes_a_draft_without_running_anything(here: Path) -> None:
    made = taken(here, PROJECT)
    assert made.code == 0, made.stdout + made.stderr
    assert "CMakeLists.txt was read, and not run" in made.stdout
    build = read_kernel(here / "fast-add").build
    assert (build.general.license, build.general.backends) == ("BSD-3-Clause", ("cpu", "cuda"))
    cpu, cuda = build.kernel["fast_add_cpu"], build.kernel["fast_add_cuda"]
    assert cpu.src == ("csrc/ops.cpp", "csrc/cpu/one.cpp", "csrc/core/core.cpp", "csrc/core/include/core.h")
    assert cuda.src == (*cpu.src[:2], "csrc/cuda/add.cu", *cpu.src[2:])
    assert cpu.include == ("csrc", "csrc/core/include")
    assert cpu.cxx_flags == ("-Wall", "-O3", "-DFAST=2", "-fopenmp")
    assert cuda.cxx_flags == ("-DWITH_CUDA", "-Wall", "-O3", "-DFAST=2", "-fopenmp")
    assert cuda.cuda_flags == ("-DWITH_CUDA", "--use_fast_math", "-lineinfo", "-DFAST=2")  # type: ignore[union-attr]
    package = here / "fast-add" / "torch-ext" / "fast_add" / "__init__.py"
    assert package.read_text() == "from ._ops import ops as _kernel_ops; add = _kernel_ops.add\n"
    assert "CMakeLists.txt:28: it links `magma`" in made.stdout
    assert "2 things left" in made.stdout
    (whole,) = (
        read_cmake({name: text.encode() for name, text in PROJECT.items()}, "CMakeLists.txt")
        .by_backend["cpu"]
        .extensions
    )
    assert whole.flags["cxx"].count("-O3") == 2, "once for each of the two targets"


def test_a_setup_py_that_only_calls_cmake_leads_to_the_cmake_files(here: Path) -> None:
    setup = "from setuptools import setup, Extension\nsetup(ext_modules=[Extension('_C', [])])\n"
    write_tree(here / "old", {**PROJECT, "setup.py": setup})
    made = kci("init", "fast-add", "--from", "old", "-y", "--run")
    assert made.code == 0, made.stderr
    assert "CMakeLists.txt was read, and not run" in made.stdout


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"pyproject.toml": PYPROJECT}, "nor a CMakeLists.txt that finds torch"),
        ({"CMakeLists.txt": "project(x)\nadd_library(x MODULE a.cpp)"}, "nor a CMakeLists.txt that finds torch"),
        ({"CMakeLists.txt": "find_package(Torch)\nadd_library(x MODULE a.cpp)"}, "no module that links torch"),
        ({"CMakeLists.txt": "find_package(Torch)\nif(A"}, "no module that links torch"),
        (
            {"CMakeLists.txt": "find_package(Torch)\nif(A)\n"},
            "CMakeLists.txt:0: for cpu it ends with what kci cannot read",
        ),
        (
            {"CMakeLists.txt": 'find_package(Torch)\nmessage(FATAL_ERROR "no luck")'},
            ":2: for cpu it ends with its own error",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(files: dict[str, str], said: str, here: Path) -> None:
    made = taken(here, files)
    assert made.code in (1, 2)
    assert said in made.stderr
    assert "begin with `kci init NAME`, copy your sources" in made.stderr
    assert not (here / "fast-add").exists()


def test_what_always_asks_for_cuda_is_no_kernel_for_the_cpu() -> None:
    text = (
        b"project(a LANGUAGES CXX CUDA)\nfind_package(Torch REQUIRED)\nfind_package(Eigen3 REQUIRED)\n"
        b"pybind11_add_module(_C a.cpp ../../out.cu)\ntarget_link_libraries(_C PRIVATE torch)\n"
        b"target_compile_options(_C PRIVATE $<$<AND:1,0>:-x>)\nFetchContent_MakeAvailable(json)\ninclude(cmake/gone.cmake)\n"
    )
    runs = read_cmake({"CMakeLists.txt": text, "a.cpp": b""}, "CMakeLists.txt")
    assert runs.by_backend["cpu"].error == "the language CUDA, which it always asks for"
    (made,) = runs.by_backend["cuda"].extensions
    assert made.sources == ("a.cpp", "/out.cu")
    said = "\n".join(runs.left)
    for left in (
        "it needs Eigen3",
        "`$<$<AND:1,0>:-x>` is left out",
        "fetches and generates nothing",
        "cmake/gone.cmake is not here",
    ):
        assert left in said


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("A", True), ("NOT A", False), ("B", False), ("NONE", False), ("ON AND NOT B", True), ("B OR A AND B", False),
        ("(B OR A) AND A", True), ("VERSION VERSION_GREATER_EQUAL 12.4", True), ("VERSION VERSION_LESS 12.10", False),
        ('"x" STREQUAL NAME', True), ("NAME MATCHES x", True), ("NAME MATCHES X", False), ('NAME MATCHES "^(a|x)$"', True), ('NAMES MATCHES "^x"', False), ("DEFINED A", True), ("x IN_LIST NAMES", True),
        ("A-NOTFOUND", False), ("1", True), ("0", False), ('"A"', False),
    ],
)  # fmt: skip
def test_a_condition_holds_as_in_cmake(condition: str, holds: bool) -> None:
    values = {"A": "yes", "B": "OFF", "VERSION": "13.0.0", "NAME": "x", "NAMES": "w;x"}
    words = list(read_commands(f"if({condition})\nendif()")[0].arguments)
    assert Condition(words, values.get, lambda _, name: name in values).holds() is holds


def test_expressions_say_for_which_language() -> None:
    text = "-O3;$<$<COMPILE_LANGUAGE:CUDA>:-a;-b>;$<BUILD_INTERFACE:c>;$<INSTALL_INTERFACE:d>;$<FOO:e>"
    assert by_language(text) == [("", "-O3"), ("CUDA", "-a"), ("CUDA", "-b"), ("", "c"), ("?", "$<FOO:e>")]
    assert Argument("a b", quoted=True) in read_commands('set(X "a b" [[c\nd]])  # e')[0].arguments


@pytest.mark.parametrize(
    "text",
    [
        "if(A)\n" * 60_000, "#[[" * 60_000, '"' * 200_000, "set(A ${A}${A}a)\n" * 10_000, "(" * 200_000, "x" * 300_000,
        "function(f)\nf()\nendfunction()\nf()", "include(./CMakeLists.txt)", "foreach(a 1 2 3 4 5 6 7 8 9)\n" * 40 + "set(b)\n" + "endforeach()\n" * 40,
        "add_subdirectory(.)", "${" * 60_000, "set(A ${A)", "if(" + "(" * 5000 + ")" * 5000 + ")\nendif()", "add_library()\nset()\nlist()\nfile()\nif()\nendif()",
    ],
)  # fmt: skip
def test_files_that_mean_harm_are_read_to_an_end(text: str) -> None:
    files = {"CMakeLists.txt": f"find_package(Torch)\n{text}".encode(), "pyproject.toml": b"a = [" + b"[" * 5000}
    assert cmake_file(files) == "CMakeLists.txt"
    read_cmake(files, "CMakeLists.txt")


def test_an_expression_that_is_not_followed_is_said() -> None:
    text = 'find_package(Torch)\nif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86.*|amd[0-9]+")\nendif()'
    assert any(
        "CMakeLists.txt:2: MATCHES x86.*" in item
        for item in read_cmake({"CMakeLists.txt": text.encode()}, "CMakeLists.txt").left
    )


def test_many_globs_over_many_files_come_to_an_end() -> None:
    files = {f"src/{number}.txt": b"" for number in range(2000)}
    text = "find_package(Torch)\n" + "file(GLOB A a/*.cpp b/*.cpp c/*.cpp d/*.cpp)\n" * 2000
    runs = read_cmake({**files, "CMakeLists.txt": text.encode()}, "CMakeLists.txt")
    assert "more commands than kci follows" in runs.by_backend["cpu"].error


@pytest.mark.parametrize(
    ("loop", "sources"),
    [
        ("RANGE 2", "0 1 2"),
        ("RANGE 3 4", "3 4"),
        ("RANGE 9 2 -3", "9 6 3"),
        ("RANGE 1 ${MOST} 2", "1 3"),
        ("IN ITEMS a b", "a b"),
    ],
)
def test_a_loop_has_the_values_that_it_has_in_cmake(loop: str, sources: str) -> None:
    text = f"find_package(Torch)\nset(MOST 4)\nforeach(i {loop})\nlist(APPEND S k${{i}}.cpp)\nendforeach()\nadd_library(m MODULE ${{S}})"
    runs = read_cmake(
        {"CMakeLists.txt": f"{text}\ntarget_link_libraries(m ${{TORCH_LIBRARIES}})".encode()}, "CMakeLists.txt"
    )
    assert list(runs.by_backend["cpu"].extensions[0].sources) == [f"k{one}.cpp" for one in sources.split()]
    assert runs.left == ()


@pytest.mark.parametrize("loop", ["RANGE ${UNSET_A} x", "IN ZIP_LISTS A B", "RANGE 0 999999999"])
def test_a_loop_that_is_not_followed_is_said(loop: str) -> None:
    text = f"find_package(Torch)\nforeach(i {loop})\nforeach(j RANGE 999999)\nendforeach()\nendforeach()\nproject(x)"
    runs = read_cmake({"CMakeLists.txt": text.encode()}, "CMakeLists.txt")
    said = [*runs.left, runs.by_backend["cpu"].error]
    assert any(
        item.startswith("CMakeLists.txt:2: foreach(") or "more commands than kci follows" in item for item in said
    )
