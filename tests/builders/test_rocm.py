"""Which ROCm is taken, what is compiled with which flags, and what hipify is asked for."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path, PurePosixPath

import pytest

from buildkit import Bare, copy_kernel, program, quiet, request, write_tree
from conftest import failure
from kci.builders.dispatch import plan_commands
from kci.builders.native import builder
from kci.builders.native.hipify import Translation, translate, translate_units
from kci.builders.native.units import Unit
from kci.builders.request import Request
from kci.builders.toolchains import rocm
from kci.builders.toolchains.environment import Environment
from kci.builders.toolchains.rocm import Rocm, find_rocm
from kci.errors import BuildFailedError, FindingsError, MissingToolError
from planning import replace

STABLE = "torch-stable-abi211-rocm71-x86_64-linux"
FULL = "torch213-cxx11-rocm72-x86_64-linux"
SYSTEM = "x86_64-linux"


@pytest.fixture(autouse=True)
def opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that stands in for /opt; nothing else of this machine is a ROCm."""
    monkeypatch.setattr(rocm, "OPT", tmp_path / "opt")
    for name in rocm.HOMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "opt"


def install(root: Path, release: str | None = "7.2.1-38") -> Path:
    """What kci looks at in a ROCm; without a release it has no file that says so."""
    write_tree(root, {"include/hip/hip_runtime.h": "", "lib/libamdhip64.so": "", "bin/x": ""})
    program(root / "bin", "hipcc", "echo HIP version: 7.2\n")
    if release is not None:
        write_tree(root, {".info/version": release + "\n"})
    return root.resolve()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A ROCm somewhere."""
    return install(tmp_path / "here")


def found(version: str = "7.2") -> Rocm:
    return find_rocm(version, SYSTEM, quiet)


# --- which ROCm ---


def test_where_it_is_looked_for(bare: Bare, here: Path, opt: Path) -> None:
    """Python packages last, and before them /opt, the PATH and variables."""
    packages = install(bare.place / "site-packages/_rocm_sdk_devel")
    bare.add("rocm-sdk", f'[ "$*" = "path --root" ] && echo {packages}\n')
    assert found().root == packages
    assert install(opt / "rocm", "7.2.9") == found().root
    for release in ("7.20.0", "7.1.1", "7.2.0"):
        install(opt / f"rocm-{release}", release)
    assert [found(version).release for version in ("7.2", "7.1", "7.20")] == [
        "7.2.0", "7.1.1", "7.20.0",
    ]  # fmt: skip
    # a script is asked, and a link leads there
    asked = install(bare.place / "asked")
    bare.add("hipcc", "exit 1\n")
    bare.add("hipconfig", f'[ "$1" = --rocmpath ] && echo {asked}\n')
    assert found().root == asked
    (bare.folder / "hipcc").unlink()
    (bare.folder / "hipcc").symlink_to(here / "bin/hipcc")
    assert found().root == here
    named = install(bare.place / "named")
    for place in (
        {"HIP_PATH": named}, {"HIP_PATH": named / "hip"}, {"ROCM_HOME": named}, {"ROCM_PATH": named}
    ):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in place.items():
                patch.setenv(name, str(value))
            assert found() == Rocm("7.2", "7.2.1", named)


def test_one_that_does_not_say_its_version_is_asked(bare: Bare) -> None:
    root = install(bare.place / "here", release=None)
    bare.set(ROCM_PATH=root)
    failure(MissingToolError, "", found)
    program(root / "bin", "hipconfig", '[ "$1" = --version ] && echo 7.2.26015-fc0010cf6a\n')
    assert found().release == "7.2.26015"


@pytest.mark.parametrize("missing", ["bin/hipcc", "include/hip/hip_runtime.h"])
def test_half_an_installation_is_none(bare: Bare, here: Path, missing: str) -> None:
    bare.set(ROCM_PATH=here)
    (here / missing).unlink()
    failure(MissingToolError, "", found)


def test_another_version_is_named_and_so_is_the_image(bare: Bare) -> None:
    root = install(bare.place / "here", "7.1.0")
    bare.set(ROCM_PATH=root)
    said: list[str] = []
    says = r"no hipcc of ROCm 7\.2 on this machine, only 7\.1\.0 at "
    caught = failure(MissingToolError, says, find_rocm, "7.2", SYSTEM, said.append)
    assert said == [f"{root} is ROCm 7.1.0, not 7.2: not used"]
    assert "docker.io/pytorch/manylinux2_28-builder:rocm7.2 (--container auto)" in caught.hint
    assert caught.exit_code == 3


def test_a_missing_runtime_library_is_named(here: Path) -> None:
    made = Rocm("7.2", "7.2.1", here)
    assert made.library_dir == here / "lib"
    (here / "lib").rename(here / "lib64")
    assert made.library_dir == here / "lib64"
    (here / "lib64/libamdhip64.so").unlink()
    failure(MissingToolError, r"libamdhip64\.so is missing", lambda: made.library_dir)


# --- what is translated ---


def unit(entry: str, *archs: str) -> Unit:
    include = (PurePosixPath("inc"),)
    return Unit(PurePosixPath(entry), entry, f"obj/{entry}.o", "HIP", include, (), archs)


def test_a_source_whose_folder_changes_its_name_still_sees_the_old_folder() -> None:
    (moved, stayed), _ = translate_units(
        [unit("csrc/cuda/a.cu", "gfx90a"), unit("csrc/a.cu", "gfx90a")]
    )
    assert moved.include == (PurePosixPath("inc"), PurePosixPath("csrc/cuda"))
    assert stayed.include == (PurePosixPath("inc"),)


@pytest.mark.rule("KCI509", triggers=True)
@pytest.mark.parametrize("other", ["csrc/hip/a.cu", "csrc/hip/a.hip"])
@pytest.mark.parametrize("first", [True, False])
def test_two_sources_with_one_translation_are_refused(other: str, first: bool) -> None:
    units = [unit("csrc/cuda/a.cu", "gfx90a"), unit(other, "gfx90a")]
    says = r"are both 'csrc/hip/a\.hip'"
    caught = failure(FindingsError, says, translate_units, units if first else units[::-1])
    assert caught.diagnostics[0].rule == "KCI509"


@pytest.mark.rule("KCI509", triggers=False)
def test_one_source_in_two_components_is_translated_once() -> None:
    units, names = translate_units([unit("a.cu", "gfx90a"), unit("a.cu", "gfx942")])
    assert names == {"a.cu": "a.hip"}
    assert [made.archs for made in units] == [("gfx90a",), ("gfx942",)]


# --- a hipify that is not torch's: what it reports, and how it fails ---

HIPIFY = """
class Result:
    hipified_path = None


