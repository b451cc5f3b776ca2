"""A setup.py is run with real setuptools and torch: what it makes is seen, and it reaches nothing
of others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import quiet, runtime
from cli.runner import ended, kci_process
from conftest import failure
from kci.config.model import CudaComponent
from kci.config.reader import read_kernel
from kci.errors import FindingsError
from kci.scaffold import run_setup as running
from kci.scaffold.run_setup import SetupRun, SetupRuns, run_setup
from kci.utils.cache import default_cache

pytestmark = pytest.mark.torch

HEAD = """from setuptools import setup
from torch.utils.cpp_extension import CppExtension, CUDAExtension, BuildExtension
"""
NO_BUBBLEWRAP = running._bubblewrap() is None


@pytest.fixture(autouse=True)
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch that the other tests have."""
    python = runtime()
    monkeypatch.setattr(running, "_torch", lambda *_: (python, "2.13"))


@pytest.fixture
def for_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run for CUDA is left out: each imports torch."""
    real = running._run
    left_out = SetupRun(error="left out")
    monkeypatch.setattr(
        running, "_run", lambda *given: real(*given) if given[1] == "cpu" else left_out
    )


def one_run(setup: str, **files: str) -> SetupRuns:
    project = {name: text.encode() for name, text in {"setup.py": setup, **files}.items()}
    return run_setup(project, default_cache(), quiet)


def test_the_extensions_are_those_of_setuptools_and_torch() -> None:
    text = f"""{HEAD}
import os, glob
print("hello")
made = [CppExtension("pkg._C_cpu", glob.glob("csrc/*.cpp"), define_macros=[("X", None)])]
if os.getenv("FORCE_CUDA") == "1":
    flags = {{"cxx": ["-O3"], "nvcc": ["-arch=sm_90"]}}
    made.append(CUDAExtension("pkg._C_cuda", ["csrc/a.cpp"], extra_compile_args=flags))
setup(name="pkg", license="MIT", packages=["pkg"], setup_requires=["not-there"], ext_modules=made,
      cmdclass={{"build_ext": BuildExtension}})
"""
    runs = one_run(text, **{"csrc/a.cpp": "", "pkg/__init__.py": ""})
    cpu, cuda = runs.by_backend["cpu"], runs.by_backend["cuda"]
    assert (cpu.error, cuda.error) == ("", "")
    assert [(item.name, item.backend) for item in cpu.extensions] == [("pkg._C_cpu", "cpu")]
    both = [("pkg._C_cpu", "cpu"), ("pkg._C_cuda", "cuda")]
    assert [(item.name, item.backend) for item in cuda.extensions] == both
    assert (cpu.license, cpu.packages) == ("MIT", ("pkg",))
    (first,) = cpu.extensions
    assert (first.sources, first.define_macros) == (("csrc/a.cpp",), (("X", None),))
    assert all(runs.inside(folder) is None for folder in first.include_dirs)
    assert cuda.extensions[1].flags("nvcc") == ("-arch=sm_90",)


@pytest.mark.usefixtures("for_cpu")
def test_what_pyproject_says_is_read() -> None:
    project = (
        '[project]\nname = "a"\nversion = "1"\nlicense = { text = "ISC" }\n[tool.setuptools]\n'
        'packages = ["b"]\n'
    )
    setup = "from setuptools import setup\nsetup()"
    run = one_run(setup, **{"pyproject.toml": project}).by_backend["cpu"]
    assert (run.error, run.license, run.packages, run.extensions) == ("", "ISC", ("b",), ())


@pytest.mark.usefixtures("for_cpu")
@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("\ndef (", "SyntaxError", 2),
        ("print(1)", "it does not call setup()", 0),
        ("raise SystemExit('no GPU')", "it exits with no GPU", 1),
        ("import os\nos._exit(3)", "its process ended early, with 3", 0),
    ],
)
def test_how_it_ends_is_said(text: str, error: str, line: int) -> None:
    run = one_run(text).by_backend["cpu"]
    assert (error in run.error, run.line) == (True, line)


HARM = f"""{HEAD}
import os, pathlib, socket, subprocess, sys
said = {{}}
def tried(name, act):
    try:
        act()
        said[name] = "done"
    except Exception as error:
        said[name] = type(error).__name__
