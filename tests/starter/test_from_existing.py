"""`kci init --from`: what is taken over from a setup.py or a kernel-builder repository, and what is left to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci
from kci.config.reader import read_kernel
from kci.errors import FindingsError
from kci.starter.setup_py import Glob, read_setup

SETUP = """
import os
from glob import glob
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
import torch.utils.cpp_extension as cpp

here = os.path.dirname(os.path.abspath(__file__))
sources = ["csrc/bind.cpp"]
sources += glob(os.path.join(here, "csrc", "*.cu"))
sources.append("csrc/missing.cu")
flags = {"cxx": ["-O3"], "nvcc": ["-O3", "--use_fast_math"]}
if os.environ.get("DEBUG"):
    flags["cxx"].append("-g")
setup(
    name="fused_ops",
    license="MIT",
    version=read_version(),
    ext_modules=[
        CUDAExtension(
            name="fused_ops_cuda", sources=sources, include_dirs=[os.path.join(here, "csrc")],
            extra_compile_args=flags, libraries=["cublas"],
        ),
        cpp.CppExtension("fused_ops_extra", ["extra.cpp"]),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
BIND = """
#include <torch/extension.h>
#include "add.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("add", &add, "adds {two} tensors");
  m.def("scale_", &scale_, py::arg("x"));
  m.def("gone", &gone);
}
"""
PROJECT = {
    "setup.py": SETUP,
    "csrc/bind.cpp": BIND,
    "csrc/add.h": "#pragma once\n#include <torch/extension.h>\nat::Tensor add(at::Tensor a, at::Tensor b);\n"
    "void scale_(at::Tensor& x,\n            float factor = 1.0);\n",
    "csrc/add.cu": '#include "add.h"\n',
    "extra.cpp": "",
    "fused_ops/__init__.py": "import fused_ops_cuda\n",
    "build/old.so": "",
}


def test_a_setup_py_is_read_and_not_run() -> None:
    setup = read_setup((SETUP + "\nraise SystemExit\n").encode(), "setup.py")
    assert setup.license == "MIT"
    first, second = setup.extensions
    assert (first.backend, first.name, first.include) == ("cuda", "fused_ops_cuda", ("csrc",))
    assert first.sources == ("csrc/bind.cpp", Glob("csrc/*.cu"), "csrc/missing.cu")
    assert (first.cxx_flags, first.cuda_flags) == (("-O3",), ("-O3", "--use_fast_math"))
    assert (second.backend, second.sources) == ("cpu", ("extra.cpp",))
    assert setup.not_understood == (
        (22, "`libraries`: build.toml has no such key"),
        (14, "`flags['cxx'].append('-g')` was not followed"),
    )


COMMON = """
import glob, os.path as osp
from pathlib import Path
from torch.utils.cpp_extension import CppExtension, CUDAExtension
def extensions():
    top = osp.dirname(osp.abspath(__file__))
    src = Path(__file__).resolve().parent / "src"
    sources = [str(path) for path in src.glob("*.cpp")]
    extension = CppExtension
    args = {"cxx": []}
    macros = []
    if cuda:
        extension = CUDAExtension
        sources += glob.glob(osp.join(top, "src", "cuda", "*.cu"))
        macros += [("WITH_CUDA", None), ("LEVEL", 2)]
        args["nvcc"] = ["-O3", f"-I{top}/third/glm", "-gencode", "arch=compute_80,code=sm_80"]
        args["nvcc"] += ["--threads", "4"]
    sources = [osp.join(top, "src", name) for name in sources]
    return [extension("ops", sources, include_dirs=[osp.join(top, "src"), "/usr/include"], define_macros=macros,
                      extra_compile_args=args)]
"""


def test_what_many_projects_write_is_understood() -> None:
    """A name for the class that a branch decides on, macros, and paths made absolute more than once."""
    setup = read_setup(COMMON.encode(), "setup.py")
    (only,) = setup.extensions
    assert (only.backend, only.name) == ("cuda", "ops")
    assert only.sources == (Glob("src/*.cpp"), Glob("src/cuda/*.cu"))
    assert only.include == ("src", "/usr/include", "third/glm")
    assert only.cxx_flags == ("-DWITH_CUDA", "-DLEVEL=2")
    assert only.cuda_flags == ("-O3", "-DWITH_CUDA", "-DLEVEL=2")
    left = [text for _, text in setup.not_understood]
    assert left == [
        "`args['nvcc'] += ['--threads', '4']` was not followed",
        "`-gencode arch=compute_80,code=sm_80`: the architectures are `cuda-capabilities` of build.toml",
    ]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from torch.utils.cpp_extension import CUDAExtension as E", "E"),
        ("E = cpp.CUDAExtension if cuda else CppExtension", "E"),
        ("E = CUDAExtension\nif not cuda:\n    E = CppExtension", "E"),
    ],
)
def test_a_class_by_another_name_is_found(line: str, names: str) -> None:
    (only,) = read_setup(f"{line}\n{names}('a', ['a.cu'])".encode(), "setup.py").extensions
    assert (only.backend, only.sources) == ("cuda", ("a.cu",))


