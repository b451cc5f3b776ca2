# ruff: noqa: E501  - code of other languages, a case a line
"""`kci init --from` with a CMakeLists.txt that finds torch: the real CMake configures it, among stand-ins, and a draft comes out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildkit import write_tree
from cli.runner import Result, kci
from kci.config.reader import read_kernel
from kci.starter import run_cmake as running
from kci.starter import sandbox
from kci.starter.run_cmake import cmake_file, run_cmake
from kci.starter.run_setup import RecordedExtension, SetupRuns

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
cmake_minimum_required(VERSION 3.24)
project(${SKBUILD_PROJECT_NAME} LANGUAGES CXX) # one
option(USE_CUDA "with CUDA (or not)" OFF)
option(WITH_FAST "fast" OFF)
option(BUILD_TESTS "tests" ON)
find_package(Torch REQUIRED)
find_package(OpenMP REQUIRED)
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


def taken(place: Path, files: dict[str, str], *options: str) -> Result:
    write_tree(place / "old", files)
    return kci("init", "fast-add", "--from", "old", "-y", *(options or ("--run",)))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TORCH = "cmake_minimum_required(VERSION 3.24)\nproject(m LANGUAGES CXX)\nfind_package(Torch REQUIRED)\n"
MODULE = "add_library(m MODULE ${S})\ntarget_link_libraries(m PRIVATE ${TORCH_LIBRARIES})\n"


def runs_of(text: str, **files: str) -> SetupRuns:
    named = {"CMakeLists.txt": text, "a.cpp": "", **{name.replace("__", "/"): data for name, data in files.items()}}
    return run_cmake({name: data.encode() for name, data in named.items()}, "CMakeLists.txt")


def made_of(text: str, backend: str = "cpu", **files: str) -> RecordedExtension:
    runs = runs_of(text, **files)
    assert runs.left == ()
    run = runs.by_backend[backend]
    assert run.error == ""
    (made,) = run.extensions
    return made


def test_what_cmake_would_build_becomes_a_draft(here: Path) -> None:
    made = taken(here, PROJECT)
    assert made.code == 0, made.stdout + made.stderr
    assert "CMakeLists.txt was run " in made.stdout
    build = read_kernel(here / "fast-add").build
    assert (build.general.license, build.general.backends) == ("BSD-3-Clause", ("cpu", "cuda"))
    cpu, cuda = build.kernel["fast_add_cpu"], build.kernel["fast_add_cuda"]
    assert cpu.src == ("csrc/ops.cpp", "csrc/cpu/one.cpp", "csrc/core/core.cpp", "csrc/core/include/core.h")
    assert cuda.src == (*cpu.src[:2], "csrc/cuda/add.cu", *cpu.src[2:])
    assert cpu.include == ("csrc", "csrc/core/include")
    assert set(cpu.cxx_flags) == {"-Wall", "-O3", "-DFAST=2", "-fopenmp"}
    assert set(cuda.cxx_flags) == {"-DWITH_CUDA", "-Wall", "-O3", "-DFAST=2", "-fopenmp"}
    assert cuda.cuda_flags == ("-DFAST=2", "-DWITH_CUDA", "--use_fast_math", "-lineinfo")  # type: ignore[union-attr]
    package = here / "fast-add" / "torch-ext" / "fast_add" / "__init__.py"
    assert package.read_text() == "from ._ops import ops as _kernel_ops; add = _kernel_ops.add\n"
    assert "CMakeLists.txt:29: it links `magma`" in made.stdout
    assert "`-DWITH_CUDA -fopenmp` is for some sources only, such as 'csrc/ops.cpp'" in made.stdout
    assert not (here / "fast-add" / "configured").exists()


def test_what_is_only_told_is_counted_and_not_listed(here: Path) -> None:
    made = taken(here, {**PROJECT, "python/fast_add/extra.py": "import h5py\nX = h5py.File\n"})
    assert "info[" not in made.stderr
    assert "`kci check -v fast-add` reports 1 info besides" in made.stderr
    assert "info[" in kci("check", "-v", "fast-add").stderr


def test_a_setup_py_that_only_calls_cmake_leads_to_the_cmake_files(here: Path) -> None:
    setup = "from setuptools import setup, Extension\nsetup(ext_modules=[Extension('_C', [])])\n"
    made = taken(here, {**PROJECT, "setup.py": setup})
    assert made.code == 0, made.stderr
    assert "CMakeLists.txt was run " in made.stdout


def test_cmake_files_are_not_run_before_somebody_allows_that(here: Path) -> None:
    made = taken(here, PROJECT, "-q")
    assert made.code == 2
    assert "old/CMakeLists.txt has to be run, and nobody allowed that" in made.stderr
    assert "--run" in made.stderr


def test_without_cmake_it_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    made = taken(here, PROJECT)
    assert made.code == 3
    assert "there is no cmake" in made.stderr
    assert "kci[cmake]" in made.stderr


def test_a_cmake_that_knows_no_stand_ins_for_packages_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_OLDEST", (99, 0))
    made = taken(here, PROJECT)
    assert made.code == 3
    assert "older than 99.0" in made.stderr


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"pyproject.toml": PYPROJECT}, "nor a CMakeLists.txt that finds torch"),
        ({"CMakeLists.txt": "project(x)\nadd_library(x MODULE a.cpp)"}, "nor a CMakeLists.txt that finds torch"),
        ({"CMakeLists.txt": TORCH + "add_library(x MODULE a.cpp)", "a.cpp": ""}, "no module that links torch"),
        ({"CMakeLists.txt": TORCH + "if(A"}, "CMakeLists.txt:4: for cpu it ends with Parse error"),
        ({"CMakeLists.txt": TORCH + "set(S gone.cpp)\n" + MODULE}, "Cannot find source file: gone.cpp"),
        (
            {"CMakeLists.txt": TORCH + 'message(FATAL_ERROR "no luck")'},
            "CMakeLists.txt:4: for cpu it ends with no luck",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(files: dict[str, str], said: str, here: Path) -> None:
    made = taken(here, files)
    assert made.code in (1, 2)
    assert said in made.stderr
    assert "begin with `kci init NAME`, copy your sources" in made.stderr
    assert not (here / "fast-add").exists()


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ("find_package(CUDAToolkit REQUIRED)", "CUDA, which it always asks for"),
        ("find_package(CUDA 12 REQUIRED)", "CUDA, which it always asks for"),
        ("enable_language(CUDA)", "the language CUDA, which it always asks for"),
    ],
)
def test_what_always_asks_for_cuda_is_no_kernel_for_the_cpu(asks: str, said: str) -> None:
    runs = runs_of(f"{TORCH}{asks}\nset(S a.cpp b.cu)\n{MODULE}", **{"b.cu": ""})
    assert said in runs.by_backend["cpu"].error
    assert runs.by_backend["cpu"].line == 4
    (made,) = runs.by_backend["cuda"].extensions
    assert (made.kind, made.sources) == ("cuda", ("a.cpp", "b.cu"))


def test_a_backend_can_be_looked_for() -> None:
    text = (
        f"{TORCH}include(CheckLanguage)\ncheck_language(CUDA)\nset(S a.cpp)\nif(CMAKE_CUDA_COMPILER)\nenable_language(CUDA)\n"
        f"find_package(CUDAToolkit)\nlist(APPEND S b.cu)\nendif()\n{MODULE}"
        "if(CUDAToolkit_FOUND)\ntarget_link_libraries(m PRIVATE CUDA::cublas CUDA::cudart)\nendif()\n"
    )
    assert made_of(text, **{"b.cu": ""}).sources == ("a.cpp",)
    cuda = made_of(text, "cuda", **{"b.cu": ""})
    assert cuda.sources == ("a.cpp", "b.cu")
    assert "cublas" in cuda.libraries


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("find_package(Eigen3 REQUIRED)\ntarget_link_libraries(m PRIVATE Eigen3::Eigen)", ":7: it needs Eigen3: a kernel has only torch"),
        ("include(FetchContent)\nFetchContent_Declare(json URL https://localhost:9/x)\nFetchContent_MakeAvailable(json)", ":9: it fetches json"),
        ("include(FetchContent)\nFetchContent_Declare(j URL https://localhost:9/x)\nFetchContent_GetProperties(j)\nif(NOT j_POPULATED)\nFetchContent_Populate(j)\nadd_subdirectory(${j_SOURCE_DIR} ${j_BINARY_DIR})\nendif()", ":11: it fetches j"),
        ("add_custom_command(OUTPUT g.cpp COMMAND touch g.cpp)\ntarget_sources(m PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/g.cpp)", ":5: 'configured/g.cpp' is generated"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_with_its_place(line: str, says: str) -> None:
    runs = runs_of(f"{TORCH}set(S a.cpp)\n{MODULE}{line}\n")
    assert [run.error for run in runs.by_backend.values()] == ["", "", ""]
    assert any(item.startswith(f"CMakeLists.txt{says}") for item in runs.left), runs.left
    assert len(runs.left) == 1, "once, though both backends say it"


def test_a_standard_can_be_asked_for_as_a_feature() -> None:
    made = made_of(f"{TORCH}set(S a.cpp)\n{MODULE}target_compile_features(m PRIVATE cxx_std_17 cxx_auto_type)\n")
    assert made.flags["cxx"] == ()


def test_it_is_configured_as_scikit_build_core_does() -> None:
    text = (
        f"{TORCH}set(CMAKE_CXX_FLAGS_RELEASE -O3)\nset(S a.cpp)\n{MODULE}"
        'if(NOT SKBUILD OR NOT IS_ABSOLUTE "${SKBUILD_PLATLIB_DIR}" OR NOT SKBUILD_PROJECT_NAME)\nmessage(FATAL_ERROR "no")\nendif()\n'
    )
    assert made_of(text).flags["cxx"] == ("-O3",)


def test_what_only_a_test_or_a_custom_target_needs_is_an_extension() -> None:
    text = (
        f"{TORCH}add_library(m SHARED a.cpp)\ntarget_link_libraries(m PUBLIC ${{TORCH_LIBRARIES}})\n"
        "add_custom_target(everything DEPENDS m)\nadd_dependencies(everything m)\n"
        "add_executable(try b.cpp)\ntarget_link_libraries(try m)\n"
    )
    assert made_of(text, **{"b.cpp": ""}).sources == ("a.cpp",)


def test_a_pybind11_that_is_fetched_is_a_stand_in() -> None:
    text = (
        "cmake_minimum_required(VERSION 3.24)\nproject(m LANGUAGES CXX)\nfunction(get)\ninclude(FetchContent)\n"
        "FetchContent_Declare(pybind11 URL https://localhost:9/x)\nFetchContent_GetProperties(pybind11)\n"
        "if(NOT pybind11_POPULATED)\nFetchContent_Populate(pybind11)\nendif()\n"
        "add_subdirectory(${pybind11_SOURCE_DIR} ${pybind11_BINARY_DIR} EXCLUDE_FROM_ALL)\nendfunction()\nget()\n"
        "execute_process(COMMAND ${PYTHON_EXECUTABLE} -c \"import torch; print(torch.__version__.split('.')[0])\" "
        "OUTPUT_VARIABLE MAJOR COMMAND_ERROR_IS_FATAL ANY)\nfind_package(Torch REQUIRED)\npybind11_add_module(m a.cpp)\n"
        "target_link_libraries(m PRIVATE ${TORCH_LIBRARIES})\ntarget_compile_definitions(m PRIVATE MAJOR=${MAJOR})\n"
    )
    assert made_of(text).flags["cxx"][0].strip() == "-DMAJOR=2"


def test_what_is_only_tried_compiles_and_does_not_run() -> None:
    text = (
        f"{TORCH}include(CheckCXXCompilerFlag)\ncheck_cxx_compiler_flag(-ffast-math FAST)\n"
        "try_run(RAN COMPILED ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}/a.cpp)\nset(S a.cpp)\n"
        f"{MODULE}if(FAST AND NOT COMPILED)\ntarget_compile_options(m PRIVATE -ffast-math)\nendif()\n"
    )
    assert made_of(text).flags["cxx"] == ("-ffast-math",)


def test_torch_may_be_found_in_a_file_that_is_included(here: Path) -> None:
    text = CMAKE.replace(
        "find_package(Torch REQUIRED)", "list(APPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/cmake)\ninclude(torch)"
    )
    setup = "from setuptools import setup\nsetup(name='fast_add', packages=['fast_add'], package_dir={'fast_add': 'python/fast_add'}, license='MIT')\n"
    files = {
        **PROJECT,
        "CMakeLists.txt": text,
        "cmake/torch.cmake": "find_package(Torch REQUIRED)\n",
        "setup.py": setup,
    }
    made = taken(here, {name: data for name, data in files.items() if name != "pyproject.toml"})
    assert made.code == 0, made.stderr
    assert read_kernel(here / "fast-add").build.general.license == "MIT"
    assert (here / "fast-add" / "torch-ext" / "fast_add" / "__init__.py").read_text().startswith("from ._ops import")


def test_where_a_backend_ends_is_said(here: Path) -> None:
    text = CMAKE.replace("if(USE_CUDA)\n", 'if(USE_CUDA)\nmessage(FATAL_ERROR "only with a licence")\n', 1)
    made = taken(here, {**PROJECT, "CMakeLists.txt": text})
    assert read_kernel(here / "fast-add").build.general.backends == ("cpu",)
    assert "taken over: nothing for cuda: CMakeLists.txt:33 ends there with only with a licence" in made.stdout


def test_the_cpu_has_no_nvcc_of_this_machine() -> None:
    text = (
        "cmake_minimum_required(VERSION 3.24)\nset(LANGUAGES CXX)\nfind_program(NVCC nvcc)\n"
        'if(NVCC OR NOT "$ENV{CUDACXX}" STREQUAL "")\nlist(APPEND LANGUAGES CUDA)\nendif()\nproject(m LANGUAGES ${LANGUAGES})\n'
        "find_package(Torch REQUIRED)\nadd_library(m MODULE a.cpp)\ntarget_link_libraries(m PRIVATE torch)\n"
        "if(NVCC)\ntarget_sources(m PRIVATE b.cu)\nendif()\n"
    )
    assert made_of(text, **{"b.cu": ""}).sources == ("a.cpp",)
    assert made_of(text, "cuda", **{"b.cu": ""}).sources == ("a.cpp", "b.cu")


def test_a_package_of_this_machine_is_not_found() -> None:
    text = f"{TORCH}find_package(ZLIB)\nset(S a.cpp)\nif(ZLIB_FOUND)\nlist(APPEND S z.cpp)\nendif()\n{MODULE}"
    runs = runs_of(text)
    assert runs.by_backend["cpu"].extensions[0].sources == ("a.cpp",)
    assert runs.left == ()


@pytest.mark.parametrize(
    "module",
    [
        "find_package(Python COMPONENTS Interpreter Development.Module REQUIRED)\nPython_add_library(m MODULE WITH_SOABI a.cpp)",
        "find_package(Python3 REQUIRED)\nPython3_add_library(m MODULE USE_SABI 3.9 a.cpp)",
        "find_package(pybind11 CONFIG REQUIRED)\npybind11_add_module(m MODULE NO_EXTRAS a.cpp)",
        "find_package(nanobind CONFIG REQUIRED)\nnanobind_add_module(m STABLE_ABI NB_STATIC a.cpp)",
        "add_library(m SHARED a.cpp)\nset_target_properties(m PROPERTIES SUFFIX .so)",
        "add_library(one OBJECT a.cpp)\nadd_library(m MODULE $<TARGET_OBJECTS:one>)\nset_target_properties(m PROPERTIES LINKER_LANGUAGE CXX)",
        "add_library(one OBJECT a.cpp)\nadd_library(m MODULE)\ntarget_link_libraries(m PRIVATE one)\nset_target_properties(m PROPERTIES LINKER_LANGUAGE CXX)",
    ],
)
def test_every_way_to_make_a_module(module: str) -> None:
    made = made_of(f"{TORCH}{module}\ntarget_link_libraries(m PRIVATE ${{TORCH_LIBRARIES}})\n")
    assert (made.name, made.sources) == ("m", ("a.cpp",))


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("install(TARGETS m LIBRARY DESTINATION pkg/deep)", "pkg.deep.m"),
        ("install(TARGETS m DESTINATION ${SKBUILD_PLATLIB_DIR}/pkg)", "pkg.m"),
        ("install(TARGETS m DESTINATION lib)", "m"),
        ('set_target_properties(m PROPERTIES OUTPUT_NAME _C PREFIX "")', "_C"),
    ],
)
def test_a_module_is_called_as_python_imports_it(more: str, name: str) -> None:
    assert made_of(f"{TORCH}set(S a.cpp)\n{MODULE}{more}\n").name == name


def test_torch_is_asked_where_it_is() -> None:
    """As the documentation of torch says to: by its own Python module."""
    text = (
        "cmake_minimum_required(VERSION 3.24)\nproject(m LANGUAGES CXX)\nfind_package(Python REQUIRED)\n"
        'execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path, torch.__version__)" '
        "OUTPUT_VARIABLE WHERE COMMAND_ERROR_IS_FATAL ANY)\n"
        'if(NOT WHERE MATCHES "share/cmake [0-9]+[.][0-9]+")\nmessage(FATAL_ERROR ${WHERE})\nendif()\nfind_package(Torch REQUIRED)\n'
        "find_library(PYTORCH torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH REQUIRED)\n"
        "add_library(m MODULE a.cpp)\ntarget_link_libraries(m PRIVATE ${TORCH_LIBRARIES} ${PYTORCH})\n"
    )
    assert made_of(text).libraries == ()


def test_what_cmake_writes_comes_along(here: Path) -> None:
    text = CMAKE.replace(
        "add_flags(_C)\n",
        "add_flags(_C)\nconfigure_file(csrc/config.h.in config.h)\ntarget_include_directories(_C PRIVATE ${CMAKE_CURRENT_BINARY_DIR})\n",
    )
    ops = PROJECT["csrc/ops.cpp"].replace('"core.h"', '"core.h"\n#include "config.h"')
    files = {
        **PROJECT,
        "CMakeLists.txt": text,
        "csrc/ops.cpp": ops,
        "csrc/config.h.in": "#define WITH_IT @WITH_FAST@\n",
    }
    made = taken(here, files)
    assert made.code == 0, made.stderr
    assert (here / "fast-add" / "configured" / "config.h").read_text() == "#define WITH_IT ON\n"
    assert "configured" in read_kernel(here / "fast-add").build.kernel["fast_add_cpu"].include


def test_what_cmake_writes_for_one_backend_alone_is_said() -> None:
    text = f'{TORCH}set(S a.cpp)\nfile(WRITE ${{CMAKE_BINARY_DIR}}/which.h "$ENV{{FORCE_CUDA}}")\n{MODULE}'
    runs = runs_of(text)
    assert runs.written == {"configured/which.h": b"1"}
    assert runs.left == (f"configured/which.h: {running._ANOTHER}",)


@pytest.mark.parametrize(
    "harm",
    [
        "file(DOWNLOAD http://127.0.0.1:9/ ${CMAKE_BINARY_DIR}/x STATUS S)\nlist(GET S 0 CODE)\nif(CODE)\nmessage(FATAL_ERROR no)\nendif()",
        f"file(READ {Path(__file__).resolve()} TEXT)",
        "file(WRITE ${CMAKE_SOURCE_DIR}/../modules/stand_ins.cmake TEXT)",
        "execute_process(COMMAND touch /usr/kci-harm COMMAND_ERROR_IS_FATAL ANY)",
    ],
)
@pytest.mark.skipif(sandbox._bubblewrap() is None, reason="no bubblewrap here")
def test_what_means_harm_is_stopped(harm: str) -> None:
    runs = runs_of(f"{TORCH}{harm}\nset(S a.cpp)\n{MODULE}")
    for backend in ("cpu", "cuda"):
        assert runs.by_backend[backend].error
        assert 4 <= runs.by_backend[backend].line <= 7


@pytest.mark.skipif(sandbox._bubblewrap() is None, reason="no bubblewrap here")
def test_a_file_of_the_user_stays_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    runs_of(f"{TORCH}file(WRITE {mine} theirs)\nset(S a.cpp)\n{MODULE}")
    assert mine.read_text() == "mine"


def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    runs = runs_of(f"{TORCH}while(TRUE)\nendwhile()\n")
    assert all("longer than kci waits" in runs.by_backend[backend].error for backend in ("cpu", "cuda"))


def forging(monkeypatch: pytest.MonkeyPatch, forge: Callable[[Path], None]) -> None:
    """Have each run of CMake followed by what a hostile project could have done to its answer, in that folder."""
    real = running.run_in

    def forged(place: Path, *given: Any, **named: Any) -> int | None:
        code = real(place, *given, **named)
        forge(place / "project" / "configured" / ".cmake" / "api" / "v1" / "reply")
        return code

    monkeypatch.setattr(running, "run_in", forged)


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "{",
        '{"configurations": []}',
        '{"configurations": [{"targets": [{"jsonFile": "../../../../../../etc/passwd.json"}]}]}',
        '{"configurations": [{"targets": [{"jsonFile": "gone.json"}]}]}',
        "[" * 100_000,
    ],
)
def test_an_answer_that_cmake_has_not_written_is_refused(
    answer: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forging(monkeypatch, lambda reply: next(reply.glob("codemodel-v2-*.json")).write_text(answer) and None)
    made = taken(here, PROJECT)
    assert made.code == 1
    assert "what CMake answered for cpu cannot be used" in made.stderr
    assert not (here / "fast-add").exists()


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_behind_a_link_is_refused(whole: bool, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = here / "secret" / "codemodel-v2-secret.json"
    write_tree(here, {"secret/codemodel-v2-secret.json": json.dumps({"configurations": [{"targets": []}]})})

    def forge(reply: Path) -> None:
        if whole:
            shutil.rmtree(reply)
            reply.symlink_to(secret.parent)
        else:
            file = next(reply.glob("codemodel-v2-*.json"))
            file.unlink()
            file.symlink_to(secret)

    forging(monkeypatch, forge)
    assert "it is a link" in taken(here, PROJECT).stderr


def test_an_answer_without_measure_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forge(reply: Path) -> None:
        for number in range(5):
            with (reply / f"target-{number}.json").open("wb") as file:
                file.truncate(16 << 20)

    forging(monkeypatch, forge)
    assert "it is too large" in taken(here, PROJECT).stderr


def test_without_bubblewrap_it_says_so_and_configures(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: None)
    made = taken(here, PROJECT)
    assert made.code == 0
    assert "without a sandbox" in made.stdout


def test_a_value_that_no_command_can_carry_is_left_out(here: Path) -> None:
    text = PYPROJECT.replace("WITH_FAST = true", 'WITH_FAST = true, NUL = "a\\u0000b"')
    assert taken(here, {**PROJECT, "pyproject.toml": text}).code == 0


def test_a_pyproject_that_means_harm_is_none() -> None:
    files = {"CMakeLists.txt": b"find_package(Torch)", "pyproject.toml": b"a = [" + b"[" * 5000}
    assert cmake_file(files) == "CMakeLists.txt"
