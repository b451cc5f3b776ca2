"""Native builds with real compilers and a real torch, and the results in the real loader, each in a
fresh process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from buildkit import (
    CPU,
    STABLE_CPU,
    STABLE_CUDA,
    built_once,
    copy_kernel,
    quiet,
    request,
    runtime,
    warm_cache,
    with_changes,
)
from conftest import failure
from kci.builders import BuildResult, build_variant
from kci.builders.request import Request
from kci.builders.toolchains.cuda import find_toolkit
from kci.builders.toolchains.environment import kci_environment
from kci.errors import BuildFailedError
from kci.utils.cache import default_cache

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the variants of these tests are for x86_64"
    ),
]


def asked(name: str, kernel: Path, tmp_path: Path) -> Request:
    return request(kernel, name, tmp_path, cache=warm_cache(tmp_path))


def built(what: Request) -> BuildResult:
    return build_variant(what, quiet)


def module(what: Request) -> Path:
    return what.output / f"{what.kernel_id}.abi3.so"


def loaded(what: Request, tmp_path: Path, code: str) -> list[object]:
    """Load a variant through the loader in a new process; `code` sees it as `kernel` and fills the
    list `out`.
    """
    tree = tmp_path / "tree"
    variant = Path(shutil.copytree(what.output, tree / what.variant.name))
    metadata = {
        "name": what.build.name,
        "id": what.kernel_id,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": what.variant.backend},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata))
    program = (
        "import json, sys, torch\nfrom pathlib import Path\nfrom kernels import get_local_kernel\n"
        f"kernel = get_local_kernel(Path(sys.argv[1]), backend='cpu')\nout = []\n{code}\n"
        "print(json.dumps(out))"
    )
    done = subprocess.run(
        [str(runtime()), "-c", program, str(tree)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, list)
    return result


class Binary:
    """What the tests look at in a shared library."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as handle:
            elf = ELFFile(handle)
            dynamic = elf.get_section_by_name(".dynamic")
            assert isinstance(dynamic, DynamicSection)
            tags = [(tag.entry.d_tag, tag) for tag in dynamic.iter_tags()]
            self.needed = [tag.needed for kind, tag in tags if kind == "DT_NEEDED"]
            self.tags = {kind for kind, _ in tags}
            symbols = elf.get_section_by_name(".dynsym")
            assert isinstance(symbols, SymbolTableSection)
            self.undefined = [
                item.name for item in symbols.iter_symbols() if item.entry.st_shndx == "SHN_UNDEF"
            ]
            self.defined = [
                item.name for item in symbols.iter_symbols() if item.entry.st_shndx != "SHN_UNDEF"
            ]
            versions = elf.get_section_by_name(".gnu.version_r")
            assert isinstance(versions, GNUVerNeedSection)
            self.versions = [
                entry.name for _, entries in versions.iter_versions() for entry in entries
            ]
            self.sections = {section.name for section in elf.iter_sections()}

    def newest(self, prefix: str) -> tuple[int, ...]:
        """The newest version of a library that it needs; 0 where it needs none."""
        found = [
            name.partition("_")[2]
            for name in self.versions
            if re.fullmatch(rf"{prefix}_[0-9.]+", name)
        ]
        return max((tuple(map(int, version.split("."))) for version in found), default=(0,))


def check_manylinux(binary: Binary) -> None:
    """The caps of manylinux_2_28 (docs/format.md#system-libraries)."""
    assert binary.newest("GLIBC") <= (2, 28)
    assert binary.newest("GLIBCXX") <= (3, 4, 24)
    assert binary.newest("CXXABI") <= (1, 3, 11)
    assert not {"DT_RPATH", "DT_RUNPATH"} & binary.tags


@pytest.fixture(scope="session")
def full(shared_by_workers: Path) -> Request:
    """A variant for the full ABI, as it was built."""
    return built_once(shared_by_workers, "plus-one", CPU)


@pytest.fixture(scope="session")
def stable(shared_by_workers: Path) -> Request:
    """A variant for the stable ABI, as it was built."""
    return built_once(shared_by_workers, "twice", STABLE_CPU)


def test_a_full_build_loads_and_computes(full: Request, tmp_path: Path) -> None:
    files = sorted(
        path.relative_to(full.output).as_posix()
        for path in full.output.rglob("*")
        if path.is_file()
    )
    assert files == [
        "__init__.py",
        "_ops.py",
        module(full).name,
        "deep/__init__.py",
        "deep/steps.json",
    ]
    code = """
x = torch.randn(4, 5)
out.append(bool(torch.equal(kernel.plus_one(x), x + 1)))
try:
    kernel.plus_one(torch.zeros(1, 2, 3))
except RuntimeError as error:
    out.append(str(error).splitlines()[0])
out.append(torch.compile(kernel.plus_one, backend="eager", fullgraph=True)(x).shape == x.shape)
out.append(kernel.STEPS)
"""
    assert loaded(full, tmp_path, code) == [
        True,
        "plus_one: too many dimensions: 1 1.5 2 3 3 4.5 ",
        True,
        [1],
    ]