def test_what_is_added_and_not_understood_is_named_where_it_is_used() -> None:
    text = "a = ['a.cu']\na += find()\nb = {}\nb['x'] = find()\nc = {'cxx': []}\nc['cxx'] = find()\n"
    text += "CUDAExtension('a', a, extra_compile_args=c)"
    setup = read_setup(text.encode(), "setup.py")
    assert setup.extensions[0].sources == ("a.cu",)
    assert setup.not_understood == ((2, "`find()` was not followed"), (6, "`find()` was not followed"))


@pytest.mark.parametrize("value", ["', '.join(['a.cu'])", "f'{version()}.cu'", "here.glob('*.cu')", "dirname(find())"])
def test_what_only_looks_like_a_path_is_not_guessed(value: str) -> None:
    setup = read_setup(f"CUDAExtension('a', [{value}, 'b.cu'])".encode(), "setup.py")
    assert setup.extensions[0].sources == ("b.cu",)
    assert len(setup.not_understood) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def (", "not valid Python"),
        ("print(1)", "no extension"),
        ("x = " + "(" * 5000, "not valid Python"),
        ("x = " + "-" * 100_000 + "1", "not valid Python|nested too deeply"),
        ("x = ['a']\n" + "x = x + x\nx += x\ny = [x, x]\nx = y\n" * 60, "no extension"),
        ("x = 'a'\n" + "x = f'{x}{x}'\n" * 60, "no extension"),
        ("#" * 1_000_001, "too large"),
        ("\0", "not valid Python"),
    ],
)
def test_what_is_no_setup_py_is_refused(text: str, said: str) -> None:
    with pytest.raises(FindingsError, match=said):
        read_setup(text.encode(), "setup.py")


def test_what_would_have_to_be_computed_is_named() -> None:
    text = "CUDAExtension('a', sources=[find(), 'b.cu'], extra_compile_args=flags())"
    setup = read_setup(text.encode(), "setup.py")
    assert setup.extensions[0].sources == ("b.cu",)
    assert setup.not_understood == (
        (1, "kci does not compute `flags()`"),
        (1, "kci does not compute `find()`"),
    )


def test_a_project_with_a_setup_py_becomes_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "old", PROJECT)
    monkeypatch.chdir(tmp_path)
    made = kci("init", "fused-ops", "--from", "old", "--license", "MIT", "--repo-id", "acme/fused-ops", "-y")
    assert made.code == 0, made.stderr
    build = read_kernel(tmp_path / "fused-ops").build
    assert build.general.backends == ("cuda",)
    (component,) = build.kernel.values()
    assert component.src == ("csrc/bind.cpp", "csrc/add.cu", "csrc/add.h")
    assert component.include == ("csrc",)
    binding = (tmp_path / "fused-ops" / "torch-ext" / "torch_binding.cpp").read_text()
    assert "at::Tensor add(at::Tensor a, at::Tensor b);" in binding
    assert "void scale_(at::Tensor& x, float factor);" in binding
    assert 'ops.def("add", &add);' in binding
    old_binding = (tmp_path / "fused-ops" / "csrc" / "bind.cpp").read_text()
    assert "PYBIND11" not in old_binding
    assert "torch/extension.h" not in old_binding
    assert "taken over: 2 functions of the pybind11 module as operators: add, scale_" in made.stdout
    for left in (
        "'csrc/missing.cu' was not found",
        "`libraries`",
        "`fused_ops_extra` was not taken over",
        "`gone`: no declaration",
        "PyTorch has no `float`",
        "`scale_` may write to its arguments",
        "fused_ops/__init__.py",
    ):
        assert left in made.stdout, left
    assert not (tmp_path / "fused-ops" / "build").exists()
    checked = kci("check", "fused-ops")
    assert checked.code == 0, checked.stderr


