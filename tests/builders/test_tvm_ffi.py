"""tvm-ffi kernels: the commands are the reference's, and the example builds, verifies, loads and
passes its tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from buildkit import (
    asked,
    built,
    output_of,
    quiet,
    request,
    runtime,
    with_changes,
    write_tree,
)
from conftest import ROOT, failure
from kci.builders.dispatch import plan_commands
from kci.builders.native import builder
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
