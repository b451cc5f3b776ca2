# ruff: noqa: E501  - code of other languages, a case a line
"""`kci init --from` with a setup.py: it is run among stand-ins, and a draft comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import Result, kci
from kci.config.reader import read_kernel
from kci.errors import FindingsError, UsageError
from kci.starter import run_setup as running
from kci.starter import sandbox
from kci.starter.new_kernel import choose
from kci.starter.run_setup import RUN_FOR, run_setup
from kci.starter.take_over import from_setup_py

MIT = """MIT License

Copyright (c) 2024 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""

SETUP = """
import os, subprocess, glob
import os.path as osp
import torch
from packaging.version import parse
from setuptools import find_packages, setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

here = osp.dirname(osp.abspath(__file__))
suffices = ["cuda", "cpu"] if os.getenv("FORCE_CUDA", "0") == "1" else ["cpu"]

def extensions():
    for suffix in suffices:
        flags = {"cxx": ["-O3", "-std=c++17", "-Wall"]}
        sources = ["csrc/ops.cpp"] + glob.glob(osp.join("csrc", "cpu", "*.cpp"))
        if suffix == "cuda":
            flags["nvcc"] = ["-O3", "-gencode", "arch=compute_80,code=sm_80", "--threads", "4"]
            if not torch.version.hip:
                version = subprocess.check_output([CUDA_HOME + "/bin/nvcc", "-V"], text=True)
                if parse(version.split()[version.split().index("release") + 1].split(",")[0]) >= parse("12.0"):
                    flags["nvcc"].append("--use_fast_math")
            sources += glob.glob(osp.join("csrc", "cuda", "*.cu"))
        make = CppExtension if suffix == "cpu" else CUDAExtension
        yield make(f"adder._C_{suffix}", sources, include_dirs=[osp.join(here, "csrc"), "/opt/other/include"],
                   define_macros=[("WITH_X", None), ("LEVEL", 2)], undef_macros=["NDEBUG"], libraries=["cublas", "magma"],
                   extra_compile_args=flags)

setup(name="adder", version="1.0", packages=find_packages(), ext_modules=list(extensions()),
      cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)})
"""
OPS = """
#include <torch/extension.h>
#include "add.h"
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("add", &adder::add, "adds {two} tensors", py::arg("a"), py::arg("b"), py::arg("alpha") = 1.0f);
  m.def("scale_", &adder::scale_);
}
"""
PROJECT = {
    "setup.py": SETUP,
    "LICENSE": MIT,
    "csrc/ops.cpp": OPS,
    "csrc/add.h": "#pragma once\n#include <torch/extension.h>\nnamespace adder {\n"
    "at::Tensor add(const at::Tensor& a, at::Tensor b, float alpha = 1.0);\nvoid scale_(at::Tensor x);\n}\n",
    "csrc/unused.h": "",
    "csrc/cpu/add.cpp": '#include "add.h"\nnamespace adder {\nat::Tensor add(const at::Tensor& a, at::Tensor b, float alpha)'
    " { return a + b * alpha; }\nvoid scale_(at::Tensor x) { x.mul_(2); }\n}\n",
    "csrc/cpu/deep/other.cpp": "#error this is not asked for",
    "csrc/cuda/add.cu": '#include "add.h"\n#include <pybind11/pybind11.h>\nvoid bind_g(py::module& m);\nvoid g() { py::gil_scoped_release no_gil; }\n',
    "adder/__init__.py": "from adder.functional import add\nfrom . import _C_cpu\n",
    "adder/functional.py": "import torch\nfrom adder._C_cpu import add\nfrom adder import _C_cpu as ext\n",
    "tests/test_it.py": "",
}


def taken(place: Path, files: dict[str, str], *options: str) -> Result:
    write_tree(place / "old", files)
    return kci("init", "adder", "--from", "old", "-y", *options)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_setup_py_calls_for_each_backend_becomes_a_component(here: Path) -> None:
    made = taken(here, PROJECT, "--run")
    assert made.code == 0, made.stdout + made.stderr
    build = read_kernel(here / "adder").build
    assert build.general.backends == ("cpu", "cuda", "rocm")
    assert build.general.license == "MIT"
    cpu, cuda, rocm = (build.kernel[f"adder_{backend}"] for backend in ("cpu", "cuda", "rocm"))
    assert cpu.src == ("csrc/ops.cpp", "csrc/cpu/add.cpp", "csrc/add.h"), "`csrc/cpu/*.cpp` is not recursive"
    assert cuda.src == ("csrc/ops.cpp", "csrc/cpu/add.cpp", "csrc/cuda/add.cu", "csrc/add.h")
    assert cpu.include == ("csrc",)
    assert cpu.cxx_flags == ("-O3", "-Wall", "-DWITH_X", "-DLEVEL=2", "-UNDEBUG")
    assert cuda.cuda_flags == ("-O3", "--use_fast_math", "-DWITH_X", "-DLEVEL=2", "-UNDEBUG")  # type: ignore[union-attr]
    assert rocm.hip_flags == ("-O3", "-DWITH_X", "-DLEVEL=2", "-UNDEBUG")  # type: ignore[union-attr]


