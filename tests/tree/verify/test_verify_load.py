"""Loading with a loader: what runs, under which limits, and what is said of variants for other machines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from cli.runner import kci
from kci.diagnostics import Diagnostic
from kci.errors import MissingToolError
from kci.matrix.variants import parse_variant_name
from kci.tree.verify.load_rules import LoaderEnvironment, probe, why_incompatible
from kci.tree.verify.requirements import verify_loading
from variants import CPU, STABLE, make_variant

LOADER = """
import importlib.util, json, sys
def get_local_kernel(path):
    name = json.loads((path / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, path / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
"""


TORCH = '__version__ = "2.13.0+cpu"\nclass version: cuda = None\ndef get_num_threads(): return 1\n'


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with a loader and a torch that are stand-ins; it runs isolated, so they come by a .pth-like wrapper."""
    site = tmp_path / "site"
    for package, text in (("kernels", LOADER), ("torch", TORCH)):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text(text)
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f"#!/bin/sh\nshift 3\nscript=\"import sys; sys.path.insert(0, '{site}')\n$1\"\nshift\n"
        f'exec {shlex.quote(sys.executable)} -I -B -c "$script" "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def loading(path: Path, python: Path) -> list[Diagnostic]:
    return verify_loading(str(path), python)


@pytest.mark.rule("KCI782", "KCI783", triggers=False)
def test_a_variant_that_loads(tmp_path: Path, python: Path) -> None:
    variant = make_variant(
        tmp_path / "build", "torch-cpu", files={"__init__.py": "from .a import x\n", "a.py": "x = 1\n"}
    )
    assert loading(tmp_path / "build", python) == []
    assert not list(variant.rglob("*.pyc"))


@pytest.mark.rule("KCI782", triggers=True)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('broken')", "ValueError: broken"),
        ("from .gone import x", "ModuleNotFoundError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "exit status -11"),
    ],
)
def test_a_variant_that_does_not_load(tmp_path: Path, python: Path, text: str, said: str) -> None:
    (found,) = loading(make_variant(tmp_path, "torch-cpu", files={"__init__.py": text}), python)
    assert (found.rule, found.severity) == ("KCI782", "error")
    assert said in found.message


def test_the_process_sees_no_secrets_and_nothing_of_the_user(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    text = (
        "import os, resource\n"
        "assert 'HF_TOKEN' not in os.environ\n"
        "assert 'kci-load-' in os.getcwd() and os.environ['HOME'] == os.getcwd()\n"
        "assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
        "assert resource.getrlimit(resource.RLIMIT_CPU)[0] == 300\n"
    )
    assert loading(make_variant(tmp_path, "torch-cpu", files={"__init__.py": text}), python) == []


@pytest.mark.rule("KCI783", triggers=True)
def test_variants_for_other_machines_say_which(tmp_path: Path, python: Path) -> None:
    (found,) = loading(make_variant(tmp_path, "torch212-cxx11-cpu-aarch64-linux"), python)
    assert (found.rule, found.severity) == ("KCI783", "info")
    assert "it needs a aarch64-linux machine and torch 2.12; this is torch 2.13.0 for cpu" in found.message


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("torch-cpu", True),
        ("torch-universal", True),
        ("torch-rocm", False),
        ("torch-cuda", True),
        ("torch213-cxx11-cu130-x86_64-linux", True),
        ("torch213-cxx11-cu132-x86_64-linux", False),
        ("torch213-cxx11-cu126-x86_64-linux", False),
        ("torch212-cxx11-cu130-x86_64-linux", False),
        ("torch-stable-abi211-cu130-x86_64-linux", True),
        ("torch-stable-abi214-cu130-x86_64-linux", False),
    ],
)
def test_which_environment_can_load_a_variant(monkeypatch: pytest.MonkeyPatch, name: str, fits: bool) -> None:
    monkeypatch.setattr("kci.tree.verify.load_rules.this_system", lambda: "x86_64-linux")
    environment = LoaderEnvironment(torch="2.13.1", cuda="13.1", backend="cuda")
    assert (why_incompatible(parse_variant_name(name), environment) == "") is fits


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("torch215-cxx11-rocm71-x86_64-linux", True),
        ("torch-rocm", True),
        ("torch215-cxx11-rocm72-x86_64-linux", False),
        ("torch214-cxx11-rocm71-x86_64-linux", False),
        ("torch-stable-abi215-rocm71-x86_64-linux", True),
    ],
)
def test_versions_may_have_more_than_numbers(monkeypatch: pytest.MonkeyPatch, name: str, fits: bool) -> None:
    """Builds of the night, and those of AMD and NVIDIA."""
    monkeypatch.setattr("kci.tree.verify.load_rules.this_system", lambda: "x86_64-linux")
    for torch in ("2.15.0.dev20261020", "2.15.0a0"):
        environment = LoaderEnvironment(torch=torch, rocm="7.1.25424-4179531dcd", backend="rocm")
        assert (why_incompatible(parse_variant_name(name), environment) == "") is fits


def test_a_python_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.tree.verify.load_rules._SECONDS", 0.1)
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(MissingToolError, match="does not answer"):
        probe(tmp_path / "python")


def test_a_python_that_cannot_load_kernels(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="does not answer"):
        probe(tmp_path / "none")
    (tmp_path / "python").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(MissingToolError, match="does not answer"):
        probe(tmp_path / "python")


def test_the_command_runs_nothing_unless_asked(tmp_path: Path, python: Path) -> None:
    tree = tmp_path / "build"
    make_variant(tree, "torch-cpu", files={"__init__.py": f"open({str(tmp_path / 'ran')!r}, 'w')\nraise OSError(5)\n"})
    kci("verify", tree)
    assert not (tmp_path / "ran").exists()
    done = kci("verify", tree, "--load", "--python", python)
    assert (done.code, "KCI782" in done.stderr) == (1, True)
    assert (tmp_path / "ran").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_the_real_loader(tmp_path: Path, torch_python: Path) -> None:
    make_variant(tmp_path / "build", "torch-cpu", files={"__init__.py": "import torch\n\ndef f(): ...\n"})
    make_variant(tmp_path / "build", STABLE.replace("211", "299"))
    assert [item.rule for item in loading(tmp_path / "build", torch_python)] == ["KCI783"]
    make_variant(tmp_path / "bad", CPU, files={"__init__.py": "from . import _gated_norm_cpu_1a2b3c4\n"})
    assert [item.rule for item in loading(tmp_path / "bad", torch_python)] == ["KCI782"]