pathlib.Path("made.h").write_text("in its own copy")
tried("network", lambda: socket.create_connection(("1.1.1.1", 53), 2))
tried("secret", lambda: open(SECRET).read())
tried("outside", lambda: open("../outside", "w"))
tried("python", lambda: open(os.path.join(sys.prefix, "kci-harm"), "w"))
tried("temporary", lambda: open("/tmp/kci-harm", "w"))
tried("home", lambda: open(os.path.expanduser("~/kci-harm"), "w"))
setup(ext_modules=[CppExtension(f"{{key}}={{value}}", []) for key, value in said.items()])
"""


@pytest.mark.usefixtures("for_cpu")
@pytest.mark.skipif(NO_BUBBLEWRAP, reason="no bubblewrap here")
def test_in_bubblewrap_it_reaches_nothing_of_the_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    runs = one_run(HARM.replace("SECRET", repr(str(secret))))
    assert "bubblewrap" in runs.where
    cpu = runs.by_backend["cpu"]
    assert cpu.error == ""
    said = dict(item.name.split("=") for item in cpu.extensions)
    assert said.pop("temporary") == "done", "it has a /tmp of its own"
    assert said.pop("secret") == "FileNotFoundError"
    assert set(said) == {"network", "outside", "python", "home"}
    assert set(said.values()) == {"OSError"}
    assert not Path("/tmp/kci-harm").exists()


@pytest.mark.usefixtures("for_cpu")
def test_without_bubblewrap_it_says_so_and_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_bubblewrap", lambda: None)
    runs = one_run("x = 'a' * (1 << 40)")
    assert "without a sandbox" in runs.where
    assert "MemoryError" in runs.by_backend["cpu"].error


@pytest.mark.usefixtures("for_cpu")
def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SECONDS", 2)
    runs = one_run("import subprocess\nsubprocess.run(['sleep', '600'])")
    assert "longer than kci waits" in runs.by_backend["cpu"].error


@pytest.mark.usefixtures("for_cpu")
def test_an_answer_that_is_a_link_is_not_followed() -> None:
    link = "os.symlink('/etc/passwd', os.path.abspath('../answers/cpu.json'))"
    failure(FindingsError, "cannot be used", one_run, f"import os\n{link}\nos._exit(0)")


def test_a_project_is_taken_over(tmp_path: Path, torch_cache: Path) -> None:
    old = tmp_path / "old"
    (old / "csrc").mkdir(parents=True)
    (old / "setup.py").write_text(f"""{HEAD}
flags = {{"cxx": ["-O3"], "nvcc": ["-O3", "-gencode", "arch=compute_90,code=sm_90"]}}
setup(name="add", ext_modules=[CUDAExtension("add_cuda", ["csrc/a.cpp"], extra_compile_args=flags)])
""")
    (old / "csrc" / "a.cpp").write_text('PYBIND11_MODULE(a, m) { m.def("add", &add); }\n')
    command = ("init", "add", "--from", "old", "--run", "-y")
    said = ended(kci_process(*command, cwd=tmp_path, KCI_CACHE=str(torch_cache)), 0)
    lacking = "OSError: CUDA_HOME environment variable is not set"
    for words in (
        "taken over: add_cuda: 1 source, 0 headers",
        f"nothing for cpu: setup.py:5 ends with {lacking}",
        "csrc/a.cpp:1: bind these in torch-ext/torch_binding.cpp: add",
    ):
        assert words in said
    (component,) = read_kernel(tmp_path / "add").build.kernel.values()
    assert isinstance(component, CudaComponent)
    assert (component.src, component.cuda_capabilities) == (("csrc/a.cpp",), ("9.0",))