@pytest.mark.parametrize("line", [" " * 200_000, "a " * 100_000, "int f(int a,\n" * 20_000])
def test_a_header_that_means_harm_is_read_in_time(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is quadratic in it would take minutes."""
    bind = 'PYBIND11_MODULE(a, m) { m.def("f", &f); }'
    write_tree(tmp_path / "old", {"setup.py": "CUDAExtension('a', ['a.cpp'])", "a.cpp": bind, "a.h": f"{line}\n"})
    monkeypatch.chdir(tmp_path)
    assert kci("init", "new-one", "--from", "old", "-y").code == 0


@pytest.mark.parametrize(
    ("said", "given", "written"),
    [
        ("", "", "Apache-2.0"),
        ("license='BSD-3-Clause'", "", "BSD-3-Clause"),
        ("license='MIT'", "ISC", "ISC"),
        ("license='a\\nb'", "", "Apache-2.0"),
    ],
)
def test_the_license_is_the_projects_own(
    said: str, given: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "old", {"setup.py": f"CUDAExtension('a', ['a.cu'])\nsetup({said})", "a.cu": ""})
    monkeypatch.chdir(tmp_path)
    made = kci("init", "new-one", "--from", "old", "-y", *(["--license", given] if given else []))
    assert made.code == 0, made.stderr
    assert read_kernel(tmp_path / "new-one").build.general.license == written
    assert ("left to do: build.toml says license" in made.stdout) == (written == "Apache-2.0")


def test_sources_lose_pybind11_wherever_they_include_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "setup.py": "CUDAExtension('a', ['a.cu', 'b.cpp'], include_dirs=['glm', '/opt/x'])",
        "a.cu": "# include <torch/extension.h>\n",
        "b.cpp": '#include "c.h"\nTORCH_LIBRARY(a, m) {}\nPYBIND11_MODULE(_a, m) {}\n',
        "c.h": '#include "torch/extension.h"\n// caf\u00e9\n',
    }
    write_tree(tmp_path / "old", files)
    monkeypatch.chdir(tmp_path)
    made = kci("init", "new-one", "--from", "old", "-y")
    texts = [(tmp_path / "new-one" / name).read_text(encoding="utf-8") for name in ("a.cu", "b.cpp", "c.h")]
    assert texts[0] == "#include <torch/all.h>\n"
    assert "PYBIND11" not in texts[1]
    assert texts[2] == "#include <torch/all.h>\n// caf\u00e9\n"
    assert "taken over: 1 header\n" in made.stdout
    assert "b.cpp registers operators itself" in made.stdout
    assert "pybind11 module" not in made.stdout
    assert "'glm' is empty" in made.stdout
    assert "'/opt/x' lies outside of the project" in made.stdout


@pytest.mark.parametrize(
    "option", ["--framework torch", "--stable-abi 2.11", "--backend cuda", "--license MIT", "--repo-id a/b"]
)
def test_an_option_that_would_be_ignored_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "old", {"build.toml": ""})
    monkeypatch.chdir(tmp_path)
    made = kci("init", "new-one", "--from", "old", "-y", *option.split())
    assert made.code == 2
    assert f"{option.split(maxsplit=1)[0]} is not for --from" in made.stderr
    assert not (tmp_path / "new-one").exists()


def test_the_name_of_the_old_project_says_nothing_that_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "CUDAExtension('a', ['../../secret.cu', '/etc/passwd', 'in.cu'], include_dirs=['/usr/include', '../x', 'i'])"
    write_tree(tmp_path / "old", {"setup.py": text, "in.cu": ""})
    (tmp_path / "secret.cu").write_text("secret")
    (tmp_path / "old" / "link.cu").symlink_to(tmp_path / "secret.cu")
    monkeypatch.chdir(tmp_path)
    made = kci("init", "k1", "--from", "old", "-y")
    assert made.code == 0, made.stderr
    assert "secret" not in "".join(path.read_text() for path in (tmp_path / "k1").rglob("*") if path.is_file())
    assert "link.cu was not copied: it is a link" in made.stdout
    (component,) = read_kernel(tmp_path / "k1").build.kernel.values()
    assert (component.src, component.include) == (("in.cu",), ("i",))


OLD_BUILD = """
[general]
name = "old-kernel"  # a comment
version = 2
license = "apache-2.0"
backends = ["cuda"]

[general.hub]
repo-id = "acme/old-kernel"

[torch]
src = ["torch-ext/torch_binding.cpp"]

[kernel.old]
backend = "cuda"
depends = ["torch"]
src = ["csrc/old.cu"]
"""
REPOSITORY = {
    "build.toml": OLD_BUILD,
    "flake.nix": "{}",
    "flake.lock": "{}",
    "torch-ext/torch_binding.cpp": '#include "registration.h"\n',
    "torch-ext/old_kernel/__init__.py": "",
    "torch-ext/old_kernel/_ops.py": "generated",
    "csrc/old.cu": "",
    "build/torch-cuda/__init__.py": "",
    "tests/test_old.py": "def test_it(): pass\n",
}


def test_a_kernel_builder_repository_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "old", REPOSITORY)
    monkeypatch.chdir(tmp_path)
    made = kci("init", "new", "--from", "old", "-y")
    assert made.code == 0, made.stderr
    text = (tmp_path / "new" / "build.toml").read_text()
    assert "edition = 5" in text
    assert "# a comment" in text
    assert "taken over: build.toml: `edition = 5`" in made.stdout
    assert "flake.nix was not copied" in made.stdout
    assert "_ops.py was not copied: it is generated" in made.stdout
    assert "no test has the mark" in made.stdout
    there = {path.name for path in (tmp_path / "new").rglob("*")}
    assert not there & {"flake.nix", "flake.lock", "_ops.py", "torch-cuda"}
    assert {"old.cu", "test_old.py", "kci.yml"} <= there
    assert kci("check", "new").code == 0
    assert (tmp_path / "old" / "flake.nix").exists(), "the old one stays as it is"


def test_a_build_toml_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "old", {"build.toml": "[general\n"})
    monkeypatch.chdir(tmp_path)
    refused = kci("init", "new", "--from", "old", "-y")
    assert refused.code == 1
    assert "old/build.toml:1:" in refused.stderr
    assert not (tmp_path / "new").exists()
