"""A fingerprint moves with what decides a variant's bytes alone; equal ones are skipped."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import msgspec
import pytest

import planning
from act.harness import commit_all
from cli.runner import kci
from conftest import ROOT, noarch_kernel
from kci.config.model import (
    BackendGeneral,
    Build,
    CudaComponent,
    CudaGeneral,
    General,
    RocmComponent,
    Torch,
    TorchNoarch,
    TpuGeneral,
    TvmFfi,
    XpuComponent,
)
from kci.config.reader import Kernel, read_kernel
from kci.config.values import Version
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import default_runners
from kci.matrix.selection import select
from kci.matrix.variants import Kind, Variant
from kci.plan import fingerprint as module
from kci.plan.fingerprint import (
    Fingerprints,
    builder,
    configuration,
    packaging_facts,
    unchanged_variants,
)
from kci.plan.legs import toolchain_of
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import open_workspace
from planning import Change, append, git, write

REPO = Path(__file__).parent / "affected" / "repo"
IMAGE = "docker.io/some/image:1"
CUDA13 = "torch213-cxx11-cu130-x86_64-linux"
CUDA12 = "torch213-cxx11-cu126-x86_64-linux"
CPU = "torch213-cxx11-cpu-x86_64-linux"
ROCM = "torch213-cxx11-rocm72-x86_64-linux"
ALL = {CUDA13, CUDA12, CPU, ROCM}


@pytest.fixture
def norm(tmp_path: Path, no_git_environment: None) -> Path:
    return Path(shutil.copytree(REPO / "norm", tmp_path / "norm"))


def prints(directory: Path, catalog: Catalog, image: str = IMAGE) -> dict[str, str]:
    kernel = read_kernel(directory)
    files = Fingerprints(kernel)
    return {item.name: files.fingerprint(item, image) for item in select(kernel, catalog).variants}


def moved(directory: Path, catalog: Catalog, change: Change) -> set[str]:
    """Which of four variants get another fingerprint by a change."""
    before = prints(directory, catalog)
    change(directory)
    after = prints(directory, catalog)
    return {name for name in ALL if before[name] != after[name]}


replace = partial(planning.replace, "build.toml")
ON_CUDA = '[kernel.on_cuda]\nbackend = "cuda"'
ON_CPU = '[kernel.on_cpu]\nbackend = "cpu"'
ON_ROCM = '[kernel.on_rocm]\nbackend = "rocm"'
TORCH = '[torch]\nsrc = ["torch-ext/binding.cpp", "torch-ext/binding.h"]'


MOVES: dict[str, tuple[Change, set[str]]] = {
    # sources
    "source of two backends": (append("csrc/cuda/norm.cu"), {CUDA12, CUDA13, ROCM}),
    "source of a component that needs CUDA 13": (append("csrc/cuda/hopper.cu"), {CUDA13}),
    "CPU source": (append("csrc/cpu/norm.cpp"), {CPU}),
    "header, which every component sees": (append("csrc/cpu/util.h"), ALL),
    "header of several components": (append("csrc/shared.h"), ALL),
    "listed file removed": (lambda root: (root / "csrc/cuda/hopper.cu").unlink(), {CUDA13}),
    "binding": (append("torch-ext/binding.cpp"), ALL),
    "Python package": (append("torch-ext/norm/__init__.py", "x = 1\n"), ALL),
    "module of the package": (write("torch-ext/norm/sub/deep.py"), ALL),
    # build.toml
    "name": (replace('name = "norm"', 'name = "norm-two"'), ALL),
    "version": (replace("version = 1", "version = 2"), ALL),
    "license": (replace('"MIT"', '"BSD"'), ALL),
    "upstream": (replace("edition = 5", 'edition = 5\nupstream = "https://x.org/y"'), ALL),
    "source": (replace("edition = 5", 'edition = 5\nsource = "https://x.org/y"'), ALL),
    "python-depends": (replace("edition = 5", 'edition = 5\npython-depends = ["einops"]'), ALL),
    "kernel-depends": (
        replace("edition = 5", 'edition = 5\nkernel-depends = [{ repo-id = "a/b", version = 1 }]'),
        ALL),
    "python-depends of CUDA": (
        replace('minver = "12.6"', 'minver = "12.6"\npython-depends = ["nvidia-cutlass-dsl"]'),
        {CUDA12, CUDA13}),
    "kernel-depends of CUDA": (
        replace('minver = "12.6"', 'kernel-depends = [{ repo-id = "a/b", version = 1 }]'),
        {CUDA12, CUDA13}),
    "pyext": (replace(TORCH, TORCH + '\npyext = ["py", "json"]'), ALL),
    "flags of the binding": (replace(TORCH, TORCH + '\ncxx-flags = ["-O1"]'), ALL),
    "include of the binding": (replace(TORCH + '\ninclude = ["."]', TORCH), ALL),
    "torch.src": (replace('"torch-ext/binding.h"]', '"torch-ext/binding.h", "csrc/stray.h"]'), ALL),
    "cxx-flags": (replace(ON_CPU, ON_CPU + '\ncxx-flags = ["-O1"]'), {CPU}),
    "cuda-flags": (replace(ON_CUDA, ON_CUDA + '\ncuda-flags = ["-O1"]'), {CUDA12, CUDA13}),
    "hip-flags": (replace(ON_ROCM, ON_ROCM + '\nhip-flags = ["-O1"]'), {ROCM}),
    "rocm-archs": (replace(ON_ROCM, ON_ROCM + '\nrocm-archs = ["gfx942"]'), {ROCM}),
    "capabilities": (replace(ON_CUDA, ON_CUDA + '\ncuda-capabilities = ["9.0"]'), {CUDA12, CUDA13}),
    "depends": (
        replace('backend = "cpu"\ndepends = ["torch"]', 'backend = "cpu"\ndepends = []'), {CPU}),
    "include": (replace('include = ["csrc"]', 'include = ["."]'), {CUDA12, CUDA13}),
    "cuda-minver": (replace('cuda-minver = "13.0"', 'cuda-minver = "12.0"'), {CUDA12}),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), MOVES.values(), ids=MOVES)
def test_it_moves_with_what_decides_the_bytes(
    norm: Path, catalog: Catalog, change: Change, expected: set[str]
) -> None:
    assert moved(norm, catalog, change) == expected


STAYS: dict[str, Change] = {
    "README": write("README.md", "new"),
    "card": write("CARD.md"),
    "tests": append("tests/test_norm.py", "\n"),
    "benchmarks": write("benchmarks/benchmark.py"),
    "what was built": write("build/torch-cpu/metadata.json"),
    "bytecode": write("torch-ext/norm/__pycache__/x.cpython-311.pyc"),
    "hidden file": write(".gitignore"),
    "file that nobody lists": append("csrc/stray.h"),
    "new file that nobody lists": write("csrc/new.h"),
    "file removed that nobody lists": lambda root: (root / "csrc/stray.h").unlink(),
    "data file of the package that is not installed": write("torch-ext/norm/config.json"),
    "type stub, which is not installed": write("torch-ext/norm/__init__.pyi"),
    "flake": write("flake.lock"),
    "pyproject.toml": write("pyproject.toml"),
    "virtual environment": write("venv/lib/python3/x.py"),
    "backup of an editor": write("csrc/cuda/norm.cu~"),
    "comment": append("build.toml", "\n# a comment\n"),
    "label of a component": replace("[kernel.on_rocm]", "[kernel.for_amd]"),
    "place on the Hub":
        replace("[general.cuda]", '[general.hub]\nrepo-id = "a/b"\n\n[general.cuda]'),
    "bounds": replace('minver = "12.6"', 'minver = "12.0"'),
    "time": lambda root: os.utime(root / "csrc/cuda/norm.cu", (0, 0)),
    "mode": lambda root: (root / "csrc/cuda/norm.cu").chmod(0o755),
}  # fmt: skip


@pytest.mark.parametrize("change", STAYS.values(), ids=STAYS)
def test_it_stays_with_everything_else(norm: Path, catalog: Catalog, change: Change) -> None:
    assert moved(norm, catalog, change) == set()


def test_every_key_of_build_toml_is_known_to_decide_or_not() -> None:
    """A new key of the format has to be thought about here: does it change what is in a variant?"""
    selection_only = {
        General: {"backends", "edition", "hub"},
        CudaGeneral: {"minver", "maxver"},
        Torch: {"minver", "maxver"},
        CudaComponent: {"cuda_minver"},
    }
    decides = {
        General: {"name", "version", "license", "upstream", "source", "python_depends",
            "kernel_depends",
                  "cuda", "xpu", "neuron", "tpu"},
        CudaGeneral: {"python_depends", "kernel_depends"},
        BackendGeneral: {"python_depends", "kernel_depends"},
        TpuGeneral: {"python_depends"},
        Torch: {"src", "pyext", "include", "cxx_flags", "stable_abi"},
        TorchNoarch: {"pyext", "cuda_capabilities", "rocm_archs"},
        TvmFfi: {"src", "pyext", "include", "cxx_flags"},
        CudaComponent: {"depends", "src", "include", "cxx_flags", "cuda_capabilities",
            "cuda_flags"},
        RocmComponent: {"depends", "src", "include", "cxx_flags", "rocm_archs", "hip_flags"},
        XpuComponent: {"depends", "src", "include", "cxx_flags", "sycl_flags"},
        Build: {"general", "torch", "torch_noarch", "tvm_ffi", "kernel"},
    }  # fmt: skip
    for table, keys in decides.items():
        assert set(table.__struct_fields__) == keys | selection_only.get(table, set()), table


def sample(catalog: Catalog) -> tuple[Kernel, Variant]:
    kernel = read_kernel(REPO / "norm")
    return kernel, next(item for item in select(kernel, catalog).variants if item.name == CUDA13)


@pytest.mark.parametrize(
    "change",
    [
        {"torch": Version.parse("2.13.1")}, {"compute": Version.parse("13.0.1")},
        {"archs": ("9.0",)}, {"stable_abi": Version.parse("2.11")},
        {"tvm_ffi": Version.parse("0.1")}, {"system": "aarch64-linux"}, {"backend": "rocm"},
        {"kind": "stable-abi"}, {"name": "torch214-cxx11-cu130-x86_64-linux"},
    ],
)  # fmt: skip
def test_it_moves_with_the_row_the_image_and_the_builder(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    kernel, variant = sample(catalog)
    prints = Fingerprints(kernel)
    other = msgspec.structs.replace(variant, **change)
    cases = ((variant, IMAGE), (other, IMAGE), (variant, "docker.io/some/image:2"), (variant, ""))
    found = {prints.fingerprint(*case) for case in cases}
    monkeypatch.setattr(module, "builder", lambda: "another")
    assert len(found | {prints.fingerprint(variant, IMAGE)}) == 5


def test_an_image_that_a_variable_names_counts(catalog: Catalog) -> None:
    """And the steps that a leg has before its build, and Nix; a package of Python only is made in
    no image.
    """
    _, variant = sample(catalog)
    runners = default_runners()
    usual = toolchain_of(variant, runners, container=True)
    images = ("none", "some/image:1", "some/image:2")
    assert len({usual, *(toolchain_of(variant, runners, name) for name in images)}) == 4
    noarch = msgspec.structs.replace(variant, kind=Kind.NOARCH)
    assert toolchain_of(noarch, runners, container="some/image:1") == ""


def test_the_builder_is_known_by_its_version_and_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(
        ROOT / "src" / "kci", tmp_path / "kci", ignore=shutil.ignore_patterns("__pycache__")
    )
    usual = builder()
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "kci")
    again = builder.__wrapped__
    assert again() == usual, "where kci is installed does not matter"
    (tmp_path / "kci" / "workflows" / "render.py").write_text("# another room\n")
    assert again() == usual
    builders = ("builders/process/run.py", "builders/native/builder.py")
    for part in (*builders, "config/data/backends.toml", "tree/metadata.py", "run/build_leg.py"):
        append(part, "\n# changed\n")(tmp_path / "kci")
        assert again() != usual
        usual = again()
    data = next((tmp_path / "kci" / "builders" / "toolchains" / "data").iterdir())
    append(data.name, "\n# changed\n")(data.parent)
    assert again() != usual


@pytest.mark.parametrize(("since", "built"), [(None, ("7.0", "8.0")), ("2026-09-17", ("8.0",))])
def test_archs_are_those_of_the_edition_that_made_the_variant(
    norm: Path, catalog: Catalog, since: str | None, built: tuple[str, ...]
) -> None:
    replace(ON_CUDA, ON_CUDA + '\ncuda-capabilities = ["7.0", "8.0", "10.1"]')(norm)
    made = msgspec.structs.replace(sample(catalog)[1], archs_since=since)
    (first, *_) = configuration(read_kernel(norm).build, made)["components"]
    assert first["built for"] == built


def test_a_package_of_python_only_carries_all_files_whatever_pyext_says(catalog: Catalog) -> None:
    _, variant = sample(catalog)
    lists = ('["py"]', '["py", "json"]')
    one, other = (noarch_kernel(["cuda"], f"pyext = {listed}").build for listed in lists)
    noarch = msgspec.structs.replace(variant, kind=Kind.NOARCH)
    assert packaging_facts(one, noarch) == packaging_facts(other, noarch)
    assert packaging_facts(one, variant) != packaging_facts(other, variant)


def test_links_and_odd_files_stop_nothing(norm: Path, catalog: Catalog) -> None:
    (norm / "csrc/out.h").symlink_to("/etc/hostname")
    (norm / "csrc/broken.h").symlink_to("nowhere")
    (norm / "csrc/endless").symlink_to("endless")
    (norm / "csrc/dir").symlink_to("cuda")
    os.mkfifo(norm / "csrc/pipe")
    names = ("out.h", "broken.h", "endless/x.h", "dir", "pipe")
    listed = ", ".join(f'"csrc/{name}"' for name in names)
    replace('"torch-ext/binding.h"]', f'"torch-ext/binding.h", {listed}]')(norm)
    assert prints(norm, catalog)


@pytest.mark.parametrize("content", ["#define V 1", None], ids=["equal files", "no files"])
def test_a_link_s_target_is_part_of_it(norm: Path, catalog: Catalog, content: str | None) -> None:
    """What is there counts already, and does not change."""
    for name in ("one.h", "two.h") if content is not None else ():
        (norm / "csrc" / name).write_text(content or "")
    (norm / "csrc/link.h").symlink_to("one.h")
    listed = '"torch-ext/binding.h", "csrc/one.h", "csrc/two.h", "csrc/link.h"]'
    replace('"torch-ext/binding.h"]', listed)(norm)

    def retarget(root: Path) -> None:
        (root / "csrc/link.h").unlink()
        (root / "csrc/link.h").symlink_to("two.h")

    assert moved(norm, catalog, retarget) == ALL


def test_a_builder_that_may_look_at_any_file_counts_all(norm: Path, catalog: Catalog) -> None:
    variant = next(item for item in select(read_kernel(norm), catalog).variants if item.name == CPU)

    def all_of_it() -> str:
        return Fingerprints(read_kernel(norm)).fingerprint(variant, "nix", everything=True)

    usual = all_of_it()
    append("build.toml", "\n# a comment\n")(norm)
    assert all_of_it() == usual
    write("flake.lock")(norm)
    assert all_of_it() != usual


def test_only_equal_fingerprints_are_skipped() -> None:
    now = {("k", "a"): "1" * 64, ("k", "b"): "2" * 64, ("other", "a"): "1" * 64}
    known = {("k", name): value * 64 for name, value in (("a", "1"), ("b", "3"), ("c", "4"))}
    assert list(unchanged_variants(now, known)) == [("k", "a")]


def test_a_release_builds_what_a_change_touches_and_plans_all(norm: Path) -> None:
    first = plan_run(open_workspace([str(norm)]), PlanRequest(fingerprints=True)).plan
    (kernel,) = first.kernels
    known = {("norm", name): text for name, text in (kernel.fingerprints or {}).items()}
    assert sorted(kernel.planned) == sorted(name for leg in first.legs for name in leg.variants)

    def again() -> tuple[set[str], set[str]]:
        request = PlanRequest(published=known, fingerprints=True)
        plan = plan_run(open_workspace([str(norm)]), request).plan
        assert plan.kernels[0].planned == kernel.planned, "what is skipped is planned all the same"
        for item in plan.skipped:
            assert "published already with the same fingerprint" in item.reason
        built = {name for leg in plan.legs for name in leg.variants}
        return built, {item.variant for item in plan.skipped}

    (norm / "README.md").write_text("# better words")
    assert again() == (set(), {*kernel.planned})
    (norm / "csrc/cuda/hopper.cu").write_text("// faster")
    built, skipped = again()
    assert built
    assert all("-cu13" in name for name in built)
    assert built | skipped == {*kernel.planned}


def test_fingerprints_hold_for_a_commit_only_if_nothing_else_changed(norm: Path) -> None:
    def commit() -> object:
        return json.loads(kci("plan", norm, "--fingerprints", "--format", "json").stdout)["commit"]

    assert commit() is None
    commit_all(norm)
    assert commit() == git(norm, "rev-parse", "HEAD")
    (norm / "csrc/shared.h").write_text("// changed")
    assert commit() is None
