"""Native builds with real compilers and a real torch, and the results in the real loader, each in a
fresh process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from binaries import Binary
from buildkit import (
    CPU,
    STABLE_CPU,
    STABLE_CUDA,
    asked,
    built,
    built_once,
    copy_kernel,
    module,
    output_of,
    quiet,
    request,
    runtime,
    with_changes,
)
from conftest import failure
from kci.builders.request import Request
from kci.builders.toolchains.cuda import find_toolkit
from kci.builders.toolchains.environment import kci_environment
from kci.errors import BuildFailedError
from kci.utils.cache import default_cache
from planning import append, replace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the variants of these tests are for x86_64"
    ),
]


def loaded(whats: Sequence[Request], tmp_path: Path, code: str) -> list[object]:
    """Load variants through the loader in a new process; `code` sees them in `kernels` and fills
    the list `out`.
    """
    trees = []
    for number, what in enumerate(whats):
        trees.append(tmp_path / str(number))
        variant = Path(shutil.copytree(what.output, trees[-1] / what.variant.name))
        metadata = {
            "name": what.build.name, "id": what.kernel_id, "version": 1, "license": "Apache-2.0",
            "python-depends": [], "backend": {"type": what.variant.backend},
        }  # fmt: skip
        (variant / "metadata.json").write_text(json.dumps(metadata))
    program = (
        "import json, sys, torch\nfrom pathlib import Path\nfrom kernels import get_local_kernel\n"
        "kernels = [get_local_kernel(Path(tree), backend='cpu') for tree in sys.argv[1:]]\n"
        f"out = []\n{code}\nprint(json.dumps(out))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    said = output_of(runtime(), "-c", program, *trees, env=environment)
    result = json.loads(said.splitlines()[-1])
    assert isinstance(result, list)
    return result


@pytest.fixture(scope="session")
def full(shared_by_workers: Path) -> Request:
    """A variant for the full ABI, as it was built."""
    return built_once(shared_by_workers, "plus-one", CPU)


@pytest.fixture(scope="session")
def stable(shared_by_workers: Path) -> Request:
    """A variant for the stable ABI, as it was built."""
    return built_once(shared_by_workers, "twice", STABLE_CPU)


def test_builds_load_and_compute(full: Request, stable: Request, tmp_path: Path) -> None:
    listed = (path for path in full.output.rglob("*") if path.is_file())
    own = ["__init__.py", "_ops.py", module(full).name, "deep/__init__.py", "deep/steps.json"]
    assert sorted(path.relative_to(full.output).as_posix() for path in listed) == own
    code = """
kernel, stable = kernels
x = torch.randn(4, 5)
out.append(bool(torch.equal(kernel.plus_one(x), x + 1)))
try:
    kernel.plus_one(torch.zeros(1, 2, 3))
except RuntimeError as error:
    out.append(str(error).splitlines()[0])
out.append(kernel.plus_one(x.to("meta")).shape == x.shape)
out.append(kernel.STEPS)
out.append(bool(torch.equal(stable.twice(x), 2 * x)))
"""
    message = "plus_one: too many dimensions: 1 1.5 2 3 3 4.5 "
    assert loaded([full, stable], tmp_path, code) == [True, message, True, [1], True]


def test_a_full_build_is_fit_for_older_systems(full: Request) -> None:
    binary = Binary(module(full))
    binary.check_manylinux()
    assert f"PyInit_{full.kernel_id}" in binary.defined
    torch = {"libtorch_cpu.so", "libc10.so", "libtorch.so"}
    assert binary.needed <= torch | {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6"}
    # The reference's ABI check reads .symtab, so it must be there; nothing else of a debugger's
    # should be.
    assert ".symtab" in binary.sections
    assert not any(name.startswith(".debug") for name in binary.sections)
    assert module(full).stat().st_mode & 0o777 == 0o755


def test_a_stable_abi_build_imports_only_shims(stable: Request) -> None:
    binary = Binary(module(stable))
    binary.check_manylinux()
    assert "libtorch_cpu.so" in binary.needed
    assert not {"libtorch.so", "libc10.so"} & binary.needed
    assert [name for name in binary.undefined if re.match(r"_ZNK?(2at|3c10|5torch)", name)] == []
    assert any(name.startswith(("aoti_torch_", "torch_")) for name in binary.undefined)


def test_a_stable_abi_cuda_build_has_its_archs_and_names_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an odd place, and where the linker is told of a folder that no other machine has."""
    monkeypatch.setenv("LD_RUN_PATH", "/of/this/machine")
    what = asked(STABLE_CUDA, copy_kernel("twice", tmp_path / "b c$d,e&h"), tmp_path)
    made = built(what)
    assert (made.builder, made.archs, made.sealed) == ("native", ("8.0", "9.0+PTX"), False)
    binary = Binary(module(what))
    binary.check_manylinux()
    assert str(tmp_path).encode() not in module(what).read_bytes()
    assert {"libtorch_cuda.so", "libcudart.so.13"} <= binary.needed
    assert "aoti_torch_get_current_cuda_stream" in binary.undefined
    assert ".nv_fatbin" in binary.sections
    # The stub has no place in the variant.
    assert [path.name for path in what.output.glob("*.so")] == [module(what).name]
    toolkit = find_toolkit("13.0", what.options.cache, quiet)
    cuobjdump = shutil.which("cuobjdump") or str(toolkit.root / "bin/cuobjdump")
    if not Path(cuobjdump).exists():
        return  # the fat binary is taken apart by the tests of verify
    for kind, archs in {"elf": ["sm_80", "sm_90"], "ptx": ["sm_90"]}.items():
        listed = output_of(cuobjdump, f"--list-{kind}", module(what))
        assert sorted(set(re.findall(r"sm_\d+", listed))) == archs


