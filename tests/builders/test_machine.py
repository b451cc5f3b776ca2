"""What a build does where something is missing: it names it, says what to do, and exits with 3."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from buildkit import CPU, STABLE_CUDA, copy_kernel, only_these, program, quiet, request, write_tree
from conftest import failure
from kci.builders import build_variant
from kci.builders.native import builder
from kci.builders.process.machine import job_count, pool_depth
from kci.builders.toolchains.compilers import (
    GCC_FLAGS,
    cpp_library,
    cxx_compiler,
    gcc_flags,
    glibc_is_newer,
    toolchain_identity,
)
from kci.builders.toolchains.cuda import find_toolkit
from kci.builders.toolchains.data import toolchains
from kci.errors import MissingToolError, UnsafeError, UsageError
from kci.matrix.variants import this_system
from wheels import make_wheel, only_wheels

NVCC = """
case "$*" in
  *--version*) echo "Cuda compilation tools, release {version}, V{version}.88" ;;
  *--dryrun*) echo '#$ TOP={top}' ;;
esac
"""


def fake_toolkit(root: Path, version: str) -> Path:
    """A toolkit with an nvcc that says which version it is, and the files that kci looks for."""
    major = version.partition(".")[0]
    write_tree(
        root, {"include/cuda_runtime.h": "", f"lib64/libcudart.so.{major}": "", "bin/.keep": ""}
    )
    return program(root / "bin", "nvcc", NVCC.format(version=version, top=root / "bin" / ".."))


def test_a_build_without_a_compiler_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = copy_kernel("plus-one", tmp_path)
    only_these(monkeypatch, tmp_path)
    asked = request(kernel, CPU, tmp_path)
    caught = failure(MissingToolError, r"C\+\+ compiler", build_variant, asked, quiet)
    assert caught.exit_code == 3
    assert "apt-get install g++" in caught.hint
    assert not asked.output.parent.exists()
    assert not asked.options.cache.exists()


def test_cxx_is_respected_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    program(folder, "my-g++", "exit 0")
    monkeypatch.setenv("CXX", "my-g++ -m64 '-DA b'")
    assert cxx_compiler() == ("my-g++", "-m64", "-DA b")
    monkeypatch.setenv("CXX", "not-there")
    caught = failure(MissingToolError, "CXX=not-there", cxx_compiler)
    assert "unset CXX, or name a compiler that exists" in caught.hint
    monkeypatch.setenv("CXX", "my-g++ '")
    failure(MissingToolError, "CXX=my-g", cxx_compiler)


GCC = "[ $1 = -dumpfullversion ] && echo {version}"
CLANG = "echo 'error: no such argument'; exit 1"


@pytest.mark.parametrize(
    ("here", "cuda", "taken"),
    [
        (
            {"g++": "16.2.0", "g++-16": "16.2.0", "g++-15": "15.1.0", "g++-14": "14.3.0"},
            "13.0",
            "g++-15",
        ),
        ({"g++": "16.2.0", "g++-13": "13.3.0", "g++-14": "14.3.0"}, "12.6", "g++-13"),
        ({"g++": "15.1.0", "g++-14": "14.3.0"}, "13.0", "g++"),
        ({"g++": "16.2.0", "g++-15": "15.1.0"}, None, "g++"),
        ({"g++": "16.2.0", "g++-15": "15.1.0"}, "99.0", "g++"),
        ({"clang++": "", "g++-15": "15.1.0"}, "13.0", "clang++"),
    ],
)
def test_nvcc_gets_the_newest_gcc_that_it_takes(
    here: dict[str, str],
    cuda: str | None,
    taken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    for name, version in here.items():
        program(folder, name, GCC.format(version=version) if version else CLANG)
    assert cxx_compiler(cuda) == (str(folder / taken),)


@pytest.mark.parametrize("named", [True, False])
def test_a_gcc_that_nvcc_refuses_is_told_before_anything_is_installed(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    program(folder, "g++", GCC.format(version="16.2.0"))
    if named:
        program(folder, "g++-15", GCC.format(version="15.1.0"))
        monkeypatch.setenv("CXX", "g++")
    with pytest.raises(
        MissingToolError, match=r"nvcc 13\.0 takes GCC up to 15, and .*g\+\+ is GCC 16"
    ) as caught:
        cxx_compiler("13.0")
    assert "install g++-15" in caught.value.hint
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-O1 -allow-unsupported-compiler")
    assert Path(cxx_compiler("13.0")[0]).name == "g++"


@pytest.mark.parametrize(
    "named", ["{folder}/g++-14", "g++-14", "{folder}/gcc-14", "{folder}/other"]
)
def test_the_variable_of_nvcc_names_the_compiler_of_cuda_variants(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    for name in ("g++", "g++-14", "gcc-14", "other/g++"):
        (folder / name).parent.mkdir(exist_ok=True)
        program((folder / name).parent, Path(name).name, GCC.format(version="14.3.0"))
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("NVCC_CCBIN", named.format(folder=folder))
    assert cxx_compiler("13.0") == (str(folder / ("other/g++" if "other" in named else "g++-14")),)
    assert cxx_compiler() == ("g++",)
    monkeypatch.setenv("NVCC_CCBIN", str(folder / "none"))
    with pytest.raises(
        MissingToolError, match=r"NVCC_CCBIN=.*none names a C\+\+ compiler that does not exist"
    ):
        cxx_compiler("13.0")


def test_a_build_and_its_fingerprint_mean_the_same_gcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", "13.0").parent.parent))
    for name, version in {"g++": "16.2.0", "g++-15": "15.1.0"}.items():
        program(
            folder,
            name,
            f"[ $1 = --version ] && echo {name} {version}; {GCC.format(version=version)}; exit 0",
        )
    asked = request(copy_kernel("twice", tmp_path), STABLE_CUDA, tmp_path)
    assert builder.plan(asked, quiet).chain.cxx == (str(folder / "g++-15"),)
    assert "g++-15 15.1.0" in toolchain_identity(asked.variant, tmp_path).splitlines()


def test_compilers_are_started_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    nvcc = fake_toolkit(tmp_path / "cuda", "12.6")
    program(folder, "g++", "exit 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", f"ccache {folder.name}/g++ -I./x")
    (folder / "ccache").symlink_to(folder / "g++")
    assert cxx_compiler() == ("ccache", str(folder / "g++"), "-I./x")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", folder.name)
    assert cxx_compiler() == (str(folder / "g++"),)
    for name, value in (("CUDA_HOME", "cuda"), ("NVCC", "cuda/bin/nvcc")):
        monkeypatch.setenv(name, value)
        assert find_toolkit("12.6", tmp_path, quiet).nvcc == nvcc


def test_a_compiler_is_asked_whether_it_knows_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    refusing = program(folder, "clang++", 'case "$*" in *gnu-unique*) exit 1;; esac')
    taking = program(folder, "g++", "exit 0")
    assert gcc_flags((str(refusing),)) == GCC_FLAGS[1:]
    assert gcc_flags((str(taking),)) == GCC_FLAGS


OTHER_CPU = (
    f"torch213-cxx11-cpu-{'x86_64' if this_system() == 'aarch64-linux' else 'aarch64'}-linux"
)


def test_another_machine_is_named(tmp_path: Path) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), OTHER_CPU, tmp_path)
    failure(MissingToolError, f"{OTHER_CPU} needs a machine of ", builder.plan, asked, quiet)


# --- nvcc ---


@pytest.fixture
def no_system_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolkits under /usr/local are not part of these tests, whatever this machine has."""
    which = shutil.which

    def elsewhere(name: str, path: str | None = None) -> str | None:
        return None if name.startswith("/usr/local/cuda") else which(name, path=path)

    monkeypatch.setattr(shutil, "which", elsewhere)


