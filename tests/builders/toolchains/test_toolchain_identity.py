"""What stands for the compilers of this machine in a fingerprint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildkit import CPU, STABLE_CUDA, Bare, only_these, program, variant
from conftest import failure
from kci.builders.toolchains import compilers as module
from kci.builders.toolchains.compilers import environment_flags, toolchain_identity
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.environment import TorchVersion
from kci.config.values import Version
from kci.errors import MissingToolError

NOARCH = "torch-cpu"


@pytest.fixture(autouse=True)
def gcc(bare: Bare) -> Bare:
    """A PATH with one compiler, and no variable that it reads."""
    bare.add("g++", "echo 'g++ 12'\n")
    for name in (*toolchains().compiler_variables, "CXX"):
        bare.patch.delenv(name, raising=False)
    return bare


def identity(name: str = CPU, **keys: Any) -> str:
    return toolchain_identity(variant(name), Path("/no/cache"), **keys)


def test_it_is_the_compilers_version_and_not_its_place(gcc: Bare) -> None:
    found = []
    for folder, version in (("one", "12.2.0"), ("two", "12.2.0"), ("three", "13.1.0")):
        (gcc.place / folder).mkdir()
        place = only_these(gcc.patch, gcc.place / folder)
        program(place, "g++", f"echo 'g++ (some) {version}'\n")
        found.append(identity())
    assert found[0] == found[1] != found[2]
    assert "12.2.0" in found[0]


def test_variables_that_compilers_read_are_part_of_it_and_others_are_not(gcc: Bare) -> None:
    gcc.set(CXXFLAGS="-O0", EDITOR="vi")
    found, told = {identity()}, []
    names = [
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "NVCC_APPEND_FLAGS",
        "NVCC_PREPEND_FLAGS",
        "SOURCE_DATE_EPOCH",
    ]
    for name in names:
        gcc.set(**{name: "/some/thing"})
        told.append(f"{name}=/some/thing")
        assert environment_flags() == told
        found.add(identity())
    assert len(found) == 1 + len(names)
    gcc.set(CXXFLAGS="-O2")
    assert identity() in found


def test_flags_of_the_compiler_itself_count_and_a_launcher_does_not(gcc: Bare) -> None:
    gcc.add("ccache", 'exec "$@"\n')
    usual = identity()
    found = {usual}
    flags = "-m32,-D SCALE=1,-D SCALE=2,-isystem /a,-isystem /b,-include /a,-B /a,-B /b"
    for words in flags.split(","):
        gcc.set(CXX=f"g++ {words}")
        found.add(identity())
    assert len(found) == 9
    gcc.set(CXX="ccache g++")
    assert usual.splitlines()[:2] == identity().splitlines()[:2]


def test_what_compilers_read_outside_counts_by_its_contents(gcc: Bare) -> None:
    """A header in a folder that CXX, CPATH's search list or a flag of build.toml names, and the
    compiler's bytes.
    """
    folders = [gcc.place / name for name in ("word", "listed", "flag")]
    for folder in folders:
        folder.mkdir()
    compiler = f"case $* in *-v*) echo ' {folders[1]}' >&2 ;; *) echo 'g++ 12' ;; esac\n"
    gcc.add("g++", compiler)
    gcc.set(CXX=f"g++ -isystem {folders[0]}")
    found = [identity(flags=[f"-I{folders[2]}"])]
    for text in ("1", "2"):
        for folder in folders:
            (folder / "a.h").write_text(text)
            found.append(identity(flags=[f"-I{folders[2]}"]))
    gcc.add("g++", f"{compiler}# replaced in place\n")
    found.append(identity(flags=[f"-I{folders[2]}"]))
    assert len({*found}) == len(found)


def test_linker_c_library_toolkit_and_icpx_are_part_of_it(gcc: Bare) -> None:
    gcc.add("ld", "echo 'GNU ld 2.40'\n")
    found = [identity()]
    gcc.patch.setattr(module, "linked_glibc", lambda _cxx: Version.parse("2.17"))
    found.append(identity())
    gcc.add("ld", "echo 'GNU ld 2.41'\n")
    found.append(identity())
    for release in ("13.0.48", "13.0.88"):
        what: Any = {"root": gcc.place, "parts": (), "include": ()}
        toolkit = SimpleNamespace(versions=lambda said=release: [f"nvcc {said}"], **what)
        gcc.patch.setattr(module, "find_toolkit", lambda *_, found=toolkit: found)
        found.append(identity(STABLE_CUDA))
    for release in ("2025.3.1", "2025.3.2"):
        gcc.add("icpx", f"echo 'oneAPI DPC++/C++ Compiler {release} (2025)'\n")
        found.append(identity("torch213-cxx11-xpu20253-x86_64-linux"))
    assert len({*found}) == len(found)


def test_the_torch_is_part_of_it_and_isolation_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    isolated = identity()
    assert "torch 2.13.0" in isolated
    monkeypatch.setattr(module, "python_environment", lambda: SimpleNamespace(torch=None))
    for release in ("2.13.0", "2.13.1"):
        torch = TorchVersion(release, {})
        monkeypatch.setattr(module, "read_torch_version", lambda _, found=torch: found)
        own = identity(isolation=False)
        assert own != isolated
        assert release in own


def test_nothing_compiles_a_variant_of_python_only(gcc: Bare) -> None:
    (gcc.folder / "g++").unlink()
    assert identity(NOARCH) == ""
    assert identity(NOARCH, builder="nix").startswith("nix")
    failure(MissingToolError, "", identity)
