"""`kci init --from --run`: what extensions of a setup.py become, and what is left to a person."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from buildkit import write_tree
from cli.runner import Result, ended, kci
from kci.config.model import CudaComponent
from kci.config.reader import read_kernel
from kci.errors import FindingsError, MissingToolError
from kci.scaffold import from_setup, run_setup
from kci.scaffold.run_setup import Extension, SetupRun, SetupRuns

OPS = """
#include <torch/extension.h>
#include "add.h"
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("add", &adder::add, "adds {two} tensors",
        py::arg("a"), py::arg("b"), py::arg("alpha") = 1.0f);
  m.def("scale_", &adder::scale_);
}
"""
PROJECT = {
    "setup.py": "",
    "LICENSE": "MIT License",
    "csrc/ops.cpp": OPS,
    "csrc/add.h": '#include "deep/more.h"\n',
    "csrc/deep/more.h": "",
    "csrc/unused.h": "",
    "csrc/cuda/add.cu": '#include "add.h"\n',
    "adder/__init__.py": "import os\nimport torch\nimport numpy\n"
    "from adder.functional import add\nfrom . import _C\n",
    "adder/functional.py": "import torch\n",
    "tests/test_it.py": "",
}
LINKED = ("c10", "torch", "torch_cpu", "torch_python")


def cpp(name: str, *sources: str, **given: object) -> Extension:
    return Extension(name, sources, libraries=LINKED, **given)  # type: ignore[arg-type]


def cuda(name: str, *sources: str, libraries: tuple[str, ...] = (), **given: object) -> Extension:
    linked = (*libraries, *LINKED, "cudart", "c10_cuda", "torch_cuda")
    return Extension(name, sources, libraries=linked, **given)  # type: ignore[arg-type]


Runs = dict[str, SetupRun]
"""What the runs of setup.py are said to have made, by backend."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = {"cpu": SetupRun(), "cuda": SetupRun()}
    found = SetupRuns(made, "run somewhere", "/p/project", ("/cache/env", "/usr/local/cuda"))
    monkeypatch.setattr(from_setup, "run_setup", lambda *_: found)
    return made


def taken(place: Path, files: dict[str, str], *options: str) -> Result:
    write_tree(place / "old", files)
    return kci("init", "adder", "--from", "old", "-y", "--run", *options)


def files(*names: str) -> dict[str, str]:
    """A project with these files beside its setup.py, empty."""
    return dict.fromkeys(("setup.py", *names), "")


def todo(place: Path) -> list[str]:
    mark = "# TODO (kci init): "
    lines = (place / "adder" / "build.toml").read_text().splitlines()
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]


def both(runs: Runs) -> None:
    of_cuda = cuda(
        "adder._C", "csrc/ops.cpp", "/p/project/csrc/cuda/add.cu",
        include_dirs=("/p/project/csrc", "/cache/env/lib/torch/include", "/opt/other/include"),
        libraries=("cublas", "magma"), define_macros=(("WITH_X", None), ("LEVEL", 2)),
        undef_macros=("NDEBUG",),
        extra_compile_args={
            "cxx": ("-O3", "-std=c++17", "-Wall"),
            "nvcc": (
                "-O3", "-lineinfo", "-gencode", "arch=compute_80,code=sm_80", "--threads", "4",
                "-Iother", "-gencode=arch=compute_90,code=sm_90", "-gencode",
                "arch=compute_90,code=compute_90",
            ),
        },
    )  # fmt: skip
    of_cpu = cpp("adder._C", "csrc/ops.cpp", include_dirs=("csrc",), extra_compile_args=("-O2",))
    runs["cpu"] = SetupRun((of_cpu,), license="MIT License", packages=("adder", "tests"))
    runs["cuda"] = SetupRun((of_cuda,))


def test_an_extension_becomes_a_component_of_its_backend_and_a_draft_says_what_is_left(
    here: Path, runs: Runs
) -> None:
    both(runs)
    made, root = taken(here, PROJECT), here / "adder"
    said = ended(made, 0, "replace `your-name` in repo-id by your account")
    build = read_kernel(root).build
    assert (build.general.backends, build.general.license) == (("cpu", "cuda"), "MIT")
    of_cpu, of_cuda = build.kernel["adder_cpu"], build.kernel["adder_cuda"]
    assert of_cpu.src == ("csrc/ops.cpp", "csrc/add.h", "csrc/deep/more.h")
    assert (of_cpu.include, of_cpu.cxx_flags) == (("csrc",), ("-O2",))
    assert isinstance(of_cuda, CudaComponent)
    assert of_cuda.src == ("csrc/ops.cpp", "csrc/cuda/add.cu", "csrc/add.h", "csrc/deep/more.h")
    assert of_cuda.include == ("csrc", "other")
    assert of_cuda.cxx_flags == ("-O3", "-Wall", "-DWITH_X", "-DLEVEL=2", "-UNDEBUG")
    assert of_cuda.cuda_flags == ("-O3", "-lineinfo", "-DWITH_X", "-DLEVEL=2", "-UNDEBUG")
    assert of_cuda.cuda_capabilities == ("8.0", "9.0+PTX")
    # Sources and package are copied as they are.
    same = {"csrc/ops.cpp": OPS, "torch-ext/adder/__init__.py": PROJECT["adder/__init__.py"]}
    assert {name: (root / name).read_text() for name in same} == same
    there = {
        name
        for name in ("csrc/unused.h", "LICENSE", "torch-ext/adder/functional.py")
        if (root / name).exists()
    }
    assert there == {"LICENSE", "torch-ext/adder/functional.py"}
    assert "  // add\n  // scale_\n" in (root / "torch-ext" / "torch_binding.cpp").read_text()
    tests = (root / "tests" / "test_adder.py").read_text()
    assert 'OPERATORS = [\n    "add",\n    "scale_",\n]' in tests
    assert "[KCI167]: 'csrc/ops.cpp' includes" in kci("check", root, "-v").stderr
    left = todo(here)
    assert f"adder is a draft: {len(left)} things left" in said
    assert all(f"  {line}\n" in said for line in left)
    assert [line[: len(begin)] for line, begin in zip(left, LEFT, strict=True)] == LEFT


