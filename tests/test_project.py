"""What the project promises of itself: direction of imports, a wheel that is whole, modules of a readable size."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from conftest import ROOT

MAX_LINES = 420


def test_no_module_outgrows_a_reader() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in sorted((ROOT / "src").rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


@pytest.mark.parametrize(
    ("room", "statement", "kept"),
    [
        ("config", "from kci.matrix.names import Kind", False),
        ("matrix", "import kci.plan.legs", False),
        ("builders", "import kci.tree.digest", False),
        ("tree", "import kci.verify", False),
        ("plan", "import kci.cli", False),
        ("verify", "import kci.tree.digest", True),
    ],
)
def test_the_import_contract_fails_against_the_flow(tmp_path: Path, room: str, statement: str, kept: bool) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src" / "kci" / room / "planted.py").write_text(f'"""Planted."""\n\n{statement}\n')
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == kept, done.stdout + done.stderr
    if not kept:
        assert f"kci.{room}.planted" in done.stdout


def installed_from_a_wheel(tmp_path: Path) -> tuple[Path, Path]:
    """A wheel built from a clean checkout and installed into an empty environment: its `kci`, and the checkout."""
    clone = tmp_path / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    outside(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, clone, cwd=tmp_path)
    (wheel,) = tmp_path.glob("kci-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    outside(tmp_path / "empty" / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    return tmp_path / "empty" / "bin" / "kci", clone


def outside(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command says that knows nothing of this checkout."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.network
def test_the_wheel_alone_does_what_the_checkout_does(tmp_path: Path) -> None:
    """Built from a clean checkout, installed into an empty environment, run from elsewhere."""
    kci, clone = installed_from_a_wheel(tmp_path)
    kernel = tmp_path / "repo" / "swiglu"
    shutil.copytree(clone / "examples" / "swiglu", kernel)
    shutil.rmtree(clone)

    def run(*command: str | Path, cwd: Path = tmp_path) -> str:
        return outside(*command, cwd=cwd)

    assert run(kci, "matrix", kernel, "--format", "names").split() == ["torch-cpu", "torch-cuda", "torch-rocm"]
    run(kci, "render", kernel, "--output", tmp_path / "repo")
    assert "kci/build@v1" in (tmp_path / "repo" / ".github" / "workflows" / "kci.yml").read_text()
    assert run(kci, "run", kernel, "--cache", tmp_path / "cache").count("built") == 3
    run(kci, "verify", kernel / "build")
    for command in ("plan", "check", "explain", "catalog show", "build . --variant torch-cpu", "compat coverage"):
        run(kci, *command.split(), cwd=kernel)
    assert "<html" in run(kci, "matrix", kernel, "--format", "html")


@pytest.mark.network
@pytest.mark.torch
def test_a_newcomer_gets_from_the_wheel_to_a_tested_kernel(tmp_path: Path, torch_cache: Path) -> None:
    """With nothing but the wheel: a new kernel, built, loaded by the kernels library, tested, with its workflows."""
    kci, clone = installed_from_a_wheel(tmp_path)
    shutil.rmtree(clone)
    place = tmp_path / "first-kernel"

    def run(*command: str) -> str:
        return outside(kci, *command, cwd=place, KCI_CACHE=str(torch_cache))

    outside(kci, "init", "first-kernel", "--backend", "cpu", "-y", cwd=tmp_path)
    assert run("check").startswith("2 files checked: 0 errors, 0 warnings")
    assert "1 variant in build" in run("run", "--where", "torch == 2.13", "--catalog", "2026-08-20")
    assert "passed" in run("test", "--torch", "2.13")
    run("verify", "build")
    assert "unchanged" in run("render")
    assert "This machine" in run("doctor")


def test_no_test_sleeps_or_asserts_seconds() -> None:
    """A busy machine would fail it. Wait for a line, a file or a process; growth.py compares costs without a clock.

    test_random_kills.py measures how long a run takes, to choose moments in it, and expects nothing of them.
    """
    clock = re.compile(r"\b(sleep|perf_counter|monotonic|process_time|thread_time)(_ns)?\(")
    for file in sorted((ROOT / "tests").rglob("*.py")):
        if file.name not in ("growth.py", "test_random_kills.py"):
            assert not clock.search(file.read_text(encoding="utf-8")), file