def hipify(project_directory, extra_files=(), **rest):
    {body}
    return {{name: Result() for name in extra_files}}
"""


def translation(tmp_path: Path, body: str) -> Translation:
    hipify = {"__init__.py": "", "hipify_python.py": HIPIFY.format(body=body)}
    write_tree(tmp_path / "torch/utils/hipify", hipify)
    write_tree(tmp_path / "work/kernel", {"a.cu": "int a;\n"})
    environment = Environment(Path(sys.executable), tmp_path / "torch", Path("ninja"), None)
    return Translation(tmp_path / "work", environment, {"a.cu": "a.hip"}, (), torch_headers=False)


def test_unsupported_calls_stop_the_build_and_are_listed(tmp_path: Path) -> None:
    body = 'print("Total number of unsupported CUDA function calls: 2\\ncudaB, cudaA\\n")'
    says, made = r"calls that HIP does not have: cudaA, cudaB$", translation(tmp_path, body)
    assert "USE_ROCM" in failure(BuildFailedError, says, translate, made, quiet).hint
    assert not (tmp_path / "work/hip").exists()


@pytest.mark.parametrize("top", [1, 2, 0])
def test_a_translation_has_the_name_and_the_lines_of_its_source(tmp_path: Path, top: int) -> None:
    """hipify puts a comment on top, and for code for devices an include."""
    text = f"'// top\\n' * {top} + 'int hip;\\n'"
    write = f"from pathlib import Path; Path(extra_files[0] + '.out').write_text({text})"
    done = "Result.hipified_path = extra_files[0] + '.out'"
    translate(translation(tmp_path, f"{write}\n    {done}"), quiet)
    made = (tmp_path / "work/hip/a.hip").read_text()
    assert made == "// top\n" * top + '#line 1 "hip/a.cu"\nint hip;\n'


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("no kernel end found", "<<<...>>>"),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9", "UTF-8"),
        ("OSError: [Errno 28] No space left on device", "free space"),
        ("OSError: [Errno 122] Disk quota exceeded", "free space"),
        ("PermissionError: [Errno 13] Permission denied", ""),
    ],
)
def test_a_hint_is_about_what_hipify_said(tmp_path: Path, said: str, hint: str) -> None:
    made = translation(tmp_path, f"raise SystemExit({said!r})")
    told = failure(BuildFailedError, "hipify failed", translate, made, quiet).hint
    assert hint in told
    assert bool(hint) == bool(told)


def test_a_kernel_cannot_bring_modules_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = translation(tmp_path, "pass")
    bad = 'raise SystemExit("this must not run")\n'
    write_tree(made.work / "kernel", {"json.py": bad, "re.py": bad, "hipify/__init__.py": bad})
    monkeypatch.chdir(made.work / "kernel")
    monkeypatch.setenv("PYTHONPATH", str(made.work / "kernel"))
    translate(made, quiet)
    assert (tmp_path / "work/hip/a.hip").exists()


def test_what_has_gone_from_the_kernel_goes_from_the_copy(tmp_path: Path) -> None:
    made = translation(tmp_path, "pass")
    write_tree(made.work / "kernel", {"old/deep/x.h": "", "y/z.h": "", "same.h": ""})
    translate(made, quiet)
    copy = tmp_path / "work/hip"
    kept = (copy / "same.h").stat().st_mtime_ns
    shutil.rmtree(made.work / "kernel" / "old")
    shutil.rmtree(made.work / "kernel/y")
    (made.work / "kernel/y").write_text("now a file\n")
    translate(made, quiet)
    assert sorted(path.name for path in copy.rglob("*")) == ["a.cu", "a.hip", "same.h", "y"]
    assert (copy / "y").read_text() == "now a file\n"
    assert (copy / "same.h").stat().st_mtime_ns == kept
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == [
        "hip", "hipify.json", "kernel", "torch-hip",
    ]  # fmt: skip


# --- the whole plan ---


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.setenv("ROCM_PATH", str(install(tmp_path / "other", "6.4.0")))
    monkeypatch.setenv("HIP_PATH", str(install(tmp_path / "rocm", "7.1.1")))
    return request(copy_kernel("halve", tmp_path), STABLE, tmp_path)


def test_each_source_is_compiled_for_the_archs_and_with_the_flags_of_its_component(
    asked: Request,
) -> None:
    """By the ROCm that was chosen, whatever variables name."""
    recipe = builder.plan(asked, quiet)
    commands = {step.label: step.command for step in recipe.steps}
    arch = "--offload-arch="
    archs = {
        label: [word.removeprefix(arch) for word in command if word.startswith(arch)]
        for label, command in commands.items()
    }
    assert archs["hipcc csrc/cuda/halve.cu"] == ["gfx1100", "gfx90a", "gfx942"]
    assert archs["hipcc csrc/double.hip"] == ["gfx942"]
    assert archs["c++ torch-ext/torch_binding.cpp"] == []
    assert recipe.sources.archs == ("gfx1100", "gfx90a", "gfx942")
    assert "-DHALVE_FACTOR=0.5f" in commands["hipcc csrc/cuda/halve.cu"]
    for other, flag in (("hipcc", "-DONLY_FOR_CXX"), ("c++", "-DHALVE_FACTOR=0.5f")):
        assert not any(flag in commands[label] for label in commands if label.startswith(other))
    told, right = builder._compile_environment(recipe.chain), asked.output.parents[1] / "rocm"
    assert {told["ROCM_PATH"], told["HIP_PATH"]} == {str(right.resolve())}
    assert told["HIP_PLATFORM"] == "amd"


def test_a_stable_abi_build_takes_the_cpu_wheel_and_a_full_one_that_of_its_rocm(
    asked: Request, tmp_path: Path
) -> None:
    full = request(asked.kernel_dir, "torch213-cxx11-rocm71-x86_64-linux", tmp_path)
    for what, flavour in ((asked, "cpu"), (full, "rocm7.1")):
        recipe = builder.plan(what, quiet)
        assert recipe.chain.environment.flavour == flavour
        assert recipe.translation is not None
        assert recipe.translation.torch_headers is (what is asked)


def test_a_dry_run_shows_the_translation_and_changes_nothing(
    asked: Request, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    lines = plan_commands(asked)
    assert sorted(tmp_path.rglob("*")) == before
    copy = lines.index("# kci copies the kernel to hip/ and writes hipify.json")
    assert "hipify_script.py" in lines[copy + 1]
    hipcc = [line for line in lines[copy + 2 :] if "/bin/hipcc" in line]
    assert any("-c hip/csrc/hip/halve.hip" in line for line in hipcc)
    assert len(hipcc) == 2


def test_an_arch_list_with_nothing_to_build_is_refused(asked: Request, tmp_path: Path) -> None:
    replace("build.toml", '["gfx942"]', '["gfx940"]')(asked.kernel_dir)
    says = r"kernel\.double lists gfx940, which ROCm 7\.1 does not support"
    failure(FindingsError, says, builder.plan, request(asked.kernel_dir, STABLE, tmp_path), quiet)
