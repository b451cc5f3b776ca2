"""Which compiler makes code for another system, and what is said of one that does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from buildkit import CPU, STABLE_CUDA, copy_kernel, only_these, program, quiet, request, variant
from kci.builders import native
from kci.catalog.loading import load_catalog
from kci.errors import MissingToolError
from kci.run.machine_report import Health, examine
from kci.toolchains import emulation
from kci.toolchains import environment as environments
from kci.toolchains.compilers import cxx_compiler, glibc_of, program_of, toolchain_identity
from kci.toolchains.crossing import crosses, is_crossed, system_of
from kci.toolchains.cuda import Toolkit, find_library_headers, find_runtime
from kci.toolchains.environment import isolated, python_config, tvm_ffi_environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts stand for compilers")

ARM = "aarch64-linux"
CROSS = "aarch64-linux-gnu-g++"
OWN = "CXX_aarch64_linux_gnu"
ROOT_ON = "run this on Debian or Ubuntu, or in an image of them"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing, on x86-64."""
    for name in (OWN, "CXX_x86_64_linux_gnu", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    return only_these(monkeypatch, tmp_path)


def compiler(folder: Path, name: str, machine: str, more: str = "") -> Path:
    """A program that says what it makes code for."""
    text = f'case "$*" in\n*-dumpmachine*) echo {machine} ;;\n{more}\n*) echo "{name} 12" ;;\nesac\n'
    return program(folder, name, text)


@pytest.mark.parametrize(
    ("machine", "system"),
    [
        ("aarch64-linux-gnu", ARM),
        ("x86_64-redhat-linux", "x86_64-linux"),
        ("x86_64-pc-linux-gnu\n", "x86_64-linux"),
        ("arm64-apple-darwin24.0", "aarch64-darwin"),
        ("x86_64-w64-mingw32", "x86_64-windows"),
        ("riscv64-linux-gnu", "riscv64-linux"),
        ("g++ 12", ""),
        ("some linux", ""),
        ("aarch64-none-elf", ""),
        ("", ""),
    ],
)
def test_what_a_compiler_calls_its_target(machine: str, system: str) -> None:
    assert system_of(machine) == system


def test_the_cross_compiler_is_found_by_its_name(folder: Path) -> None:
    compiler(folder, "g++", "x86_64-linux-gnu")
    with pytest.raises(MissingToolError, match=f"no C\\+\\+ compiler for {ARM}") as caught:
        cxx_compiler(system=ARM)
    assert "apt-get install g++-aarch64-linux-gnu" in caught.value.hint
    older = compiler(folder, f"{CROSS}-11", "aarch64-linux-gnu")
    assert cxx_compiler(system=ARM) == (str(older),)
    cross = compiler(folder, CROSS, "aarch64-linux-gnu")
    assert cxx_compiler(system=ARM) == (str(cross),)
    assert cxx_compiler() == (str(folder / "g++"),)


def test_a_compiler_of_this_machine_is_left_for_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cross = compiler(folder, CROSS, "aarch64-linux-gnu")
    compiler(folder, "g++-14", "x86_64-linux-gnu")
    for variable in ("CXX", "NVCC_CCBIN"):
        monkeypatch.setenv(variable, "g++-14" if variable == "CXX" else str(folder / "g++-14"))
        assert cxx_compiler("13.0", ARM) == (str(cross),)
    monkeypatch.delenv("NVCC_CCBIN")
    monkeypatch.setenv("CXX", "g++-14 -Wall")
    assert cxx_compiler() == ("g++-14", "-Wall")
    assert cxx_compiler(system=ARM) == (str(cross),)


def test_a_compiler_for_the_target_may_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(folder, CROSS, "aarch64-linux-gnu")
    compiler(
        folder,
        "clang++",
        '"$(case "$*" in *--target=aarch64*) echo aarch64-unknown-linux-gnu ;; *) echo x86_64-linux-gnu ;; esac)"',
    )
    monkeypatch.setenv("CXX", "clang++ --target=aarch64-linux-gnu")
    assert cxx_compiler(system=ARM) == ("clang++", "--target=aarch64-linux-gnu")
    with pytest.raises(MissingToolError, match=f"makes code for {ARM}, and not for x86_64-linux") as caught:
        cxx_compiler()
    assert OWN in caught.value.hint
    monkeypatch.setenv("CXX", "clang++")
    monkeypatch.setenv(OWN, "clang++ --target=aarch64-linux-gnu -v")
    assert cxx_compiler(system=ARM)[-1] == "-v"
    assert cxx_compiler() == ("clang++",)
    for named, says in (
        ("clang++", "makes code for x86_64-linux"),
        ("none++", "does not exist"),
        ("'", "does not exist"),
    ):
        monkeypatch.setenv(OWN, named)
        with pytest.raises(MissingToolError, match=says):
            cxx_compiler(system=ARM)


def test_one_for_neither_is_refused_here_and_not_taken_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cross = compiler(folder, CROSS, "aarch64-linux-gnu")
    compiler(folder, "riscv64-linux-gnu-g++", "riscv64-linux-gnu")
    monkeypatch.setenv("CXX", "riscv64-linux-gnu-g++")
    with pytest.raises(MissingToolError, match="makes code for riscv64-linux"):
        cxx_compiler()
    assert cxx_compiler(system=ARM) == (str(cross),)


def test_nvcc_takes_an_older_cross_compiler(folder: Path) -> None:
    compiler(folder, CROSS, "aarch64-linux-gnu", "*-dumpfullversion*) echo 16.1.0 ;;")
    with pytest.raises(MissingToolError, match="takes GCC up to 15"):
        cxx_compiler("13.0", ARM)
    compiler(folder, "g++-15", "x86_64-linux-gnu")
    older = compiler(folder, f"{CROSS}-14", "aarch64-linux-gnu")
    assert cxx_compiler("13.0", ARM) == (str(older),)


def test_a_cross_compiler_without_libraries_is_told(folder: Path) -> None:
    """As Fedora's, which is for the kernel of Linux alone."""
    bare = compiler(
        folder, CROSS, "aarch64-linux-gnu", "*cstdlib*) echo 'fatal error: cstdlib: No such file'; exit 1 ;;"
    )
    with pytest.raises(MissingToolError, match="does not find the headers of C and C") as caught:
        glibc_of((str(bare),))
    assert "cstdlib" in caught.value.message
    assert "g++-aarch64-linux-gnu" in caught.value.hint


def test_programs_of_the_target_are_asked_for(folder: Path) -> None:
    ar = compiler(folder, "aarch64-linux-gnu-ar", "")
    compiler(folder, CROSS, "aarch64-linux-gnu", f"*-print-prog-name=ar*) echo {ar} ;;")
    assert program_of((CROSS,), "ar") == str(ar)
    assert program_of((CROSS,), "ld") == "ld", "what is not there has its usual name"


def test_the_target_is_part_of_what_compiles(folder: Path, tmp_path: Path) -> None:
    compiler(folder, "g++", "x86_64-linux-gnu")
    compiler(folder, CROSS, "aarch64-linux-gnu")
    here = toolchain_identity(variant(CPU), tmp_path)
    crossed = toolchain_identity(variant(CPU.replace("x86_64", "aarch64")), tmp_path)
    assert "built on" not in here
    assert "built on x86_64-linux" in crossed.splitlines()
    assert f"{CROSS} 12" in crossed.splitlines()


def test_what_can_be_crossed(folder: Path) -> None:
    arm = variant(CPU.replace("x86_64", "aarch64"))
    assert is_crossed(arm)
    assert not is_crossed(variant(CPU))
    assert not is_crossed(variant("torch-cpu")), "it is only copied"
    assert crosses(arm, "x86_64-linux")
    assert crosses(variant(STABLE_CUDA.replace("x86_64", "aarch64")), "x86_64-linux")
    assert crosses(variant(CPU), ARM)
    assert not crosses(variant(STABLE_CUDA), ARM), "nobody has tried it"
    assert not crosses(arm, "aarch64-darwin")
    assert not crosses(variant("torch213-cpu-x86_64-windows"), "x86_64-linux")


def test_what_is_fetched_is_the_targets(folder: Path, tmp_path: Path) -> None:
    """And is kept apart from this machine's."""
    torch, own = (isolated(tmp_path, "2.13", "cpu", system=system) for system in (ARM, ""))
    assert (torch.headers_only, own.headers_only) == (True, False)
    assert torch.root is not None
    assert ARM in torch.root.name
    assert torch.system == ARM
    tvm = tvm_ffi_environment(tmp_path, "0.1", ARM)
    assert (tvm.headers_only, tvm.system) == (True, ARM)
    assert tvm.root != tvm_ffi_environment(tmp_path, "0.1").root
    assert all("tvm" not in word for command in tvm.setup() for word in command[1:] if "==" in word)
    toolkit = Toolkit("13.0", tmp_path / "bin/nvcc", tmp_path)
    headers, runtime = find_library_headers(toolkit, tmp_path, ARM), find_runtime(toolkit, tmp_path, ARM)
    assert headers is not None
    assert runtime is not None
    assert (headers.system, runtime.system, runtime.part) == (ARM, ARM, "lib")
    assert headers.folder != getattr(find_library_headers(toolkit, tmp_path, "x86_64-linux"), "folder", None)
    assert [item.partition("==")[0] for item in runtime.requirements] == ["nvidia-cuda-runtime"]


def test_a_toolkit_with_nvidias_cross_packages_needs_no_wheel(folder: Path, tmp_path: Path) -> None:
    toolkit = Toolkit("12.6", tmp_path / "bin/nvcc", tmp_path)
    with pytest.raises(MissingToolError, match=f"no libraries for {ARM}") as caught:
        find_runtime(toolkit, tmp_path, ARM)
    assert "cuda-cross-sbsa-12-6" in caught.value.hint
    library = tmp_path / "targets/sbsa-linux/lib/libcudart.so.12"
    library.parent.mkdir(parents=True)
    library.write_text("")
    assert find_runtime(toolkit, tmp_path, ARM) is None


DISPATCHER = """\
# if defined(__x86_64__) && defined(__LP64__)
#  include <x86_64-linux-gnu/python3.11/pyconfig.h>
# elif defined(__x86_64__) && defined(__ILP32__)
#  include <x86_64-linux-gnux32/python3.11/pyconfig.h>
# elif defined(__aarch64__) && defined(__AARCH64EL__)
#  include <aarch64-linux-gnu/python3.11/pyconfig.h>
"""


def test_debians_headers_of_python_are_completed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = tmp_path / "include" / "python3.11"
    include.mkdir(parents=True)
    monkeypatch.setattr(environments, "python_include", lambda: include)
    (include / "pyconfig.h").write_text("#define SIZEOF_LONG 8\n")
    assert python_config(ARM) == {}, "those of another Python are the same for all"
    (include / "pyconfig.h").write_text(DISPATCHER)
    with pytest.raises(MissingToolError, match=r"x86_64-linux-gnu/python3.11/pyconfig\.h is missing"):
        python_config(ARM)
    name = "aarch64-linux-gnu/python3.11/pyconfig.h"
    for machine in ("x86_64", "aarch64"):
        own = include.parent / f"{machine}-linux-gnu" / "python3.11" / "pyconfig.h"
        own.parent.mkdir(parents=True)
        own.write_text(machine)
        assert python_config(ARM) == {name: machine}, "the target's own where it is here"
    assert python_config("x86_64-linux") == {}


def test_doctor_names_the_package(folder: Path, tmp_path: Path) -> None:
    def told() -> tuple[Health, str]:
        found = {item.what: item for item in examine(tmp_path, load_catalog())}
        assert "C++ for x86_64-linux" not in found
        return found[f"C++ for {ARM}"].health, found[f"C++ for {ARM}"].remedy

    assert told() == (Health.NOTE, "install one, for example: apt-get install g++-aarch64-linux-gnu")
    bare = compiler(
        folder,
        CROSS,
        "aarch64-linux-gnu",
        "*cstdlib*) echo 'fatal error: cstdlib: No such file or directory'; exit 1 ;;",
    )
    assert told() == (Health.NOTE, "install them, for example: apt-get install g++-aarch64-linux-gnu")
    compiler(folder, CROSS, "aarch64-linux-gnu", "*cstdlib*) echo 'error trying to exec cc1plus'; exit 1 ;;")
    assert told() == (Health.NOTE, ""), "what else stops it is in its own words"
    bare.unlink()
    compiler(folder, CROSS, "aarch64-linux-gnu")
    assert told()[0] is Health.OK


def test_doctor_says_what_emulates(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> tuple[Health, str, str]:
        (item,) = (item for item in examine(tmp_path, load_catalog()) if item.what == f"tests for {ARM}")
        return item.health, item.found, item.remedy

    assert told()[::2] == (Health.NOTE, "install it, for example: apt-get install qemu-user-static")
    program(folder, "qemu-aarch64-static", "echo qemu-aarch64 version 9.2.1 '(Debian)'")
    assert told()[1:] == ("there is no apt-get, which makes a Debian for arm64", ROOT_ON)
    for name in ("apt-get", "dpkg-deb"):
        program(folder, name, "")
    monkeypatch.setattr(emulation, "_KEYRING", tmp_path / "keyring")
    assert told()[::2] == (Health.NOTE, "apt-get install debian-archive-keyring")
    (tmp_path / "keyring").touch()
    assert told() == (Health.OK, "qemu-aarch64 version 9.2.1", "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not [item for item in examine(tmp_path, load_catalog()) if item.what.startswith("tests for")]


def test_what_nobody_has_crossed_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    what = request(copy_kernel("bare", tmp_path), STABLE_CUDA, tmp_path)
    with pytest.raises(MissingToolError) as caught:
        native.plan(what, quiet)
    needs = f"{STABLE_CUDA} needs a machine of x86_64-linux, and this is {ARM}"
    assert caught.value.message == f"{needs}, where kci compiles for that system for cpu only"
    assert caught.value.hint == "run this on a x86_64-linux machine; kci plan says which runner has one"