def test_an_nvcc_of_the_right_version_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    nvcc = fake_toolkit(tmp_path / "cuda", "12.6")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    found = find_toolkit("12.6", tmp_path, quiet)
    assert (found.nvcc, found.root, found.runtime) == (nvcc, tmp_path / "cuda", "libcudart.so.12")
    assert found.library_dir == tmp_path / "cuda/lib64"
    assert found.complete
    assert found.versions() == ["nvcc 12.6.88"]
    # A wrapper on the PATH is asked where its toolkit is.
    monkeypatch.delenv("CUDA_HOME")
    program(folder, "nvcc", f'exec {nvcc} "$@"')
    found = find_toolkit("12.6", tmp_path, quiet)
    assert (found.nvcc, found.root) == (folder / "nvcc", tmp_path / "cuda")


def test_an_nvcc_of_another_version_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    only_these(monkeypatch, tmp_path)
    fake_toolkit(tmp_path / "cuda", "12.6")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    said: list[str] = []
    found = find_toolkit("13.2", tmp_path / "cache", said.append)
    assert "is CUDA 12.6, not 13.2" in said[0]
    assert found.wheels == tmp_path / "cache/cuda/13.2"
    assert not found.complete
    command = found.setup(Path("/env/python"))[0]
    assert "nvidia-cuda-nvcc==13.2.86" in command
    assert command[1:5] == ["pip", "install", "--python", "/env/python"]
    assert ":all:" in command


