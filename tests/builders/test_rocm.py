"""Which ROCm is taken, what is compiled with which flags, and what hipify is asked for."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from buildkit import (
    copy_kernel,
    only_these,
    program,
    quiet,
    request,
    toolchain,
    variant,
    write_tree,
)
from kci.builders import plan_commands
from kci.builders.native import builder
from kci.builders.native.command_lines import (
    Toolchain,
    compile_command,
    link_command,
    stub_command,
    work_links,
)
from kci.builders.native.hipify import Translation, translate, translate_units
from kci.builders.native.units import Unit
from kci.builders.request import Request
from kci.builders.toolchains import rocm
from kci.builders.toolchains.environment import Environment, kci_environment
from kci.builders.toolchains.rocm import Rocm, find_rocm
from kci.errors import BuildFailedError, FindingsError, MissingToolError
from wheels import make_wheel, only_wheels

STABLE = "torch-stable-abi211-rocm71-x86_64-linux"
FULL = "torch213-cxx11-rocm72-x86_64-linux"
SYSTEM = "x86_64-linux"


@pytest.fixture(autouse=True)
def no_rocm_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


# --- which ROCm ---


@pytest.mark.parametrize(
    ("variable", "inside"),
    [("ROCM_PATH", ""), ("ROCM_HOME", ""), ("HIP_PATH", ""), ("HIP_PATH", "hip")],
)
def test_a_variable_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, inside: str
) -> None:
    only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "here")
    monkeypatch.setenv(variable, str(root / inside))
    assert find_rocm("7.2", SYSTEM, quiet) == Rocm("7.2", "7.2.1", root)


def test_the_path_names_it_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "here")
    (folder / "hipcc").symlink_to(root / "bin/hipcc")
    assert find_rocm("7.2", SYSTEM, quiet).root == root


def test_a_script_on_the_path_is_asked_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "here")
    program(folder, "hipcc", "exit 1\n")
    program(folder, "hipconfig", f'[ "$1" = --rocmpath ] && echo {root}\n')
    assert find_rocm("7.2", SYSTEM, quiet).root == root


def test_the_versions_of_opt_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_rocm_of_this_machine: Path
) -> None:
    only_these(monkeypatch, tmp_path)
    for name, release in (
        ("rocm-7.20.0", "7.20.0"),
        ("rocm-7.1.1", "7.1.1"),
        ("rocm-7.2.0", "7.2.0"),
    ):
        install(no_rocm_of_this_machine / name, release)
    assert find_rocm("7.2", SYSTEM, quiet).release == "7.2.0"
    (no_rocm_of_this_machine / "rocm").symlink_to("rocm-7.1.1")
    assert find_rocm("7.1", SYSTEM, quiet).release == "7.1.1"
    assert find_rocm("7.20", SYSTEM, quiet).release == "7.20.0"
    shutil.rmtree(no_rocm_of_this_machine / "rocm-7.2.0")
    with pytest.raises(MissingToolError, match=r"only 7\.20\.0 at "):
        find_rocm("7.2", SYSTEM, quiet)


def test_rocm_as_python_packages_is_asked_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_rocm_of_this_machine: Path
) -> None:
    folder = only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "site-packages/_rocm_sdk_devel")
    program(folder, "rocm-sdk", f'[ "$*" = "path --root" ] && echo {root}\n')
    assert find_rocm("7.2", SYSTEM, quiet).root == root
    system = install(no_rocm_of_this_machine / "rocm")
    assert find_rocm("7.2", SYSTEM, quiet).root == system


def test_one_that_does_not_say_its_version_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "here", release=None)
    monkeypatch.setenv("ROCM_PATH", str(root))
    with pytest.raises(MissingToolError):
        find_rocm("7.2", SYSTEM, quiet)
    program(root / "bin", "hipconfig", '[ "$1" = --version ] && echo 7.2.26015-fc0010cf6a\n')
    assert find_rocm("7.2", SYSTEM, quiet).release == "7.2.26015"


@pytest.mark.parametrize("missing", ["bin/hipcc", "include/hip/hip_runtime.h"])
def test_half_an_installation_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "here")
    monkeypatch.setenv("ROCM_PATH", str(root))
    (root / missing).unlink()
    with pytest.raises(MissingToolError):
        find_rocm("7.2", SYSTEM, quiet)


def test_another_version_is_named_and_so_is_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch, tmp_path)
    root = install(tmp_path / "here", "7.1.0")
    monkeypatch.setenv("ROCM_PATH", str(root))
    said: list[str] = []
    with pytest.raises(
        MissingToolError, match=r"no hipcc of ROCm 7\.2 on this machine, only 7\.1\.0 at "
    ) as caught:
        find_rocm("7.2", SYSTEM, said.append)
    assert said == [f"{root} is ROCm 7.1.0, not 7.2: not used"]
    assert "docker.io/pytorch/manylinux2_28-builder:rocm7.2 (--container auto)" in caught.value.hint
    assert caught.value.exit_code == 3


def test_a_missing_runtime_library_is_named(tmp_path: Path) -> None:
    root = install(tmp_path / "here")
    assert Rocm("7.2", "7.2.1", root).library_dir == root / "lib"
    (root / "lib").rename(root / "lib64")
    assert Rocm("7.2", "7.2.1", root).library_dir == root / "lib64"
    (root / "lib64/libamdhip64.so").unlink()
    with pytest.raises(MissingToolError, match=r"libamdhip64\.so is missing"):
        _ = Rocm("7.2", "7.2.1", root).library_dir


# --- which torch ---


def rocm_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, hip: str) -> None:
    text = f"__version__ = {version!r}\ncuda = None\nhip: object = {hip!r}\n"
    make_wheel(
        folder,
        "torch",
        version,
        {"torch/__init__.py": "raise ImportError\n", "torch/version.py": text},
    )
    make_wheel(folder, "ninja", "1.13.2", {"ninja/__init__.py": ""})
    only_wheels(monkeypatch, folder)


def test_a_full_build_takes_the_wheel_of_its_rocm_and_no_other_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm_wheel(tmp_path / "wheels", monkeypatch, "2.13.0", "7.2.26015-fc0010cf6a")
    environment = kci_environment(tmp_path, "2.13", "rocm7.2")
    install_torch = environment.setup()[1]
    assert install_torch[-3:] == [
        "--index-url",
        "https://download.pytorch.org/whl/rocm7.2",
        "torch==2.13.0+rocm7.2",
    ]
    with pytest.raises(
        MissingToolError, match=r"whl/rocm7\.2 cannot be reached, and no other index"
    ):
        environment.ensure(environment.python, quiet)


@pytest.mark.slow
def test_a_torch_for_another_rocm_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm_wheel(tmp_path / "wheels", monkeypatch, "2.13.0+rocm7.2", "7.1.25424-4179531dcd")
    monkeypatch.setattr("kci.builders.toolchains.environment.is_reachable", lambda _url: True)
    environment = kci_environment(tmp_path, "2.13", "rocm7.2")
    with pytest.raises(MissingToolError, match=r"for ROCm 7\.1, not for rocm7\.2"):
        environment.ensure(environment.python, quiet)
    assert environment.root is not None
    assert not environment.root.exists()


# --- commands ---

ENVIRONMENT = Environment(
    python=Path("/env/python"), torch=Path("/env/torch"), ninja=Path("/env/ninja"), root=None
)
TORCH_INCLUDES = [
    "-isystem", "torch/include",
    "-isystem", "torch/include/torch/csrc/api/include",
    "-isystem", "python",
]  # fmt: skip
DEFINES = [
    "-DROCM_KERNEL", "-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2",
    "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-DUSE_RPC", "-DUSE_TENSORPIPE",
]  # fmt: skip


@pytest.fixture
def chain(tmp_path: Path) -> Toolchain:
    device = Rocm("7.2", "7.2.1", install(tmp_path / "rocm"))
    return toolchain(FULL, ENVIRONMENT, device=device)


def unit(
    entry: str, *archs: str, flags: tuple[str, ...] = (), include: tuple[str, ...] = ("inc",)
) -> Unit:
    language = "CXX" if entry.endswith(".cpp") else "HIP"
    paths = tuple(PurePosixPath(path) for path in include)
    return Unit(
        PurePosixPath(entry), entry, f"obj/{Path(entry).name}.o", language, paths, flags, archs
    )


def test_a_translated_source(chain: Toolchain) -> None:
    (made,), names = translate_units(
        [unit("csrc/a.cu", "gfx90a", "gfx1100", flags=("-ffast-math",))]
    )
    assert names == {"csrc/a.cu": "csrc/a.hip"}
    assert isinstance(chain.device, Rocm)
    assert compile_command(chain, made) == [
        f"{chain.device.root}/bin/hipcc", "--rocm-path=rocm", "-std=c++20", "-O3", "-DNDEBUG",
        "--offload-arch=gfx90a", "--offload-arch=gfx1100", "-fno-gpu-rdc", "-cuid=82ff4eb55debe800",
        "-fPIC",
        "-DCUDA_HAS_FP16=1", "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1", "-DENABLE_FP8",
        "-DTORCH_EXTENSION_NAME=_k_rocm_1", "-DPy_LIMITED_API=0x03090000", *DEFINES,
        "-Igenerated/torch-ext", "-Ihip/inc", "-Ihip/csrc", *TORCH_INCLUDES, "-isystem",
        "rocm/include",
        "-ffast-math", "-MD", "-MF", "obj/a.cu.o.d", "-x", "hip", "-c", "hip/csrc/a.hip", "-o",
        "obj/a.cu.o",
    ]  # fmt: skip


def test_each_source_of_a_module_has_a_cuid_of_its_own(chain: Toolchain) -> None:
    def cuid(entry: str, kernel_id: str = "_k_rocm_1") -> list[str]:
        command = compile_command(replace(chain, kernel_id=kernel_id), unit(entry, "gfx90a"))
        return [word for word in command if word.startswith("-cuid=")]

    assert cuid("a.hip") == cuid("a.hip")
    assert len({*cuid("a.hip"), *cuid("b.hip"), *cuid("a.hip", "_other_rocm_1")}) == 3
    assert cuid("a.hip") == cuid("a.hip", "_k_rocm_2"), "a new commit compiles nothing anew"


def test_a_source_that_is_hip_already_is_compiled_where_it_is(chain: Toolchain) -> None:
    (made,), names = translate_units([unit("csrc/cuda/a.hip", "gfx942")])
    assert names == {}
    command = compile_command(chain, made)
    assert command[-3] == "kernel/csrc/cuda/a.hip"
    assert {"-Ikernel/csrc", "-Ikernel/inc"} <= set(command)
    assert not any("hip/" in word for word in command if word.startswith("-I"))


def test_a_cpp_source_is_not_translated_and_sees_the_headers_of_hip(chain: Toolchain) -> None:
    (made,), _ = translate_units([unit("csrc/cuda/bind.cpp", flags=("-Wall",))])
    assert compile_command(chain, made) == [
        "g++", "-std=gnu++20", "-O3", "-DNDEBUG", "-fPIC", "-fno-gnu-unique",
        "-fno-canonical-system-headers",
        "-frandom-seed=obj/bind.cpp.o",
        "-DTORCH_EXTENSION_NAME=_k_rocm_1", "-DPy_LIMITED_API=0x03090000", *DEFINES,
        "-Igenerated/torch-ext", "-Ikernel/inc", "-Ikernel/csrc", *TORCH_INCLUDES, "-isystem",
        "rocm/include",
        "-Wall", "-MD", "-MF", "obj/bind.cpp.o.d", "-c", "kernel/csrc/cuda/bind.cpp", "-o",
        "obj/bind.cpp.o",
    ]  # fmt: skip


def test_the_system_directory_is_never_named_as_an_include(chain: Toolchain) -> None:
    made = replace(chain, device=Rocm("7.2", "7.2.1", Path("/usr")))
    assert "rocm/include" not in compile_command(made, unit("a.cpp"))
    assert "rocm/include" in compile_command(chain, unit("a.cpp"))


@pytest.mark.parametrize("entry", ["a.cpp", "a.hip"])
def test_a_stable_abi_build_sees_the_translated_headers_of_torch_first(
    chain: Toolchain, entry: str
) -> None:
    command = compile_command(replace(chain, variant=variant(STABLE)), unit(entry, "gfx90a"))
    assert "-DTORCH_TARGET_VERSION=0x020b000000000000" in command
    assert command.index("torch-hip") < command.index("torch/include")
    assert "torch-hip" not in compile_command(chain, unit(entry, "gfx90a"))


def test_linking_names_the_stub_or_the_libraries_of_torch(chain: Toolchain) -> None:
    assert isinstance(chain.device, Rocm)
    runtime = [f"-L{chain.device.root / 'lib'}", "-lamdhip64", "-ltorch_cpu"]
    stable = link_command(replace(chain, variant=variant(STABLE)), ["a.o"])
    assert stable[-9:] == [
        "-Wl,--no-as-needed", "-Lstub", "-ltorch_hip", "-Wl,--as-needed", "-lstdc++", "-Ltorch/lib",
        *runtime
    ]  # fmt: skip
    assert "-Wl,-soname,libtorch_hip.so" in stub_command(chain, "torch_hip")
    assert stub_command(chain, "torch_hip")[-1] == "stub/libtorch_hip.so"
    full = link_command(chain, ["a.o"])
    assert full[-10:] == [
        "-Wl,--as-needed", "-lstdc++", "-Ltorch/lib", "-ltorch_hip", "-lc10_hip", *runtime,
        "-ltorch", "-lc10"
    ]  # fmt: skip
    assert work_links(chain)["rocm"] == chain.device.root


# --- what is translated ---


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
    with pytest.raises(FindingsError, match=r"are both 'csrc/hip/a\.hip'") as caught:
        translate_units(units if first else units[::-1])
    assert caught.value.diagnostics[0].rule == "KCI509"


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
    torch = write_tree(
        tmp_path / "torch",
        {"utils/hipify/__init__.py": "", "utils/hipify/hipify_python.py": HIPIFY.format(body=body)},
    )
    write_tree(tmp_path / "work/kernel", {"a.cu": "int a;\n"})
    environment = Environment(Path(sys.executable), torch, Path("ninja"), None)
    return Translation(tmp_path / "work", environment, {"a.cu": "a.hip"}, (), torch_headers=False)


def test_unsupported_calls_stop_the_build_and_are_listed(tmp_path: Path) -> None:
    body = 'print("Total number of unsupported CUDA function calls: 2\\ncudaB, cudaA\\n")'
    with pytest.raises(
        BuildFailedError, match=r"calls that HIP does not have: cudaA, cudaB$"
    ) as caught:
        translate(translation(tmp_path, body), quiet)
    assert "USE_ROCM" in caught.value.hint
    assert not (tmp_path / "work/hip").exists()


@pytest.mark.parametrize("top", [1, 2, 0])
def test_a_translation_has_the_name_and_the_lines_of_its_source(tmp_path: Path, top: int) -> None:
    """hipify puts a comment on top, and for code for devices an include."""
    write = (
        f"from pathlib import Path; Path(extra_files[0] + '.out').write_text('// top\\n' * {top} "
        "+ 'int hip;\\n')"
    )
    done = "Result.hipified_path = extra_files[0] + '.out'"
    translate(translation(tmp_path, f"{write}\n    {done}"), quiet)
    assert (
        tmp_path / "work/hip/a.hip"
    ).read_text() == "// top\n" * top + '#line 1 "hip/a.cu"\nint hip;\n'


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
    with pytest.raises(BuildFailedError, match="hipify failed") as caught:
        translate(translation(tmp_path, f"raise SystemExit({said!r})"), quiet)
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)


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
        "hip", "hipify-result.json", "hipify.json", "kernel", "torch-hip",
    ]  # fmt: skip


# --- the whole plan ---


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.setenv("ROCM_PATH", str(install(tmp_path / "rocm", "7.1.1")))
    return request(copy_kernel("halve", tmp_path), STABLE, tmp_path)


def test_the_archs_are_those_of_each_component(asked: Request) -> None:
    recipe = builder.plan(asked, quiet)
    archs = {
        step.label: [
            word.removeprefix("--offload-arch=")
            for word in step.command
            if word.startswith("--offload-arch")
        ]
        for step in recipe.steps
    }
    assert archs["hipcc csrc/cuda/halve.cu"] == ["gfx1100", "gfx90a", "gfx942"]
    assert archs["hipcc csrc/double.hip"] == ["gfx942"]
    assert archs["c++ torch-ext/torch_binding.cpp"] == []
    assert recipe.sources.archs == ("gfx1100", "gfx90a", "gfx942")


def test_hip_flags_are_for_device_code_and_cxx_flags_for_the_rest(asked: Request) -> None:
    commands = {step.label: step.command for step in builder.plan(asked, quiet).steps}
    assert "-DHALVE_FACTOR=0.5f" in commands["hipcc csrc/cuda/halve.cu"]
    assert not any(
        "-DONLY_FOR_CXX" in command
        for what, command in commands.items()
        if what.startswith("hipcc")
    )
    assert not any(
        "-DHALVE_FACTOR=0.5f" in command
        for what, command in commands.items()
        if what.startswith("c++")
    )


def test_a_stable_abi_build_takes_the_cpu_wheel_and_a_full_one_that_of_its_rocm(
    asked: Request, tmp_path: Path
) -> None:
    stable = builder.plan(asked, quiet)
    assert stable.chain.environment.flavour == "cpu"
    assert stable.translation is not None
    assert stable.translation.torch_headers
    full = request(asked.kernel_dir, "torch213-cxx11-rocm71-x86_64-linux", tmp_path)
    recipe = builder.plan(full, quiet)
    assert recipe.chain.environment.flavour == "rocm7.1"
    assert recipe.translation is not None
    assert not recipe.translation.torch_headers


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


def test_hipcc_is_told_of_the_rocm_that_was_chosen(
    asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tmp_path / "rocm"
    monkeypatch.setenv("ROCM_PATH", str(install(tmp_path / "other", "6.4.0")))
    monkeypatch.setenv("HIP_PATH", str(right))
    chain = builder.plan(asked, quiet).chain
    assert isinstance(chain.device, Rocm)
    assert chain.device.root == right.resolve()
    told = builder._compile_environment(chain)
    assert {told["ROCM_PATH"], told["HIP_PATH"]} == {str(right.resolve())}
    assert told["HIP_PLATFORM"] == "amd"


def test_an_arch_list_with_nothing_to_build_is_refused(asked: Request, tmp_path: Path) -> None:
    config = asked.kernel_dir / "build.toml"
    config.write_text(config.read_text().replace('["gfx942"]', '["gfx940"]'))
    with pytest.raises(
        FindingsError, match=r"kernel\.double lists gfx940, and ROCm 7\.1 supports none of it"
    ):
        builder.plan(request(asked.kernel_dir, STABLE, tmp_path), quiet)