def test_the_sources_register_operators_where_the_module_was(here: Path) -> None:
    assert taken(here, PROJECT, "--run").code == 0
    text = (here / "adder" / "csrc" / "ops.cpp").read_text()
    assert "PYBIND11" not in text
    assert "torch/extension.h" not in text
    assert 'ops.def("add(Tensor a, Tensor b, float alpha=1.0) -> Tensor", &kci_operators::add_op);' in text
    assert "at::Tensor add_op(at::Tensor arg0, at::Tensor arg1, double arg2)" in text
    assert 'ops.def("scale_(Tensor(a!) x) -> ()"' in text
    assert "torch/extension.h" not in (here / "adder" / "csrc" / "add.h").read_text()
    assert (here / "adder" / "csrc" / "cuda" / "add.cu").read_text() == '#include "add.h"\n\n\nvoid g() {  }\n'
    package = here / "adder" / "torch-ext" / "adder"
    assert (package / "__init__.py").read_text() == "from .functional import add\nfrom ._ops import ops as _C_cpu\n"
    assert "from ._ops import ops as _kernel_ops; add = _kernel_ops.add" in (package / "functional.py").read_text()
    assert not (here / "adder" / "csrc" / "unused.h").exists()


def test_a_draft_says_what_is_left_and_check_holds_it(here: Path) -> None:
    made = taken(here, PROJECT, "--run")
    assert "adder is a draft: 3 things left" in made.stdout
    assert "is ready" not in made.stderr
    left = [line for line in (here / "adder" / "build.toml").read_text().splitlines() if line.startswith("# draft: ")]
    assert len(left) == 3
    assert "setup.py:24: the include directory '/opt/other/include' lies outside of the project" in left[0]
    assert "setup.py:24: it links `magma`" in left[1]
    assert "cublas" not in "".join(left)
    assert "tests/test_adder.py" in left[2]
    checked = kci("check", "adder")
    assert checked.code == 1
    assert checked.stdout.count("KCI165") + checked.stderr.count("KCI165") == 3
    build = here / "adder" / "build.toml"
    build.write_text(
        "\n".join(line for line in build.read_text().splitlines() if not line.startswith("# draft: ")) + "\n"
    )
    assert kci("check", "adder").code == 0


def test_nothing_is_run_that_nobody_allowed(here: Path) -> None:
    refused = taken(here, {**PROJECT, "setup.py": "open('/tmp/kci-was-run', 'w')\nopen('was-run', 'w')\n"})
    assert refused.code == 2
    assert "--run" in refused.stderr
    assert not (here / "adder").exists()
    assert not (here / "old" / "was-run").exists()


SEVERAL = """
from setuptools import setup
from torch.utils.cpp_extension import CppExtension, CUDAExtension
setup(ext_modules=[CppExtension("fast.hash.hash_cpu", ["a.cpp"]), CUDAExtension("fast.hash.hash_cuda", ["a.cu"]),
                   CppExtension("fast.sum_cpu", ["b.cpp"])])
"""


def test_several_extensions_are_said_and_chosen(here: Path) -> None:
    files = {"setup.py": SEVERAL, "a.cpp": "", "a.cu": "", "b.cpp": ""}
    refused = taken(here, files, "--run")
    assert refused.code == 2
    assert "--extension hash" in refused.stderr
    assert "--extension sum" in refused.stderr
    assert "--extension all" in refused.stderr
    assert not (here / "adder").exists()
    root = here / "old"
    one = from_setup_py(root, choose("adder"), ["hash"])
    assert "sum" in one.taken[-1]
    assert b"[kernel.adder_cuda]" in one.files["build.toml"]
    assert b"b.cpp" not in one.files["build.toml"]
    every = from_setup_py(root, choose("adder"), ["all"]).files["build.toml"]
    assert b"[kernel.hash_cuda]" in every
    assert b"[kernel.sum_cpu]" in every
    with pytest.raises(UsageError, match="no extension 'else'"):
        from_setup_py(root, choose("adder"), ["else"])