def test_a_toolkit_that_nobody_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    only_these(monkeypatch, tmp_path)
    caught = failure(MissingToolError, r"nvcc of CUDA 12\.6", find_toolkit, "12.6", tmp_path, quiet)
    assert "13.0, 13.2" in caught.hint


def test_nvcc_named_by_hand_must_be_of_the_right_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch, tmp_path)
    nvcc = fake_toolkit(tmp_path / "cuda", "12.6")
    monkeypatch.setenv("NVCC", str(nvcc))
    assert find_toolkit("12.6", tmp_path, quiet).nvcc == nvcc
    with pytest.raises(MissingToolError, match=r"is CUDA 12\.6, but the variant needs CUDA 13\.0"):
        find_toolkit("13.0", tmp_path, quiet)
    monkeypatch.setenv("NVCC", str(tmp_path / "nowhere"))
    failure(MissingToolError, "does not run", find_toolkit, "13.0", tmp_path, quiet)


def test_a_toolkit_without_headers_or_runtime_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    only_these(monkeypatch, tmp_path)
    fake_toolkit(tmp_path / "cuda", "12.6")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    (tmp_path / "cuda/lib64/libcudart.so.12").unlink()
    toolkit = find_toolkit("12.6", tmp_path, quiet)
    with pytest.raises(MissingToolError, match=r"libcudart\.so\.12"):
        _ = toolkit.library_dir
    (tmp_path / "cuda/include/cuda_runtime.h").unlink()
    failure(MissingToolError, "no headers", find_toolkit, "12.6", tmp_path, quiet)


# --- limits, glibc ---


@pytest.fixture
def free_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_JOBS", "NVCC_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("free_choice")
def test_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_count(None) >= 1
    monkeypatch.setenv("MAX_JOBS", "6")
    assert (job_count(None), job_count(3), job_count(None, builds=4), job_count(3, builds=4)) == (
        6,
        3,
        1,
        1,
    )
    assert (pool_depth(None, "cuda"), pool_depth(3, "cuda")) == (None, None), "somebody has chosen"
    for wrong in ("0", "-1", "many", "1.5", "²"):
        monkeypatch.setenv("MAX_JOBS", wrong)
        failure(UsageError, "MAX_JOBS", job_count, None)
    failure(UsageError, "at least 1", job_count, 0)


