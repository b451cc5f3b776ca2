"""Variants for another CPU, with a real cross compiler and the headers of the real wheels of that system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from builders.test_native_builds import Binary, check_manylinux
from buildkit import copy_kernel, quiet, request, warm_cache, with_changes, write_tree
from conftest import ROOT
from kci.builders import build_variant
from kci.builders.request import Request
from kci.errors import BuildFailedError, MissingToolError
from kci.starter.new_kernel import choose, files_of
from kci.verify import verify

pytestmark = [
    pytest.mark.torch,
    pytest.mark.network,
    pytest.mark.usefixtures("cross_compilers"),
    pytest.mark.skipif(
        os.uname().machine != "x86_64" or shutil.which("aarch64-linux-gnu-g++") is None,
        reason="there is no cross compiler for aarch64-linux",
    ),
]

STABLE = "torch-stable-abi211-cpu-aarch64-linux"
FULL = "torch213-cxx11-cpu-aarch64-linux"
CUDA = "torch-stable-abi211-cu130-aarch64-linux"
TVM_FFI = "tvm-ffi01-cpu-aarch64-linux"
TVM_FFI_CUDA = "tvm-ffi01-cu130-aarch64-linux"

OF_FRAMEWORKS = re.compile(r"_ZNK?(2at|3c10|5torch|3tvm)|aoti_|torch_|TVMFFI")


def asked(name: str, kernel: str, place: Path) -> Request:
    place.mkdir(parents=True, exist_ok=True)
    example = ROOT / "examples" / kernel
    if name == TVM_FFI_CUDA:
        files = files_of(choose(kernel, framework="tvm-ffi", backends=("cuda",)), standalone=True)
        files["build.toml"] += 'cuda-capabilities = ["9.0"]\n'
        sources = write_tree(place / kernel, files)
    else:
        sources = Path(shutil.copytree(example, place / kernel)) if example.is_dir() else copy_kernel(kernel, place)
    return request(sources, name, place, cache=warm_cache(place))


def module(what: Request) -> Path:
    (found,) = what.output.glob("*.so")
    return found


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        (STABLE, "twice"),
        (FULL, "plus-one"),
        (TVM_FFI, "relu-tvm-ffi"),
        (CUDA, "bare"),
    ],
)
def test_a_crossed_variant_is_for_its_system_and_for_older_ones(name: str, kernel: str, tmp_path: Path) -> None:
    what = asked(name, kernel, tmp_path / "one")
    said: list[str] = []
    built = build_variant(what, said.append)
    with module(what).open("rb") as file:
        assert ELFFile(file).get_machine_arch() == "AArch64"
    binary = Binary(module(what))
    check_manylinux(binary)
    library = "libtvm_ffi.so" if name.startswith("tvm-ffi") else "libtorch_cpu.so"
    assert library in binary.needed
    assert built.inputs is not None
    assert built.inputs.toolchain.startswith("aarch64-linux-gnu-g++"), "the record names the compiler"
    assert built.inputs.files, "the compiler's own lists are looked at"
    again = asked(name, kernel, tmp_path / "another place")
    build_variant(again, quiet)
    assert module(again).read_bytes() == module(what).read_bytes()
    warm: list[str] = []
    build_variant(what, warm.append)
    assert not [line for line in warm if "c++ csrc" in line], "objects of the other system are kept too"


@pytest.mark.parametrize(("name", "kernel"), [(STABLE, "twice"), (TVM_FFI, "relu-tvm-ffi")])
def test_it_needs_of_others_what_the_native_variant_needs(name: str, kernel: str, tmp_path: Path) -> None:
    crossed, native = (asked(each, kernel, tmp_path / each) for each in (name, name.replace("aarch64", "x86_64")))
    found = []
    for what in (crossed, native):
        build_variant(what, quiet)
        binary = Binary(module(what))
        libraries = {library for library in binary.needed if not library.startswith("ld-linux")}
        found.append((libraries, {symbol for symbol in binary.undefined if OF_FRAMEWORKS.match(symbol)}))
    assert found[0] == found[1]
    assert found[0][1]


def test_a_launcher_changes_no_byte_and_the_systems_share_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ccache") is None:
        pytest.skip("there is no ccache")
    plain = asked(STABLE, "bare", tmp_path)
    build_variant(plain, quiet)
    before = module(plain).read_bytes()
    native = request(plain.kernel_dir, STABLE.replace("aarch64", "x86_64"), tmp_path, cache=plain.options.cache)
    assert build_variant(native, quiet).objects.found == 0  # type: ignore[union-attr]
    monkeypatch.setenv("KCI_COMPILER_CACHE", "ccache")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    for _ in range(2):
        cached = with_changes(plain, fresh=True)
        build_variant(cached, quiet)
        assert module(cached).read_bytes() == before


def test_what_is_for_this_processor_alone_is_told(tmp_path: Path) -> None:
    what = asked(STABLE, "bare", tmp_path)
    toml = what.kernel_dir / "build.toml"
    toml.write_text(toml.read_text().replace('backend = "cpu"\n', 'backend = "cpu"\ncxx-flags = ["-mavx2"]\n'))
    flagged = request(what.kernel_dir, STABLE, tmp_path, cache=what.options.cache)
    with pytest.raises(BuildFailedError) as caught:
        build_variant(flagged, quiet)
    assert caught.value.hint.startswith("-mavx2 is no flag of a compiler for aarch64-linux")
    with pytest.raises(MissingToolError, match="this Python's is for x86_64-linux"):
        build_variant(with_changes(what, isolation=False), quiet)


@pytest.mark.parametrize(("name", "kernel"), [(TVM_FFI, "relu-tvm-ffi"), (TVM_FFI_CUDA, "new-kernel")])
def test_the_examples_run_as_libraries_of_that_system(name: str, kernel: str, tmp_path: Path) -> None:
    """qemu's loader opens it: every symbol of C and C++ is there, in the libraries of the cross compiler.

    CUDA's runtime is in the library, so one with a kernel for GPUs opens as well.
    """
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("there is no qemu")
    what = asked(name, kernel, tmp_path)
    build_variant(what, quiet)
    (tmp_path / "loads.c").write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char **given) {\n"
        "  if (dlopen(given[1], RTLD_NOW)) return 0;\n  puts(dlerror());\n  return 1;\n}\n"
    )
    subprocess.run(["aarch64-linux-gnu-gcc", "loads.c", "-ldl", "-o", "loads"], cwd=tmp_path, check=True)
    ffi = next((what.options.cache / "envs").glob("tvm-ffi-*aarch64*/lib/python*/site-packages/tvm_ffi/lib"))
    done = subprocess.run(
        [qemu, "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={ffi}", "loads", str(module(what))],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_verify_has_nothing_against_it(tmp_path: Path) -> None:
    what = asked(FULL, "plus-one", tmp_path)
    build_variant(what, quiet)
    rules = {item.rule for item in verify(what.output) if item.severity == "error"}
    assert not [rule for rule in rules if rule.startswith(("KCI74", "KCI75", "KCI76"))]