def test_one_name_in_two_files_of_a_backend_is_said(here: Path) -> None:
    bound = 'int f();\nPYBIND11_MODULE(x, m) {\n#ifdef NEVER\nm.def("f", &f);\n#endif\nm.def("f", &f);\n}'
    write_tree(here / "old", {"setup.py": SEVERAL, "a.cpp": bound, "a.cu": bound, "b.cpp": bound})
    left = from_setup_py(here / "old", choose("adder"), ["all"]).left
    assert [item for item in left if "calls its own" in item] == [
        "b.cpp:6: `f` is what a.cpp:6 calls its own: rename it"
    ]


def test_sources_that_two_components_share_are_compiled_once(here: Path) -> None:
    text = SEVERAL.replace('["b.cpp"]', '["b.cpp", "a.cpp"]')
    write_tree(here / "old", {"setup.py": text, "a.cpp": "", "a.cu": "", "b.cpp": ""})
    build = from_setup_py(here / "old", choose("adder"), ["all"]).files["build.toml"]
    assert build.count(b'"a.cpp"') == 1


@pytest.mark.parametrize(
    ("said", "files", "given", "written"),
    [
        ("", {}, "", "choose-a-license"),
        ("license='BSD-3-Clause'", {}, "", "BSD-3-Clause"),
        ("license='MIT License'", {}, "", "MIT"),
        ("license='MIT'", {}, "ISC", "ISC"),
        ("license='a\\nb'", {}, "", "choose-a-license"),
        ("license='AGPL'", {"LICENSE": MIT}, "", "MIT"),
        ("license='AGPL'", {}, "", "choose-a-license"),
        ("classifiers=['License :: OSI Approved :: Apache Software License']", {}, "", "Apache-2.0"),
        ("classifiers=['License :: OSI Approved :: BSD License']", {}, "", "choose-a-license"),
        ("", {"LICENSE": "All rights reserved."}, "", "choose-a-license"),
        ("", {"pyproject.toml": '[project]\nlicense = { text = "Apache-2.0" }\n'}, "", "Apache-2.0"),
    ],
)
def test_a_license_is_never_invented(said: str, files: dict[str, str], given: str, written: str, here: Path) -> None:
    setup = f"from setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\nsetup(ext_modules=[CUDAExtension('a', ['a.cu'])], {said})"
    made = taken(here, {"setup.py": setup, "a.cu": "", **files}, "--run", *(["--license", given] if given else []))
    assert made.code == 0, made.stderr
    assert read_kernel(here / "adder").build.general.license == written
    assert ("KCI166" in made.stderr) == (written == "choose-a-license")


def one_run(setup: str, **files: str) -> running.SetupRuns:
    return run_setup({name: text.encode() for name, text in {"setup.py": setup, **files}.items()})


HEAD = "from setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n"


@pytest.mark.parametrize(
    "harm",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.fork()",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import subprocess; subprocess.run(['touch', 'x'], check=True)",
        "open('/tmp/kci-harm', 'w')",
        "import os; os.remove('/tmp/kci-nothing')",
        "import pathlib; pathlib.Path('../outside').write_text('x')",
        "import os; os.symlink('/etc', '/tmp/kci-link')",
    ],
)
def test_what_means_harm_is_stopped(harm: str) -> None:
    runs = one_run(f"{HEAD}{harm}\nsetup(ext_modules=[CUDAExtension('a', ['a.cu'])])")
    for run in runs.by_backend.values():
        assert run.error
        assert run.line == 3
        assert not run.extensions
    assert not Path("/tmp/kci-harm").exists()
    assert not Path("/tmp/kci-link").is_symlink()


@pytest.mark.skipif(sandbox._bubblewrap() is None, reason="no bubblewrap here")
def test_in_bubblewrap_the_files_of_the_user_are_not_there(tmp_path: Path) -> None:
    secret = Path(__file__).resolve()
    runs = one_run(f"{HEAD}name = open({str(secret)!r}).read()\nsetup(ext_modules=[CUDAExtension(name, ['a.cu'])])")
    assert all("FileNotFoundError" in run.error for run in runs.by_backend.values())
    assert "bubblewrap" in runs.where