@pytest.mark.parametrize(
    ("gib", "depths"),
    [
        (64, {"cpu": 32, "cuda": 16, "rocm": 16}),
        (31, {"cpu": 15, "cuda": 7, "rocm": 7}),
        (8, {"cpu": 4, "cuda": 2, "rocm": 2}),
        (1, {"cpu": 1, "cuda": 1, "rocm": 1}),
    ],
)
@pytest.mark.usefixtures("free_choice")
def test_compilers_get_the_memory_that_they_need(
    monkeypatch: pytest.MonkeyPatch, gib: int, depths: dict[str, int]
) -> None:
    monkeypatch.setattr("kci.builders.process.machine.memory", lambda: gib * 2**30)
    assert {backend: pool_depth(None, backend) for backend in depths} == depths
    assert pool_depth(None, "cuda", cutlass=True) == max(1, gib // 9)
    assert pool_depth(None, "cpu", builds=2) == max(1, gib // 4)
    monkeypatch.setenv("NVCC_THREADS", "2")
    assert (pool_depth(None, "cuda"), pool_depth(None, "rocm")) == (
        max(1, gib // 8),
        depths["rocm"],
    )


@pytest.mark.parametrize(
    ("minor", "newer"), [("28", False), ("17", False), ("36", True), ("", False)]
)
def test_the_glibc_of_the_compiler_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: str, newer: bool
) -> None:
    defines = (
        f"echo '#define __GLIBC__ 2'\necho '#define __GLIBC_MINOR__ {minor}'"
        if minor
        else "echo '#define __linux__ 1'"
    )
    program(only_these(monkeypatch, tmp_path), "g++", defines)
    assert glibc_is_newer(("g++",)) is newer


@pytest.mark.skipif(sys.platform != "linux", reason="the native builder works on Linux")
@pytest.mark.usefixtures("free_choice")
def test_each_compiler_is_in_the_pool_of_its_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    program(folder, "g++", 'echo "g++ 12"')
    fake_toolkit(tmp_path / "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("kci.builders.process.machine.memory", lambda: 12 * 2**30)
    kernel = copy_kernel("bare", tmp_path)
    recipe = builder.plan(request(kernel, STABLE_CUDA, tmp_path), quiet)
    assert recipe.pools == {"cpu": 6, "cuda": 3}
    pools = {step.label.partition(" ")[0]: step.pool for step in recipe.steps}
    assert (pools["c++"], pools["nvcc"], pools["link"]) == ("cpu", "cuda", "")
    chosen = builder.plan(request(kernel, STABLE_CUDA, tmp_path, jobs=7), quiet)
    assert (chosen.jobs, chosen.pools, {step.pool for step in chosen.steps}) == (7, {}, {""})


def test_a_hostile_source_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    kernel = copy_kernel("plus-one", tmp_path)
    text = (kernel / "build.toml").read_text().replace("csrc/plus_one.cpp", "../../secret.cpp")
    (kernel / "build.toml").write_text(text)
    asked = request(kernel, CPU, tmp_path)
    failure(UnsafeError, "leads out", build_variant, asked, quiet)
    assert not asked.options.cache.exists()


# --- nvcc from wheels, with the real pip, offline ---


def toolkit_wheels(folder: Path, version: str) -> None:
    """Wheels of the names and versions of a toolkit; the one with nvcc has a file of that name."""
    for package in toolchains().cuda[version]:
        name, _, release = package.partition("==")
        files = (
            {f"nvidia/cu13/bin/{name}": "", "nvidia/cu13/bin/nvcc": ""}
            if name.endswith("nvcc")
            else {}
        )
        make_wheel(
            folder, name.replace("-", "_"), release, {f"nvidia/cu13/share/{name}": "", **files}
        )


def test_a_toolkit_of_wheels_appears_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    toolkit_wheels(tmp_path / "wheels", "13.2")
    only_wheels(monkeypatch, tmp_path / "wheels")
    only_these(monkeypatch, tmp_path)
    toolkit = find_toolkit("13.2", tmp_path / "cache", quiet)
    toolkit.ensure(Path(sys.executable), quiet)
    assert toolkit.complete
    assert len(list((toolkit.root / "share").iterdir())) == len(toolchains().cuda["13.2"])
    said: list[str] = []
    toolkit.ensure(Path(sys.executable), said.append)
    assert said == []


def test_a_toolkit_of_wheels_that_cannot_be_had_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system_toolkit: None
) -> None:
    toolkit_wheels(tmp_path / "wheels", "13.2")
    next((tmp_path / "wheels").glob("nvidia_nvvm*")).unlink()
    only_wheels(monkeypatch, tmp_path / "wheels")
    only_these(monkeypatch, tmp_path)
    toolkit = find_toolkit("13.2", tmp_path / "cache", quiet)
    with pytest.raises(MissingToolError, match="nvidia-nvvm was not found"):
        toolkit.ensure(Path(sys.executable), quiet)
    assert list((tmp_path / "cache/cuda").iterdir()) == []


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("/usr/lib/gcc/x86_64-linux-gnu/13/libstdc++.so", "-lstdc++"),
        ("libstdc++.so", "-l:libstdc++.so.6"),
    ],
)
def test_a_static_cpp_library_is_not_linked(tmp_path: Path, found: str, wanted: str) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n[ $1 = -print-file-name=libstdc++.so ] && echo {found}\n")
    compiler.chmod(0o755)
    assert cpp_library((str(compiler),)) == wanted
