"""What a build does where something is missing: it names it, says what to do, and exits with 3."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from buildkit import CPU, STABLE_CUDA, Bare, copy_kernel, program, quiet, request, write_tree
from conftest import failure
from kci.builders.dispatch import build_variant
from kci.builders.native import builder
from kci.builders.process import machine
from kci.builders.process.machine import cpu_limit, job_count, memory_limit, pool_depth
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


def test_a_build_without_a_compiler_leaves_nothing_behind(bare: Bare) -> None:
    asked = request(copy_kernel("plus-one", bare.place), CPU, bare.place)
    caught = failure(MissingToolError, r"C\+\+ compiler", build_variant, asked, quiet)
    assert caught.exit_code == 3
    assert "apt-get install g++" in caught.hint
    assert not asked.output.parent.exists()
    assert not asked.options.cache.exists()


def test_cxx_is_respected_with_its_arguments(bare: Bare) -> None:
    bare.add("my-g++")
    bare.set(CXX="my-g++ -m64 '-DA b'")
    assert cxx_compiler() == ("my-g++", "-m64", "-DA b")
    for wrong in ("not-there", "my-g++ '"):
        bare.set(CXX=wrong)
        caught = failure(MissingToolError, f"CXX={re.escape(wrong)}", cxx_compiler)
        assert "unset CXX, or name a compiler that exists" in caught.hint


GCC = "[ $1 = -dumpfullversion ] && echo {version}"
CLANG = "echo 'error: no such argument'; exit 1"


@pytest.mark.parametrize(
    ("here", "cuda", "taken"),
    [
        ("g++ 16, g++-16 16, g++-15 15, g++-14 14", "13.0", "g++-15"),
        ("g++ 16, g++-13 13, g++-14 14", "12.6", "g++-13"),
        ("g++ 15, g++-14 14", "13.0", "g++"),
        ("g++ 16, g++-15 15", None, "g++"),
        ("g++ 16, g++-15 15", "99.0", "g++"),
        ("clang++ , g++-15 15", "13.0", "clang++"),
    ],
)
def test_nvcc_gets_the_newest_gcc_that_it_takes(
    bare: Bare, here: str, cuda: str | None, taken: str
) -> None:
    for name, _, major in (item.partition(" ") for item in here.split(", ")):
        bare.add(name, GCC.format(version=f"{major}.1.0") if major else CLANG)
    assert cxx_compiler(cuda) == (str(bare.folder / taken),)


@pytest.mark.parametrize("named", [True, False])
def test_a_gcc_that_nvcc_refuses_is_told_before_anything_is_installed(
    bare: Bare, named: bool
) -> None:
    bare.add("g++", GCC.format(version="16.2.0"))
    if named:
        bare.add("g++-15", GCC.format(version="15.1.0"))
        bare.set(CXX="g++")
    says = r"nvcc 13\.0 takes GCC up to 15, and .*g\+\+ is GCC 16"
    assert "install g++-15" in failure(MissingToolError, says, cxx_compiler, "13.0").hint
    bare.set(NVCC_PREPEND_FLAGS="-O1 -allow-unsupported-compiler")
    assert Path(cxx_compiler("13.0")[0]).name == "g++"


@pytest.mark.parametrize(
    "named", ["{folder}/g++-14", "g++-14", "{folder}/gcc-14", "{folder}/other"]
)
def test_the_variable_of_nvcc_names_the_compiler_of_cuda_variants(bare: Bare, named: str) -> None:
    folder = bare.folder
    (folder / "other").mkdir()
    for name in ("g++", "g++-14", "gcc-14", "other/g++"):
        bare.add(name, GCC.format(version="14.3.0"))
    bare.set(CXX="g++", NVCC_CCBIN=named.format(folder=folder))
    assert cxx_compiler("13.0") == (str(folder / ("other/g++" if "other" in named else "g++-14")),)
    assert cxx_compiler() == ("g++",)
    bare.set(NVCC_CCBIN=folder / "none")
    says = r"NVCC_CCBIN=.*none names a C\+\+ compiler that does not exist"
    failure(MissingToolError, says, cxx_compiler, "13.0")


def test_a_build_and_its_fingerprint_mean_the_same_gcc(bare: Bare) -> None:
    bare.set(CUDA_HOME=fake_toolkit(bare.place / "cuda", "13.0").parent.parent)
    for name, version in {"g++": "16.2.0", "g++-15": "15.1.0"}.items():
        says = GCC.format(version=version)
        bare.add(name, f"[ $1 = --version ] && echo {name} {version}; {says}; exit 0")
    asked = request(copy_kernel("twice", bare.place), STABLE_CUDA, bare.place)
    assert builder.plan(asked, quiet).chain.cxx == (str(bare.folder / "g++-15"),)
    assert "g++-15 15.1.0" in toolchain_identity(asked.variant, bare.place).splitlines()


def test_compilers_are_started_in_another_directory(bare: Bare) -> None:
    nvcc = fake_toolkit(bare.place / "cuda", "12.6")
    compiler = bare.add("g++")
    bare.patch.chdir(bare.place)
    bare.set(CXX=f"ccache {bare.folder.name}/g++ -I./x")
    (bare.folder / "ccache").symlink_to(compiler)
    assert cxx_compiler() == ("ccache", str(compiler), "-I./x")
    bare.patch.delenv("CXX")
    bare.set(PATH=bare.folder.name)
    assert cxx_compiler() == (str(compiler),)
    for variable in ({"CUDA_HOME": "cuda"}, {"NVCC": "cuda/bin/nvcc"}):
        bare.set(**variable)
        assert find_toolkit("12.6", bare.place, quiet).nvcc == nvcc


def test_a_compiler_is_asked_whether_it_knows_a_flag(bare: Bare) -> None:
    refusing = bare.add("clang++", 'case "$*" in *gnu-unique*) exit 1;; esac')
    assert gcc_flags((str(refusing),)) == GCC_FLAGS[1:]
    assert gcc_flags((str(bare.add("g++")),)) == GCC_FLAGS


OTHER_CPU = (
    f"torch213-cxx11-cpu-{'x86_64' if this_system() == 'aarch64-linux' else 'aarch64'}-linux"
)


def test_another_machine_is_named(tmp_path: Path) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), OTHER_CPU, tmp_path)
    failure(MissingToolError, f"{OTHER_CPU} needs a machine of ", builder.plan, asked, quiet)


# --- nvcc ---


@pytest.fixture
def plain(bare: Bare) -> Bare:
    """Such a machine without toolkits under /usr/local, whatever this one has."""
    which = shutil.which

    def elsewhere(name: str, path: str | None = None) -> str | None:
        return None if name.startswith("/usr/local/cuda") else which(name, path=path)

    bare.patch.setattr(shutil, "which", elsewhere)
    return bare


@pytest.fixture
def cuda(plain: Bare) -> Path:
    """A toolkit of CUDA 12.6, named by the variable."""
    fake_toolkit(plain.place / "cuda", "12.6")
    plain.set(CUDA_HOME=plain.place / "cuda")
    return plain.place / "cuda"


def test_an_nvcc_of_the_right_version_is_found(plain: Bare, cuda: Path) -> None:
    """A wrapper on the PATH is asked where its toolkit is."""
    nvcc, said = cuda / "bin/nvcc", list[str]()
    wrapper = plain.add("nvcc", f'exec {nvcc} "$@"')
    for taken, variables in (
        (nvcc, {"CUDA_HOME": cuda}), (wrapper, {"CUDA_HOME": ""}), (nvcc, {"NVCC": nvcc})
    ):  # fmt: skip
        plain.set(**variables)
        found = find_toolkit("12.6", plain.place, quiet)
        assert (found.nvcc, found.root, found.runtime) == (taken, cuda, "libcudart.so.12")
        assert (found.library_dir, found.complete) == (cuda / "lib64", True)
        assert found.versions() == ["nvcc 12.6.88"]
    says = r"is CUDA 12\.6, but the variant needs CUDA 13\.2"
    failure(MissingToolError, says, find_toolkit, "13.2", plain.place, quiet)
    plain.set(NVCC=plain.place / "nowhere")
    failure(MissingToolError, "does not run", find_toolkit, "13.0", plain.place, quiet)
    plain.set(NVCC="")
    found = find_toolkit("13.2", plain.place / "cache", said.append)
    assert "is CUDA 12.6, not 13.2" in said[0]
    assert (found.wheels, found.complete) == (plain.place / "cache/cuda/13.2", False)
    command = found.setup(Path("/env/python"), found.place)[0]
    assert {"nvidia-cuda-nvcc==13.2.86", ":all:"} <= set(command)
    assert command[1:5] == ["pip", "install", "--python", "/env/python"]
    says = r"no nvcc of CUDA 12\.8"
    assert "13.0, 13.2" in failure(MissingToolError, says, find_toolkit, "12.8", Path(), quiet).hint


def test_a_toolkit_without_headers_or_runtime_is_named(tmp_path: Path, cuda: Path) -> None:
    (cuda / "lib64/libcudart.so.12").unlink()
    toolkit = find_toolkit("12.6", tmp_path, quiet)
    failure(MissingToolError, r"libcudart\.so\.12", lambda: toolkit.library_dir)
    (cuda / "include/cuda_runtime.h").unlink()
    failure(MissingToolError, "no headers", find_toolkit, "12.6", tmp_path, quiet)


# --- cores and memory, and the limits of control groups of both kinds ---

GIB = 2**30


@dataclass
class Limited:
    """A machine with 16 cores and some memory, and files of control groups."""

    place: Path
    patch: pytest.MonkeyPatch

    def has(self, gib: float, membership: str = "", **files: str) -> None:
        sizes = {"SC_PHYS_PAGES": int(gib * GIB) // 4096}
        self.patch.setattr("os.sysconf", lambda name: sizes.get(name, 4096))
        write_tree(self.place, {"membership": membership})
        shutil.rmtree(self.place / "mount", ignore_errors=True)
        write_tree(self.place / "mount", files)


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Limited:
    for name in ("MAX_JOBS", "NVCC_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(machine, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(machine, "_MOUNT", tmp_path / "mount")
    return Limited(tmp_path, monkeypatch)


V1 = "8:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("membership", "files", "gib", "cores"),
    [
        # the tightest of a group and those above it
        ("0::/job/step\n",
            {"job/step/memory.max": "max\n", "job/memory.max": f"{8 * GIB}\n",
             "memory.max": f"{64 * GIB}\n", "job/step/cpu.max": "150000 100000\n",
             "job/cpu.max": "max 100000\n"}, 8, 1.5),
        # a container that is named as the host sees it
        ("0::/system.slice/docker-1a2b.scope\n",
            {"memory.max": f"{2 * GIB}\n", "cpu.max": "200000 100000\n"}, 2, 2.0),
        # the older kind, which writes a number for no limit
        (V1, {"memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, 4, 3.0),
        *((none, {"memory.max": "max\n", "cpu.max": "max 100000\n"}, None, None)
          for none in ("", "0::/\n", "no\nsense:", "4:memory:/x\n0::/y")),
    ],
)  # fmt: skip
def test_the_limits_of_control_groups(
    limited: Limited, membership: str, files: dict[str, str], gib: int | None, cores: float | None
) -> None:
    limited.has(64, membership, **files)
    assert (memory_limit(), cpu_limit()) == (gib and gib * GIB, cores)
    assert (machine.memory(), job_count(None)) == ((gib or 64) * GIB, round(cores or 16))


def test_jobs(limited: Limited) -> None:
    limited.has(64, "0::/", **{"cpu.max": "10000 100000"})
    assert job_count(None) == 1
    limited.patch.setenv("MAX_JOBS", "6")
    given = [(None, 1), (3, 1), (None, 4), (3, 4)]
    assert [job_count(jobs, builds=builds) for jobs, builds in given] == [6, 3, 1, 1]
    assert (pool_depth(None, "cuda"), pool_depth(3, "cuda")) == (6, 3), "somebody has chosen"
    for wrong in ("0", "-1", "many", "1.5", "²"):
        limited.patch.setenv("MAX_JOBS", wrong)
        failure(UsageError, "MAX_JOBS", job_count, None)
    failure(UsageError, "at least 1", job_count, 0)


@pytest.mark.parametrize(("gib", "cpu", "gpu"), [(64, 32, 16), (31, 15, 7), (8, 4, 2), (0.5, 1, 1)])
def test_compilers_get_the_memory_that_they_need(
    limited: Limited, gib: float, cpu: int, gpu: int
) -> None:
    limited.has(gib)
    assert [pool_depth(None, name) for name in ("cpu", "cuda", "rocm")] == [cpu, gpu, gpu]
    assert pool_depth(None, "cuda", cutlass=True) == max(1, gib // 9)
    assert pool_depth(None, "cpu", builds=2) == max(1, gib // 4)
    limited.patch.setenv("NVCC_THREADS", "2")
    assert (pool_depth(None, "cuda"), pool_depth(None, "rocm")) == (max(1, gib // 8), gpu)


@pytest.mark.parametrize(
    ("defines", "newer"),
    [("2 28", False), ("2 17", False), ("2 36", True), ("", False)],
)
def test_the_glibc_of_the_compiler_is_compared(bare: Bare, defines: str, newer: bool) -> None:
    major, _, minor = defines.partition(" ")
    glibc = f"#define __GLIBC__ {major}\n#define __GLIBC_MINOR__ {minor}" if defines else ""
    bare.add("g++", f"echo '#define __linux__ 1\n{glibc}'")
    assert glibc_is_newer(("g++",)) is newer


@pytest.mark.skipif(sys.platform != "linux", reason="the native builder works on Linux")
def test_each_compiler_is_in_the_pool_of_its_backend(plain: Bare, limited: Limited) -> None:
    plain.add("g++", 'echo "g++ 12"')
    plain.set(CUDA_HOME=fake_toolkit(plain.place / "cuda", "13.0").parent.parent)
    plain.patch.setattr("platform.machine", lambda: "x86_64")
    limited.has(12)
    kernel = copy_kernel("bare", plain.place)
    recipe = builder.plan(request(kernel, STABLE_CUDA, plain.place), quiet)
    assert recipe.pools == {"cpu": 6, "cuda": 3}
    pools = {step.label.partition(" ")[0]: step.pool for step in recipe.steps}
    assert (pools["c++"], pools["nvcc"], pools["link"]) == ("cpu", "cuda", "")
    chosen = builder.plan(request(kernel, STABLE_CUDA, plain.place, jobs=7), quiet)
    assert (chosen.jobs, chosen.pools) == (7, {"cpu": 7, "cuda": 7})


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
        place = f"nvidia/cu13/share/{name}"
        nvcc = {f"nvidia/cu13/bin/{name}", "nvidia/cu13/bin/nvcc"} if name[-4:] == "nvcc" else set()
        make_wheel(folder, name.replace("-", "_"), release, dict.fromkeys({place, *nvcc}, ""))


@pytest.mark.parametrize("whole", [True, False])
def test_a_toolkit_of_wheels_appears_whole_or_not_at_all(plain: Bare, whole: bool) -> None:
    wheels = plain.place / "wheels"
    toolkit_wheels(wheels, "13.2")
    only_wheels(plain.patch, wheels)
    toolkit = find_toolkit("13.2", plain.place / "cache", quiet)
    python = Path(sys.executable)
    if not whole:
        next(wheels.glob("nvidia_nvvm*")).unlink()
        failure(MissingToolError, "nvidia-nvvm was not found", toolkit.ensure, python, quiet)
        assert list((plain.place / "cache/cuda").iterdir()) == []
        return
    toolkit.ensure(python, quiet)
    assert toolkit.complete
    assert len(list((toolkit.root / "share").iterdir())) == len(toolchains().cuda["13.2"])
    toolkit.ensure(python, pytest.fail)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("/usr/lib/gcc/x86_64-linux-gnu/13/libstdc++.so", "-lstdc++"),
        ("libstdc++.so", "-l:libstdc++.so.6"),
    ],
)
def test_a_static_cpp_library_is_not_linked(tmp_path: Path, found: str, wanted: str) -> None:
    compiler = program(tmp_path, "c++", f"[ $1 = -print-file-name=libstdc++.so ] && echo {found}")
    assert cpp_library((str(compiler),)) == wanted