LEFT = [
    "setup.py: the include directory '/opt/other/include' lies outside of the project",
    "setup.py: the include directory 'other' is empty: fetch it (a submodule?)",
    "setup.py: it links `magma`: build.toml has no key for libraries, so compile it in, or "
    "remove it",
    "csrc/ops.cpp:5: bind these in torch-ext/torch_binding.cpp: add, scale_",
    "1 test file of the project, such as tests/test_it.py, stayed there: ",
    "torch-ext/adder/__init__.py:3: it imports numpy, which the kernel does not declare: ",
    "torch-ext/adder/__init__.py:4: it imports adder.functional, which the kernel does not "
    "declare: ",
    "torch-ext/adder/__init__.py:5: its relative import fails: the package has no _C",
    "tests/test_adder.py only looks whether the functions are there: write tests of their results",
]


def test_nothing_is_run_that_nobody_allowed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_setup, "run_setup", lambda *_: pytest.fail("it was run"))
    write_tree(here / "old", PROJECT)
    told = "kci has to run old/setup.py, and --run is missing"
    ended(kci("init", "adder", "--from", "old", "-y"), 2, told, "allow it with --run")
    (here / "old" / "setup.py").unlink()
    told = ("neither a build.toml nor a setup.py", "name them as `src` in build.toml")
    ended(kci("init", "adder", "--from", "old", "-y", "--run"), 2, *told)
    assert not (here / "adder").exists()


def test_several_extensions_are_components_and_said(here: Path, runs: Runs) -> None:
    made = (cpp("fast.hash", "a.cpp"), cpp("fast.sum", "b.cpp", "a.cpp"), cpp("slow.sum", "c.cpp"))
    runs["cpu"] = SetupRun(made)
    ended(taken(here, files("a.cpp", "b.cpp", "c.cpp")), 0)
    kernel = read_kernel(here / "adder").build.kernel
    sources = {label: component.src for label, component in kernel.items()}
    assert sources == {"hash_cpu": ("a.cpp",), "sum_cpu": ("b.cpp",), "sum_cpu_2": ("c.cpp",)}
    (said,) = (line for line in todo(here) if "3 extensions" in line)
    assert "fast.hash, fast.sum, slow.sum, and a kernel is one module" in said


def test_the_cpu_extensions_of_the_run_for_cuda_count_where_the_other_fails(
    here: Path, runs: Runs
) -> None:
    """And operators that are registered already, and a package below src/ that nobody named."""
    runs["cpu"] = SetupRun(error="OSError: CUDA_HOME environment variable is not set", line=7)
    runs["cuda"] = SetupRun((cuda("a", "a.cu"), cpp("old._C", "b.cpp")))
    text = '\nTORCH_LIBRARY(old, m) { m.def("add(Tensor a) -> Tensor"); }\n'
    ended(taken(here, files("a.cu") | {"b.cpp": text, "src/old/__init__.py": "x = 1\n"}), 0)
    assert set(read_kernel(here / "adder").build.kernel) == {"adder_cpu", "adder_cuda"}
    where = "their namespace in a kernel is TORCH_EXTENSION_NAME"
    assert f"b.cpp:2: it registers operators: {where}" in todo(here)
    assert (here / "adder" / "torch-ext" / "adder" / "__init__.py").read_text() == "x = 1\n"


