"""What stands for the compilers of this machine in a fingerprint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from buildkit import CPU, STABLE_CUDA, only_these, program, variant
from kci.builders.toolchains import compilers as module
from kci.builders.toolchains.compilers import environment_flags, toolchain_identity
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.environment import TorchVersion
from kci.config.values import Version
from kci.errors import MissingToolError

NOARCH = "torch-cpu"


@pytest.fixture(autouse=True)
def only_gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with one compiler, and no variable that it reads."""
    program(only_these(monkeypatch, tmp_path), "g++", "echo 'g++ 12'\n")
    for name in (*toolchains().compiler_variables, "CXX"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_the_compilers_version_and_not_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder, version in (("one", "12.2.0"), ("two", "12.2.0"), ("three", "13.1.0")):
        (tmp_path / folder).mkdir()
        program(only_these(monkeypatch, tmp_path / folder), "g++", f"echo 'g++ (some) {version}'\n")
        found.append(toolchain_identity(variant(CPU), tmp_path))
    assert found[0] == found[1] != found[2]
    assert "12.2.0" in found[0]


@pytest.mark.parametrize(
    "name",
    ["CPATH", "CPLUS_INCLUDE_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "SOURCE_DATE_EPOCH"],
)
def test_variables_that_compilers_read_are_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    usual = toolchain_identity(variant(CPU), tmp_path)
    monkeypatch.setenv(name, "/some/thing")
    assert toolchain_identity(variant(CPU), tmp_path) != usual
    assert environment_flags() == [f"{name}=/some/thing"]


def test_a_variable_that_no_compiler_reads_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = toolchain_identity(variant(CPU), tmp_path)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("EDITOR", "vi")
    assert toolchain_identity(variant(CPU), tmp_path) == usual


def test_flags_of_the_compiler_itself_count_and_a_launcher_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "only-these", "ccache", 'exec "$@"\n')
    usual = toolchain_identity(variant(CPU), tmp_path)
    found = {usual}
    for words in (
        "-m32",
        "-D SCALE=1",
        "-D SCALE=2",
        "-isystem /a",
        "-isystem /b",
        "-include /a",
        "-B /a",
        "-B /b",
    ):
        monkeypatch.setenv("CXX", f"g++ {words}")
        found.add(toolchain_identity(variant(CPU), tmp_path))
    assert len(found) == 9
    monkeypatch.setenv("CXX", "ccache g++")
    launched = toolchain_identity(variant(CPU), tmp_path)
    assert usual.splitlines()[:2] == launched.splitlines()[:2]


def test_what_compilers_read_outside_counts_by_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header in a folder that CXX, CPATH's search list or a flag of build.toml names, and the
    compiler's bytes.
    """
    folders = [tmp_path / name for name in ("word", "listed", "flag")]
    for folder in folders:
        folder.mkdir()
    compiler = f"case $* in *-v*) echo ' {folders[1]}' >&2 ;; *) echo 'g++ 12' ;; esac\n"
    program(tmp_path / "only-these", "g++", compiler)
    monkeypatch.setenv("CXX", f"g++ -isystem {folders[0]}")
    found = [toolchain_identity(variant(CPU), tmp_path, flags=[f"-I{folders[2]}"])]
    for text in ("1", "2"):
        for folder in folders:
            (folder / "a.h").write_text(text)
            found.append(toolchain_identity(variant(CPU), tmp_path, flags=[f"-I{folders[2]}"]))
    program(tmp_path / "only-these", "g++", f"{compiler}# replaced in place\n")
    found.append(toolchain_identity(variant(CPU), tmp_path, flags=[f"-I{folders[2]}"]))
    assert len({*found}) == len(found)


def test_linker_and_c_library_are_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "only-these", "ld", "echo 'GNU ld 2.40'\n")
    usual = toolchain_identity(variant(CPU), tmp_path)
    monkeypatch.setattr(module, "linked_glibc", lambda _cxx: Version.parse("2.17"))
    older = toolchain_identity(variant(CPU), tmp_path)
    program(tmp_path / "only-these", "ld", "echo 'GNU ld 2.41'\n")
    assert len({usual, older, toolchain_identity(variant(CPU), tmp_path)}) == 3


def test_the_toolkit_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for release in ("13.0.48", "13.0.88"):
        toolkit = SimpleNamespace(
            versions=lambda said=release: [f"nvcc {said}"], root=tmp_path, parts=(), include=()
        )
        monkeypatch.setattr(module, "find_toolkit", lambda *_, found=toolkit: found)
        found.add(toolchain_identity(variant(STABLE_CUDA), tmp_path))
    assert len(found) == 2


def test_the_compiler_of_an_xpu_variant_is_part_of_it(tmp_path: Path) -> None:
    found = set()
    for release in ("2025.3.1", "2025.3.2"):
        program(
            tmp_path / "only-these", "icpx", f"echo 'oneAPI DPC++/C++ Compiler {release} (2025)'\n"
        )
        found.add(toolchain_identity(variant("torch213-cxx11-xpu20253-x86_64-linux"), tmp_path))
    assert len(found) == 2


def test_the_torch_is_part_of_it_and_isolation_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated = toolchain_identity(variant(CPU), tmp_path)
    assert "torch 2.13.0" in isolated
    monkeypatch.setattr(module, "python_environment", lambda: SimpleNamespace(torch=None))
    for release in ("2.13.0", "2.13.1"):
        monkeypatch.setattr(
            module, "read_torch_version", lambda _, release=release: torch_of(release)
        )
        own = toolchain_identity(variant(CPU), tmp_path, isolation=False)
        assert own != isolated
        assert release in own


def torch_of(release: str) -> TorchVersion:
    return TorchVersion(release, {})


def test_nothing_compiles_a_variant_of_python_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only-these" / "g++").unlink()
    assert toolchain_identity(variant(NOARCH), tmp_path) == ""
    assert toolchain_identity(variant(NOARCH), tmp_path, builder="nix").startswith("nix")
    with pytest.raises(MissingToolError):
        toolchain_identity(variant(CPU), tmp_path)
