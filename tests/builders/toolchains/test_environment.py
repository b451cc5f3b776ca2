"""The torch to compile against: made once, found again, compared with the variant's name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from buildkit import (
    CPU,
    CUDA,
    STABLE_CPU,
    Bare,
    copy_kernel,
    program,
    quiet,
    request,
    variant,
    write_tree,
)
from conftest import failure
from kci.builders.native import builder
from kci.builders.toolchains import compilers, environment
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import find_wheel
from kci.builders.toolchains.environment import (
    COMPLETE,
    Environment,
    ensure_runtime,
    kci_environment,
    python_environment,
    read_torch_version,
)
from kci.config.values import Version
from kci.errors import ClientError, MissingToolError
from kci.utils.atomic import locked
from kci.utils.cache import default_cache
from wheels import make_wheel, only_wheels, torch_wheel


def test_the_place_and_the_commands_tell_everything_that_matters(tmp_path: Path) -> None:
    made = kci_environment(tmp_path, "2.13", "cu130")
    assert made.root is not None
    assert made.root.name.startswith(f"torch-2.13.0-cu130-cp3{sys.version_info.minor}-")
    assert made.torch.is_relative_to(made.root)
    assert kci_environment(tmp_path, "2.13", "cpu").root != made.root
    assert not made.complete
    venv, torch, ninja = made.setup()
    assert venv[1:4] == ["venv", "--no-project", "--python"]
    own = "the environment outlives the one that this Python is in"
    assert Path(venv[4]).is_relative_to(sys.base_prefix), own
    assert torch[-3:] == ["--index-url", f"{WHL}/cu130", "torch==2.13.0+cu130"]
    assert "--no-deps" in torch
    assert torch[torch.index("--only-binary") + 1] == ":all:"
    assert ninja[-1].startswith("ninja==")
    # the default index is asked for the release itself
    for flavour, wanted in (("cpu", "torch==2.13.0"), ("cu130", "torch===2.13.0")):
        torch = kci_environment(tmp_path, "2.13", flavour).setup(from_index=False)[1]
        assert torch[-1] == wanted
        assert "--index-url" not in torch


WHL = "https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    ("torch", "flavour", "index", "wheel"),
    [
        ("2.16.0rc1@test", "cu132", f"{WHL}/test/cu132", "2.16.0rc1"),
        ("2.17.0.dev2026@nightly/cu132", "cu132", f"{WHL}/nightly/cu132", "2.17.0.dev2026"),
        ("2.16.0+own@https://wheels.example/x", "cu132", "https://wheels.example/x", "2.16.0+own"),
        ("2.14.0@", "cu132", f"{WHL}/cu132", "2.14.0"),
        ("2.13", "rocm7.2", f"{WHL}/rocm7.2", "2.13.0+rocm7.2"),
    ],
)
def test_the_torch_of_an_overlay_and_of_rocm_comes_from_its_index_alone(
    torch: str, flavour: str, index: str, wheel: str, bare: Bare
) -> None:
    bare.add("uv")
    made = kci_environment(bare.place, torch, flavour)
    assert made.setup()[1][-3:] == ["--index-url", index, f"torch=={wheel}"]
    bare.patch.setattr(environment, "is_reachable", lambda _index: False)
    says = "cannot be reached, and no other index has torch"
    assert index in failure(MissingToolError, says, made.ensure, made.python, quiet).message


@pytest.mark.parametrize(
    ("backend", "compute", "flavour"),
    [("cpu", None, "cpu"), ("cuda", "13.0", "cu130"), ("cuda", "12.6", "cu126"),
        ("rocm", "7.1", "rocm7.1"),
     ("rocm", "7.14", "rocm7.14"), ("xpu", "2025.3.2", "xpu"), ("tpu", None, "cpu"),
     ("cuda", None, "cpu")],
)  # fmt: skip
def test_the_flavours_of_the_wheel_index(backend: str, compute: str | None, flavour: str) -> None:
    assert toolchains().flavour(backend, Version.parse(compute) if compute else None) == flavour


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KCI_CACHE", raising=False)
    for changed, place in (
        ({"HOME": tmp_path, "XDG_CACHE_HOME": tmp_path / "xdg"}, "xdg/kci"),
        ({"XDG_CACHE_HOME": "relative"}, ".cache/kci"),
        ({"KCI_CACHE": tmp_path / "mine"}, "mine"),
        ({"KCI_CACHE": "~/mine"}, "mine"),
    ):
        for name, value in changed.items():
            monkeypatch.setenv(name, str(value))
        assert default_cache() == tmp_path / place


# --- making it, with the real uv ---


def made_by(folder: Path, monkeypatch: pytest.MonkeyPatch, **torch: str) -> None:
    torch_wheel(folder, **torch)
    make_wheel(folder, "ninja", toolchains().ninja.partition("==")[2], {"ninja/__init__.py": ""})
    only_wheels(monkeypatch, folder)


def test_it_is_made_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of what a killed run left behind."""
    made_by(tmp_path / "wheels", monkeypatch)
    said: list[str] = []
    made = kci_environment(tmp_path, "2.13", "cpu")
    assert made.root is not None
    write_tree(made.root, {"bin/python": "half", "junk": ""})
    made.ensure(made.python, said.append)
    assert made.complete
    assert not (made.root / "junk").exists()
    assert read_torch_version(made.torch).release == "2.13.0"
    assert "cannot be reached" in said[0]
    assert not any("cannot test" in line for line in said)
    marker = (made.root / COMPLETE).stat().st_mtime_ns
    own = sys.prefix != sys.base_prefix
    assert not (own and sys.prefix in (made.root / "pyvenv.cfg").read_text())
    assert marker >= max(path.stat().st_mtime_ns for path in made.torch.rglob("*.py"))
    made.ensure(made.python, pytest.fail)
    # One whose Python has gone, as after an upgrade of the system, does not count.
    made.python.unlink()
    assert not made.complete