def test_without_bubblewrap_it_says_so_and_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: None)
    monkeypatch.setattr(sandbox, "SECONDS", 2)
    runs = one_run("while True: pass")
    assert "without a sandbox" in runs.where
    assert all(run.error for run in runs.by_backend.values())
    runs = one_run("x = 'a' * (1 << 40)")
    assert all("MemoryError" in run.error for run in runs.by_backend.values())


def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    assert all(run.error for run in one_run("import threading\nthreading.Event().wait()").by_backend.values())


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "{",
        '{"extensions": [{"kind": "evil", "name": "a", "sources": [], "line": 1}]}',
        '{"error": 1}',
        "[" * 100_000,
        " " * 9_000_000,
    ],
)
def test_a_forged_answer_is_refused(answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What setup.py could write in place of the record is read as hostile data."""
    text = f"import os, sys\nfor fd in range(3, 64):\n    try:\n        os.write(fd, {answer[:50]!r}.encode() * {max(1, len(answer) // 50)})\n    except OSError: pass\nos._exit(0)\n"
    with pytest.raises(FindingsError, match="cannot be used"):
        one_run(text)


def test_paths_that_lead_out_are_left_out(here: Path) -> None:
    text = f"{HEAD}setup(ext_modules=[CUDAExtension('a', ['../../secret.cu', '/etc/passwd', 'in.cu', 'link.cu'], include_dirs=['../x', 'i', 'vendor/lib'])])"
    write_tree(here / "old", {"setup.py": text, "in.cu": "", "i/a.h": ""})
    (here / "secret.cu").write_text("secret")
    (here / "old" / "link.cu").symlink_to(here / "secret.cu")
    made = kci("init", "adder", "--from", "old", "-y", "--run")
    assert made.code == 0, made.stderr
    assert "secret" not in "".join(path.read_text() for path in (here / "adder" / "csrc").rglob("*") if path.is_file())
    assert "link.cu was not copied: it is a link" in made.stdout
    (component,) = read_kernel(here / "adder").build.kernel.values()
    assert (component.src, component.include) == (("in.cu",), ("i", "vendor/lib"))
    for left in (
        "'../../secret.cu' lies outside",
        "'/etc/passwd' lies outside",
        "'link.cu' was not found",
        "'../x' lies outside",
        "the include directory 'vendor/lib' is empty: fetch it",
    ):
        assert left in made.stdout


def test_generated_sources_come_along() -> None:
    text = f"{HEAD}import pathlib\npathlib.Path('gen').mkdir(exist_ok=True)\npathlib.Path('gen/a.cu').write_text('made')\nsetup(ext_modules=[CUDAExtension('a', ['gen/a.cu'])])"
    runs = one_run(text)
    assert runs.written == {"gen/a.cu": b"made"}
    assert runs.left == ()


def test_what_setup_py_writes_anew_is_said() -> None:
    text = f"{HEAD}open('pkg/info.py', 'w').write('torch = 1')\nopen('a.h', 'w').write('new')\n"
    runs = one_run(text, **{"pkg/info.py": "torch = 0", "a.h": "old"})
    assert runs.written == {"a.h": b"new"}, "what is generated for the compiler is what it would be built from"
    (left,) = runs.left
    assert left.startswith("pkg/info.py: setup.py writes it when it builds")


def test_what_files_ask_for_is_there() -> None:
    text = f"""{HEAD}
import os, sys, torch, subprocess
from packaging.version import Version
from torch.utils import cpp_extension
assert "CppExtension" in dir(cpp_extension) or cpp_extension.CppExtension
assert torch.__version__ >= (2, 1) and torch.__version__ > "1.9" and Version(torch.__version__) >= Version("2.0")
assert torch.version.rocm == torch.version.hip
answer, nothing = subprocess.Popen(["nvcc", "-V"], stdout=subprocess.PIPE, text=True).communicate()
assert "release" in answer and not nothing
assert "release" in subprocess.getoutput("nvcc -V") and "release" in os.popen("nvcc -V").read()
assert os.environ.get("NOTHING") is None and "NOTHING" not in os.environ
import something_that_is_nowhere.below as other
other.call(1)[2].more()
assert int(other.__version__.split(".")[0]) >= 3
class Build(cpp_extension.BuildExtension):
    def run(self): super().run()
class Mine(other.Base): pass
name = "rocm" if torch.version.hip else "cuda" if torch.cuda.is_available() else "cpu"
setup(ext_modules=[CUDAExtension(name, [])], cmdclass={{"build_ext": Build}})
"""
    runs = one_run(text).by_backend
    assert [run.error for run in runs.values()] == ["", "", ""]
    assert [run.extensions[0].name for run in runs.values()] == list(RUN_FOR)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def (", "SyntaxError"),
        ("print(1)", "no extension"),
        ("raise SystemExit('no GPU')", "no GPU"),
        (f"{HEAD}import setuptools\nsetup(ext_modules=[setuptools.Extension('a', ['a.c'])])", "not torch's"),
        (f"{HEAD}setup(ext_modules=[CUDAExtension('a', ['gone.cu'])])", "none of the sources"),
        ("x = " + "(" * 5000, "for cpu it ends"),
        ("\0", "for cpu it ends"),
    ],
)
def test_what_makes_no_extension_is_refused_with_the_reason(text: str, said: str, here: Path) -> None:
    made = taken(here, {"setup.py": text}, "--run")
    assert made.code == 1
    assert said in made.stderr
    assert not (here / "adder").exists()


def test_headers_that_are_not_there_are_said(here: Path) -> None:
    text = (
        "#include <torch/all.h>\n#ifdef WITH_CUDA\n#include <ATen/cuda/CUDAContext.h>\n#endif\n"
        "#ifndef WITH_CUDA\n#include <cuda_runtime.h>\n#endif\n"
    )
    setup = f"{HEAD}from torch.utils.cpp_extension import CppExtension\nimport os\nif os.getenv('FORCE_CUDA') == '1': made = CUDAExtension('a', ['a.cpp', 'b.cu'], define_macros=[('WITH_CUDA', None)])\nelse: made = CppExtension('a', ['a.cpp'])\nsetup(ext_modules=[made])"
    write_tree(
        here / "old",
        {"setup.py": setup, "a.cpp": text, "b.cu": "#include <THC/THCAtomics.cuh>\n#include <THC/THC.h>\n"},
    )
    left = [line for line in from_setup_py(here / "old", choose("adder")).left if "it includes" in line]
    assert left == [
        "a.cpp:6: it includes `cuda_runtime.h`, and a build for the CPU has it not",
        "b.cu:2: it includes `THC/THC.h`, and torch has it no more",
    ]


def test_curated_packages_are_declared_for_the_backends_that_have_them(here: Path) -> None:
    setup = f"{HEAD}setup(packages=['pkg'], ext_modules=[CUDAExtension('pkg._C', ['a.cu'])])"
    write_tree(here / "old", {"setup.py": setup, "a.cu": "", "pkg/__init__.py": "import cutlass.cute\nimport einops\n"})
    made = kci("init", "adder", "--from", "old", "-y", "--run")
    assert made.code == 0, made.stderr
    general = read_kernel(here / "adder").build.general
    assert general.python_depends == ("einops",)
    assert general.cuda is not None
    assert general.cuda.python_depends == ("nvidia-cutlass-dsl",)


CUTLASS = "#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 9\n"


def test_a_copy_of_cutlass_becomes_the_dependency(here: Path) -> None:
    setup = f"{HEAD}setup(ext_modules=[CUDAExtension('a', ['a.cu'], include_dirs=['cutlass/include'])])"
    files = {"setup.py": setup, "a.cu": "#include <cutlass/gemm.h>\n", "cutlass/include/cutlass/version.h": CUTLASS}
    write_tree(here / "old", {**files, "cutlass/include/cutlass/gemm.h": '#include "version.h"\n'})
    text = from_setup_py(here / "old", choose("adder")).files["build.toml"].decode()
    assert 'depends = ["torch", "cutlass_3_9"]' in text
    assert "gemm.h" not in text


@pytest.mark.parametrize(
    "line", [" " * 200_000, "a " * 100_000, "int f(int a,\n" * 20_000, "<" * 100_000, "*/" * 100_000]
)
def test_a_header_that_means_harm_is_read_in_time(line: str, here: Path) -> None:
    """A search that is quadratic in it would take minutes."""
    bind = '#include "a.h"\nint f(int a);\nPYBIND11_MODULE(a, m) { m.def("f", &f); }'
    setup = f"{HEAD}setup(ext_modules=[CUDAExtension('a', ['a.cpp'])])"
    made = taken(here, {"setup.py": setup, "a.cpp": bind, "a.h": f"{line}\n"}, "--run")
    assert made.code == 0, made.stderr
