"""tvm-ffi kernels: the commands are the reference's, and the example builds, verifies, loads and
passes its tests.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from buildkit import (
    asked,
    built,
    output_of,
    quiet,
    request,
    runtime,
    toolchain,
    with_changes,
    write_tree,
)
from conftest import ROOT, failure
from kci.builders.dispatch import plan_commands
from kci.builders.native import builder
from kci.builders.native.command_lines import compile_command, link_command
from kci.builders.native.units import Unit
from kci.builders.toolchains.compilers import Toolchain
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
    how = (language, (PurePosixPath("inc"),), ("-DA",), ("8.0",))
    return Unit(PurePosixPath(name), name, f"obj/000/{name}.o", *how, uses_name=named)


def test_a_cpp_source(tmp_path: Path) -> None:
    assert compile_command(chain(tmp_path), unit("CXX")) == [
        "g++", "-O3", "-DNDEBUG", "-fPIC", "-fno-gnu-unique", "-fno-canonical-system-headers",
        "-frandom-seed=obj/000/a.cpp.o",
        "-DCPU_KERNEL", "-DTVM_FFI_EXTENSION_NAME=_k_cpu_1", "-Ikernel/inc", "-isystem",
        "tvm_ffi/include",
        "-DA", "-MD", "-MF", "obj/000/a.cpp.o.d", "-c", "kernel/a.cpp", "-o", "obj/000/a.cpp.o",
    ]  # fmt: skip
    unnamed = compile_command(chain(tmp_path), unit("CXX", named=False))
    assert "-DTVM_FFI_EXTENSION_NAME=@" in unnamed


def test_a_cuda_source_has_nothing_of_torch(tmp_path: Path) -> None:
    made = chain(tmp_path, CUDA, device=Toolkit("13.0", Path("/cuda/bin/nvcc"), Path("/cuda")))
    command = compile_command(made, unit("CUDA"))
    assert {"-DCUDA_KERNEL", "-gencode=arch=compute_80,code=sm_80"} <= set(command)
    for part in ("torch", "std=", "fp8", "expt"):
        assert not any(part in word.lower() for word in command)


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
    order = ("-lcudart_static", "stub/libolder.a", "stub/libpthread.so.0")
    places = [behind.index(word) for word in order]
    assert places == sorted(places)


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    caught = failure(MissingToolError, r"tvm-ffi 0\.9", tvm_ffi_environment, tmp_path, "0.9")
    assert "0.1" in caught.hint
    other = request(EXAMPLE, "tvm-ffi01-rocm72-x86_64-linux", tmp_path)
    failure(MissingToolError, "does not compile tvm-ffi01-rocm72", builder.plan, other, quiet)


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
    what = asked(CPU, EXAMPLE, tmp_path)
    built(what)
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
    chosen = choose("my-kernel", framework="tvm-ffi", backends=("cuda",))
    files = new_kernel_files(chosen, standalone=True)
    files["build.toml"] += 'cuda-capabilities = ["9.0"]\n'
    what = asked(CUDA, write_tree(tmp_path / "my-kernel", files), tmp_path)
    built(what)
    seal(what.output, metadata_for(what.build, "cuda", "1a2b3c4", archs=("9.0",)))
    assert [item for item in verify(what.output) if item.severity.value == "error"] == []
    (module,) = what.output.glob("*.so")
    environment = tvm_ffi_environment(what.options.cache, "0.1")
    library = environment.torch / "lib" / "libtvm_ffi.so"
    assert "FuncPtr" in output_of(sys.executable, "-c", LOAD, library, module)