def test_a_failure_says_what_pip_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    only_wheels(monkeypatch, tmp_path / "wheels")
    made = kci_environment(tmp_path, "2.13", "cpu")
    says = r"cannot install torch 2\.13\.0"
    caught = failure(MissingToolError, says, made.ensure, made.python, quiet)
    assert "torch was not found" in caught.message
    assert made.root is not None
    assert not made.root.exists()


@pytest.mark.slow
@pytest.mark.parametrize("index", ["/srv/wheels", "http://not a name/x", "http://[::1"])
def test_an_index_that_is_no_address_cannot_be_reached(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    assert not environment.is_reachable(index)
    failure(MissingToolError, "does not answer", find_wheel, "torch", "2.13.0", "x86_64", index)


@pytest.mark.parametrize(
    ("flavour", "release", "toolkit", "right"),
    [
        ("cu130", "2.13.0", "cuda = '13.0'", True),
        ("cu130", "2.13.0+cu126", "cuda = '12.6'", False),
        ("rocm7.2", "2.13.0+rocm7.2", "hip: object = '7.1.25424-4179531dcd'", False),
        ("xpu", "2.13.0+xpu", "", True),
        ("xpu", "2.13.0+cpu", "", False),
    ],
)
def test_a_torch_of_another_toolkit_is_not_kept(
    bare: Bare, flavour: str, release: str, toolkit: str, right: bool
) -> None:
    bare.add("uv")
    made = kci_environment(bare.place, "2.13", flavour)
    version = {"version.py": f"__version__ = {release!r}\n{toolkit}\n"}
    bare.patch.setattr(environment, "install", lambda *_: write_tree(made.torch, version))
    bare.patch.setattr(environment, "is_reachable", lambda _index: True)
    if right:
        made.ensure(made.python, quiet)
    else:
        says = f"the index has torch .* not for {flavour}"
        failure(MissingToolError, says, made.ensure, made.python, quiet)
    assert made.root is not None
    assert made.root.exists() is right


def test_no_index_is_asked_for_what_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package in place of torch, such as that of tvm-ffi, comes from where pip looks."""
    monkeypatch.setattr(environment, "is_reachable", lambda _url: pytest.fail("it was asked"))
    monkeypatch.setattr(environment, "base_python", lambda: "/nowhere/python3")
    made = kci_environment(tmp_path, "2.13", "cpu")
    named = msgspec.structs.replace(made, requirement="apache-tvm-ffi==0.1.0")
    failure(MissingToolError, "", named.fetch, named.python, tmp_path, pytest.fail)


def test_a_cache_that_cannot_be_written_is_told_with_what_to_do() -> None:
    asked = kci_environment(Path("/proc/no"), "2.13", "cpu")
    caught = failure(ClientError, "cannot write /proc/no", asked.ensure, asked.python, quiet)
    assert "KCI_CACHE" in caught.hint


def test_two_processes_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_by(tmp_path / "wheels", monkeypatch)
    code = (
        "import sys; from pathlib import Path; from kci.builders.toolchains import environment\n"
        "from kci.builders.toolchains.environment import kci_environment\n"
        "asked = kci_environment(Path(sys.argv[1]), '2.13', 'cpu')\n"
        "asked.ensure(asked.python, lambda line: print(line, flush=True))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = kci_environment(tmp_path, "2.13", "cpu").root
    assert root is not None
    with locked(root):  # until both of them have asked for it
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in both:
            assert process.stdout is not None
            assert "waiting for another kci" in process.stdout.readline()
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "".join(said).count("installing torch") == 1


@pytest.mark.slow
def test_that_a_build_cannot_be_tested_is_said_when_torch_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's default index may have torch for CUDA only, whose libraries are then not there."""
    made_by(tmp_path / "wheels", monkeypatch, cuda="13.0")
    said: list[str] = []
    made = kci_environment(tmp_path, "2.13", "cpu")
    made.ensure(made.python, said.append)
    (told,) = [line for line in said if line.startswith("warning: ")]
    says = "is for CUDA 13.0: `kci run` builds with it, and `kci test` cannot import it"
    assert f"torch 2.13.0 {says}" in told
    assert "KCI_TORCH_INDEX" in told


def test_a_torch_for_gpus_is_taken_if_somebody_has_brought_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not, that is told before anything is installed."""
    asked = kci_environment(tmp_path, "2.13", "cpu")
    assert asked.root is not None
    write_tree(asked.root, {COMPLETE: "", "bin/python": ""})
    write_tree(asked.torch, {"version.py": version_text("2.13.0+cu130", "13.0")})
    monkeypatch.setattr(environment, "install", lambda *_: None)
    program(asked.python.parent, "python", "exit 0")
    assert ensure_runtime("2.13", cache=tmp_path, log=quiet) == asked.python
    monkeypatch.setattr(environment, "install", lambda *_: pytest.fail("something is installed"))
    program(asked.python.parent, "python", "exit 1")
    says = "cannot import it without the libraries of CUDA"
    caught = failure(MissingToolError, says, ensure_runtime, "2.13", cache=tmp_path, log=quiet)
    assert f"rm -r {asked.root}" in caught.hint
    assert "PIP_FIND_LINKS" in caught.hint


# --- what is really there ---


OPTIONAL = "from typing import Optional\ncuda: Optional[str] ="


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"__version__ = '2.13.0+cpu'\n{OPTIONAL} None\n", ("2.13.0+cpu", None)),
        (
            f"__version__ = '2.14.1+cu130'\n{OPTIONAL} '13.0'\nhip = None\n",
            ("2.14.1+cu130", "13.0"),
        ),
        ("__version__ = '2.9.0a0'\ncuda = '12.6'\n", ("2.9.0a0", "12.6")),
        *((text, None) for text in ("", "cuda = '13.0'\n", "__version__ =", "\x00", None)),
    ],
)
def test_version_files(
    tmp_path: Path, text: str | None, said: tuple[str, str | None] | None
) -> None:
    torch = at(tmp_path, text).torch
    if said is None:
        failure(MissingToolError, r"version\.py", read_torch_version, torch)
    else:
        found = read_torch_version(torch)
        assert (found.release, found.toolkits.get("cuda")) == said


def at(tmp_path: Path, text: str | None) -> Environment:
    """An environment of the user's own, with nothing but a version file."""
    (tmp_path / "torch").mkdir(exist_ok=True)
    if text is not None:
        (tmp_path / "torch/version.py").write_text(text)
    return Environment(Path(sys.executable), tmp_path / "torch", tmp_path / "ninja", root=None)


def version_text(release: str, cuda: str | None = None) -> str:
    return f"__version__ = {release!r}\ncuda = {cuda!r}\n"


@pytest.mark.parametrize(
    ("name", "release", "says"),
    [
        (CPU, "2.12.1+cpu", "needs torch 2.13, and this is 2.12.1"),
        (CUDA, "2.13.0+cpu", "is for the CPU"),
        (CUDA, "2.13.0+cu126", "is for CUDA 12.6"),
        (STABLE_CPU, "2.10.0", "older than the stable ABI 2.11"),
    ],
)
def test_a_torch_that_is_not_the_variants_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, release: str, says: str
) -> None:
    kernel = copy_kernel("twice", tmp_path)
    asked = request(kernel, name, tmp_path, isolation=False, variant=variant(name))
    own = at(tmp_path, version_text(release, "12.6" if "cu126" in release else None))
    monkeypatch.setattr(compilers, "python_environment", lambda: own)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    failure(MissingToolError, says, builder.build, asked, quiet)
    assert not asked.output.exists()


def test_no_isolation_needs_torch_and_ninja(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    hidden = {"torch"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    failure(MissingToolError, "torch is not installed", python_environment)
    write_tree(tmp_path, {"torch/__init__.py": ""})
    hidden.clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    failure(MissingToolError, "ninja is not installed", python_environment)
    (tmp_path / "ninja").write_text("")
    os.chmod(tmp_path / "ninja", 0o755)  # noqa: PTH101  - which asks the os module
    assert python_environment().torch == tmp_path / "torch"