def test_a_backend_that_was_not_seen_is_said(here: Path, runs: Runs) -> None:
    runs["cpu"] = SetupRun((cpp("a", "a.cpp"),))
    runs["cuda"] = SetupRun(error="Error: no\x1b[31m GPU", line=7)
    made = taken(here, files("a.cpp", "a.cu"))
    assert "taken over: nothing for cuda: setup.py:7 ends with Error: no" in made.stdout
    assert "\x1b[31m" not in made.stdout
    assert any("write a component for CUDA, of a.cu" in line for line in todo(here))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (SetupRun(), "it makes no extension of torch.utils.cpp_extension"),
        (SetupRun(error="it exits", line=3), "for cpu, setup.py:3 ends with it exits"),
        (SetupRun((Extension("a", ("a.c",)),)), "it makes extensions that are not torch's"),
        (SetupRun((cpp("a", "gone.cpp"),)), "none of the sources of its extensions was found"),
    ],
)
def test_what_makes_no_extension_is_refused_with_the_reason(
    run: SetupRun, said: str, here: Path, runs: Runs
) -> None:
    runs["cpu"] = run
    ended(taken(here, files("a.c")), 1, said)
    assert not (here / "adder").exists()


def test_paths_that_lead_out_are_left_out(here: Path, runs: Runs) -> None:
    inside, out = ("in.cpp", "link.cpp", "sub/../in.cpp"), ("../../secret.cpp", "/etc/passwd")
    sources, folders = (*out, *inside, "/p/project/../x.cpp", "a\0b"), ("../x", ".", "vendor/lib")
    runs["cpu"] = SetupRun((cpp("a", *sources, include_dirs=folders),))
    write_tree(here / "old", files("in.cpp", "i/a.h"))
    (here / "secret.cpp").write_text("secret")
    (here / "old" / "link.cpp").symlink_to(here / "secret.cpp")
    said = ended(kci("init", "adder", "--from", "old", "-y", "--run"), 0)
    assert "secret" not in "".join(path.read_text() for path in (here / "adder").rglob("*.cpp"))
    (component,) = read_kernel(here / "adder").build.kernel.values()
    assert (component.src, component.include) == (("in.cpp",), (".", "vendor/lib"))
    for name in ("../../secret.cpp", "/etc/passwd", "/p/project/../x.cpp", "../x"):
        assert f"'{name}' lies outside" in said
    for left in (
        "the source 'link.cpp' was not found",
        "link.cpp was not copied: it is a link",
        "the include directory 'vendor/lib' is empty: fetch it",
    ):
        assert left in said


def test_names_that_mean_harm_stay_one_line(here: Path, runs: Runs) -> None:
    evil = 'a\n[general]\nname = "evil"\x1b[31m'
    flags = ('-DX="\n[torch]"', "-DY")
    made = (cpp(evil, "a.cpp", extra_compile_args=flags), cpp(f"{evil}é", "b.cpp"))
    runs["cpu"] = SetupRun(made, package_dir={"x": "gone"})
    said = ended(taken(here, files("a.cpp", "b.cpp")), 0)
    build = read_kernel(here / "adder").build
    assert build.general.name == "adder"
    assert build.kernel[next(iter(build.kernel))].cxx_flags == ('-DX="', '[torch]"', "-DY")
    assert "\x1b[31m" not in said


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("", "other"),
        ("BSD-3-Clause", "BSD-3-Clause"),
        ("MIT License", "MIT"),
        ("a\nb", "other"),
        ("AGPL", "other"),
    ],
)
def test_a_license_is_never_invented(said: str, written: str, here: Path, runs: Runs) -> None:
    runs["cpu"] = SetupRun((cpp("a", "a.cpp"),), license=said)
    ended(taken(here, files("a.cpp")), 0)
    assert read_kernel(here / "adder").build.general.license == written
    assert any("write the license" in line for line in todo(here)) == (written == "other")


FORGED = ["[]", "{", '{"error": 1}', '{"extensions": [{"name": 1, "sources": []}]}']


@pytest.mark.parametrize("answer", [*FORGED, "[" * 100_000, " " * 9_000_000])
def test_a_forged_answer_is_refused(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What setup.py can write in place of the answer is read as hostile data."""

    def forged(place: Path, *_: object) -> int:
        (place / "answers" / "cpu.json").write_text(answer)
        return 0

    monkeypatch.setattr(run_setup, "_torch", lambda *_: (Path("/nowhere/bin/python"), "2.13"))
    monkeypatch.setattr(run_setup, "run_sandboxed", forged)
    with pytest.raises(FindingsError, match=r"setup\.py: what it made for cpu cannot be used"):
        run_setup.run_setup({"setup.py": b""}, Path("/nowhere"), lambda _: None)


def test_a_torch_that_is_there_or_can_be_imported_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, there = list[str](), list[str]()

    def ensured(version: str, **_: object) -> Path:
        asked.append(version)
        if version not in ("2.13", *there):
            raise MissingToolError("it is for CUDA")
        return tmp_path

    made = lambda _, version, __: SimpleNamespace(complete=version in there)  # noqa: E731
    monkeypatch.setattr(run_setup, "kci_environment", made)
    monkeypatch.setattr(run_setup, "ensure_runtime", ensured)
    assert run_setup._torch(tmp_path, lambda _: None) == (tmp_path, "2.13")
    assert asked == ["2.15", "2.14", "2.13"]
    there.append("2.14")
    assert run_setup._torch(tmp_path, lambda _: None) == (tmp_path, "2.14")
