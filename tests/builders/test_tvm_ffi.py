"""tvm-ffi kernels: the commands are the reference's, and the example builds, verifies, loads and
passes its tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from buildkit import quiet, request, runtime, toolchain, warm_cache, with_changes, write_tree
from conftest import ROOT, failure
from kci.builders import build_variant
from kci.builders.dispatch import plan_commands
from kci.builders.native import builder
from kci.builders.native.command_lines import Toolchain, compile_command, link_command
from kci.builders.native.units import Unit
from kci.builders.toolchains.cuda import Toolkit
from kci.builders.toolchains.environment import tvm_ffi_environment
from kci.config.reader import read_kernel
from kci.errors import MissingToolError
from kci.run.kernel_tests import TestState, run_kernel_tests
from kci.scaffold.new_kernel import choose, new_kernel_files
from kci.tree.metadata import metadata_for, seal
from kci.tree.verify import verify

EXAMPLE = ROOT / "examples" / "relu-tvm-ffi"
CPU = "tvm-ffi01-cpu-x86_64-linux"
CUDA = "tvm-ffi01-cu130-x86_64-linux"


def chain(tmp_path: Path, name: str = CPU, **changes: object) -> Toolchain:
    return toolchain(name, tvm_ffi_environment(tmp_path, "0.1"), **changes)


def unit(language: str, *, named: bool = True) -> Unit:
    name = "a.cu" if language == "CUDA" else "a.cpp"
    include = (PurePosixPath("inc"),)
    return Unit(
        PurePosixPath(name),
        name,
        f"obj/000/{name}.o",
        language,
        include,
        ("-DA",),
        ("8.0",),
        uses_name=named,
    )


def test_a_cpp_source(tmp_path: Path) -> None:
    assert compile_command(chain(tmp_path), unit("CXX")) == [
        "g++", "-O3", "-DNDEBUG", "-fPIC", "-fno-gnu-unique", "-fno-canonical-system-headers",
        "-frandom-seed=obj/000/a.cpp.o",
        "-DCPU_KERNEL", "-DTVM_FFI_EXTENSION_NAME=_k_cpu_1", "-Ikernel/inc", "-isystem",
        "tvm_ffi/include",
        "-DA", "-MD", "-MF", "obj/000/a.cpp.o.d", "-c", "kernel/a.cpp", "-o", "obj/000/a.cpp.o",
    ]  # fmt: skip
    assert "-DTVM_FFI_EXTENSION_NAME=@" in compile_command(
        chain(tmp_path), unit("CXX", named=False)
    )


def test_a_cuda_source_has_nothing_of_torch(tmp_path: Path) -> None:
    made = chain(tmp_path, CUDA, device=Toolkit("13.0", Path("/cuda/bin/nvcc"), Path("/cuda")))
    command = compile_command(made, unit("CUDA"))
    assert {"-DCUDA_KERNEL", "-gencode=arch=compute_80,code=sm_80"} <= set(command)
    assert not any(
        "torch" in word.lower() or "std=" in word or "FP8" in word or "expt" in word
        for word in command
    )


def test_the_link(tmp_path: Path) -> None:
    assert link_command(chain(tmp_path), ["a.o"]) == [
        "g++", "-shared", "-Wl,-soname,_k_cpu_1.so", "-o", "_k_cpu_1.so", "a.o",
        "-Wl,--strip-debug",
        "-Wl,--discard-all", "-Wl,--version-script=exports.map", "-Wl,--as-needed", "-lstdc++",
        "-Ltvm_ffi/lib", "-ltvm_ffi",
    ]  # fmt: skip
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libcudart.so.13").touch()
    made = chain(tmp_path, CUDA, device=Toolkit("13.0", Path("/cuda/bin/nvcc"), tmp_path))
    cuda = link_command(made, ["a.o"])
    assert cuda[-3:] == ["-lrt", "-lpthread", "-ldl"]
    assert not any("torch" in word for word in cuda)
    # What stands in for newer functions has to come behind the static runtime that calls them.
    behind = link_command(replace(made, glibc_compat=True), ["a.o"])
    assert (
        behind.index("-lcudart_static")
        < behind.index("stub/libolder.a")
        < behind.index("stub/libpthread.so.0")
    )


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    caught = failure(MissingToolError, r"tvm-ffi 0\.9", tvm_ffi_environment, tmp_path, "0.9")
    assert "0.1" in caught.hint
    with pytest.raises(MissingToolError, match="does not compile tvm-ffi01-rocm72"):
        builder.plan(request(EXAMPLE, "tvm-ffi01-rocm72-x86_64-linux", tmp_path), quiet)


def test_a_dry_run_installs_tvm_ffi_and_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "this_system", lambda: "x86_64-linux")
    what = request(EXAMPLE, CPU, tmp_path)
    lines = plan_commands(with_changes(what, cache=tmp_path))
    assert "apache-tvm-ffi==" in "\n".join(lines)
    assert not any("torch==" in line for line in lines)


@pytest.mark.torch
def test_the_example_builds_verifies_loads_and_passes_its_tests(tmp_path: Path) -> None:
    runtime()
    kernel = read_kernel(EXAMPLE)
    what = request(EXAMPLE, CPU, tmp_path, cache=warm_cache(tmp_path))
    build_variant(what, quiet)
    seal(what.output, metadata_for(kernel.build, "cpu", "1a2b3c4", archs=None))
    assert [item for item in verify(what.output) if item.severity.value == "error"] == []
    report = run_kernel_tests(what.output, EXAMPLE, quiet, cache=what.options.cache, torch="2.13")
    assert (report.state, report.passed) == (TestState.PASSED, 9), report.output


LOAD = """
import ctypes, os, sys
for library in sys.argv[1:]:
    loaded = ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_GLOBAL)
print(loaded.__tvm_ffi_my_kernel)
"""


@pytest.mark.torch
def test_a_new_cuda_kernel_builds_verifies_and_loads_where_no_gpu_is(tmp_path: Path) -> None:
    runtime()
    files = new_kernel_files(
        choose("my-kernel", framework="tvm-ffi", backends=("cuda",)), standalone=True
    )
    files["build.toml"] += 'cuda-capabilities = ["9.0"]\n'
    what = request(
        write_tree(tmp_path / "my-kernel", files), CUDA, tmp_path, cache=warm_cache(tmp_path)
    )
    build_variant(what, quiet)
    seal(what.output, metadata_for(what.build, "cuda", "1a2b3c4", archs=("9.0",)))
    assert [item for item in verify(what.output) if item.severity.value == "error"] == []
    (module,) = what.output.glob("*.so")
    environment = tvm_ffi_environment(what.options.cache, "0.1")
    command = [sys.executable, "-c", LOAD, environment.torch / "lib" / "libtvm_ffi.so", module]
    assert "FuncPtr" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