def test_a_full_build_is_fit_for_older_systems(full: Request) -> None:
    binary = Binary(module(full))
    check_manylinux(binary)
    assert f"PyInit_{full.kernel_id}" in binary.defined
    torch, system = (
        {"libtorch_cpu.so", "libc10.so", "libtorch.so"},
        {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6"},
    )
    assert set(binary.needed) <= torch | system
    # The reference's ABI check reads .symtab, so it must be there; nothing else of a debugger's
    # should be.
    assert ".symtab" in binary.sections
    assert not any(name.startswith(".debug") for name in binary.sections)
    assert module(full).stat().st_mode & 0o777 == 0o755


def test_a_stable_abi_build_loads_and_imports_only_shims(stable: Request, tmp_path: Path) -> None:
    binary = Binary(module(stable))
    check_manylinux(binary)
    assert "libtorch_cpu.so" in binary.needed
    assert not {"libtorch.so", "libc10.so"} & set(binary.needed)
    assert [name for name in binary.undefined if re.match(r"_ZNK?(2at|3c10|5torch)", name)] == []
    assert any(name.startswith(("aoti_torch_", "torch_")) for name in binary.undefined)
    code = "x = torch.randn(7)\nout.append(bool(torch.equal(kernel.twice(x), 2 * x)))"
    assert loaded(stable, tmp_path, code) == [True]


def test_a_stable_abi_cuda_build_has_its_archs_and_names_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an odd place, and where the linker is told of a folder that no other machine has."""
    monkeypatch.setenv("LD_RUN_PATH", "/of/this/machine")
    what = asked(STABLE_CUDA, copy_kernel("twice", tmp_path / "b c$d,e&h"), tmp_path)
    made = built(what)
    assert (made.builder, made.archs, made.sealed) == ("native", ("8.0", "9.0+PTX"), False)
    binary = Binary(module(what))
    check_manylinux(binary)
    assert str(tmp_path).encode() not in module(what).read_bytes()
    assert {"libtorch_cuda.so", "libcudart.so.13"} <= set(binary.needed)
    assert "aoti_torch_get_current_cuda_stream" in binary.undefined
    assert ".nv_fatbin" in binary.sections
    # The stub has no place in the variant.
    assert [path.name for path in what.output.glob("*.so")] == [module(what).name]
    cuobjdump = shutil.which("cuobjdump") or str(
        find_toolkit("13.0", what.options.cache, quiet).root / "bin/cuobjdump"
    )
    if not Path(cuobjdump).exists():
        return  # the fat binary is taken apart by the tests of verify
    listed = {
        kind: subprocess.run(
            [cuobjdump, f"--list-{kind}", str(module(what))],
            capture_output=True,
            text=True,
            check=True,
        )
        for kind in ("elf", "ptx")
    }
    assert sorted(set(re.findall(r"sm_\d+", listed["elf"].stdout))) == ["sm_80", "sm_90"]
    assert sorted(set(re.findall(r"sm_\d+", listed["ptx"].stdout))) == ["sm_90"]


@pytest.mark.usefixtures("compiles_anew")
def test_the_place_of_the_sources_does_not_change_the_binary(
    tmp_path: Path, stable: Request
) -> None:
    # Torch's headers name themselves in errors, and shells and build files trip over some signs.
    place = tmp_path / "b c$d,e'f:g&h"
    other = asked(stable.variant.name, copy_kernel(stable.kernel_dir.name, place), place)
    built(other)
    binary = module(other).read_bytes()
    assert binary == module(stable).read_bytes()
    for folder in (tmp_path, stable.kernel_dir.parent):
        assert str(folder).encode() not in binary


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
    assert "undeclared_thing" in message
    assert "-c kernel/csrc/bare.cpp" in message
    assert f"{source}" in message, "the author's own path, and not the one in the work directory"
    (found,) = caught.diagnostics
    assert (found.rule, found.path, found.line) == (
        "KCI513",
        str(source),
        len(good.splitlines()) + 2,
    )
    assert "g++" in message
    assert f"building {STABLE_CPU} failed" in message
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
    build_variant(with_changes(what, isolation=False), quiet)
    assert module(what).is_file()
    assert not (what.options.cache / "envs").exists()


@pytest.mark.network
def test_nvcc_and_cutlass_come_from_wheels(tmp_path: Path) -> None:
    """Whatever toolkit this machine has, 13.2 is one that kci can install."""
    kernel = copy_kernel("bare", tmp_path)
    config = (kernel / "build.toml").read_text()
    head, cuda, tail = config.partition('backend = "cuda"\ndepends = ["torch"')
    assert cuda
    (kernel / "build.toml").write_text(f'{head}{cuda}, "cutlass_3_8"{tail}')
    source = kernel / "csrc/bare.cu"
    check = (
        "#include <cutlass/version.h>\nstatic_assert(CUTLASS_MAJOR == 3 && CUTLASS_MINOR == 8);\n"
    )
    source.write_text(f"{check}{source.read_text()}static_assert(CUDART_VERSION == 13020);\n")
    what = asked("torch-stable-abi211-cu132-x86_64-linux", kernel, tmp_path)
    assert built(what).archs == ("9.0",)
    binary = Binary(module(what))
    assert "libcudart.so.13" in binary.needed
    assert binary.newest("GLIBC") <= (2, 28)