@pytest.mark.usefixtures("compiles_anew", "as_old_as_users_systems")
def test_the_place_of_the_sources_does_not_change_the_binary(tmp_path: Path) -> None:
    # Torch's headers name themselves in errors, and shells and build files trip over some signs.
    check = "int checked(int at) { return c10::HeaderOnlyArrayRef<int>(at).at(at); }\n"
    binaries = []
    for place in (tmp_path / "plain", tmp_path / "b c$d,e'f:g&h"):
        kernel = copy_kernel("bare", place)
        header = "torch/headeronly/util/HeaderOnlyArrayRef.h"
        append("csrc/bare.cpp", f"\n#include <{header}>\n{check}")(kernel)
        what = asked(STABLE_CPU, kernel, place)
        built(what)
        binaries.append(module(what).read_bytes())
    assert binaries[0] == binaries[1]
    assert header.encode() in binaries[0]
    assert str(tmp_path).encode() not in binaries[0]


@pytest.mark.usefixtures("as_old_as_users_systems")
def test_a_failing_compile_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    kernel = copy_kernel("bare", tmp_path)
    source = kernel / "csrc/bare.cpp"
    good = source.read_text()
    source.write_text(good + "\nint broken() { return undeclared_thing; }\n")
    what = asked(STABLE_CPU, kernel, tmp_path)
    caught = failure(BuildFailedError, "", built, what)
    message = caught.message
    assert caught.exit_code == 4
    says = ("undeclared_thing", "-c kernel/csrc/bare.cpp", "g++", f"building {STABLE_CPU} failed")
    assert all(part in message for part in says)
    assert f"{source}" in message, "the author's own path, and not the one in the work directory"
    (found,) = caught.diagnostics
    place = ("KCI513", str(source), len(good.splitlines()) + 2)
    assert (found.rule, found.path, found.line) == place
    assert not what.output.exists()
    assert not what.output.parent.exists()
    source.write_text(good)
    built(what)
    source.write_text("#error no more\n")
    failure(BuildFailedError, "no more", built, what)
    assert module(what).is_file(), "the variant of the build before must stay"


@pytest.mark.usefixtures("as_old_as_users_systems")
def test_no_isolation_uses_the_torch_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The torch of kci's own environment stands for one that this Python can import."""
    runtime()
    environment = kci_environment(default_cache(), "2.13", "cpu")
    monkeypatch.syspath_prepend(str(environment.torch.parent))
    monkeypatch.setenv("PATH", f"{environment.ninja.parent}:{os.environ['PATH']}")
    what = request(copy_kernel("bare", tmp_path), STABLE_CPU, tmp_path)
    built(with_changes(what, isolation=False))
    assert module(what).is_file()
    assert not (what.options.cache / "envs").exists()


@pytest.mark.network
def test_nvcc_and_cutlass_come_from_wheels(tmp_path: Path) -> None:
    """Whatever toolkit this machine has, 13.2 is one that kci can install."""
    kernel = copy_kernel("bare", tmp_path)
    cuda = 'backend = "cuda"\ndepends = ["torch"'
    replace("build.toml", cuda, f'{cuda}, "cutlass_3_8"')(kernel)
    check = (
        "#include <cutlass/version.h>\nstatic_assert(CUTLASS_MAJOR == 3 && CUTLASS_MINOR == 8);\n"
    )
    source = "csrc/bare.cu"
    (kernel / source).write_text(check + (kernel / source).read_text())
    append(source, "static_assert(CUDART_VERSION == 13020);\n")(kernel)
    what = asked("torch-stable-abi211-cu132-x86_64-linux", kernel, tmp_path)
    assert built(what).archs == ("9.0",)
    binary = Binary(module(what))
    assert "libcudart.so.13" in binary.needed
    assert binary.newest("GLIBC") <= (2, 28)
