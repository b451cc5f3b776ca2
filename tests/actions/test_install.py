"""What the actions install: the lock, by uv or by pip, and kci as it lies in the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from act.harness import copy_checkout
from conftest import ROOT, load_script

LOCK = ROOT / "actions" / "requirements.txt"
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def script(name: str, place: Path, text: str) -> Path:
    place.mkdir(exist_ok=True)
    program = place / name
    program.write_text(f"#!/usr/bin/env bash\n{text}\n")
    program.chmod(0o755)
    return program


def install(checkout: Path, place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    command = [sys.executable, "-I", str(checkout / "actions" / "install.py"), str(place)]
    return subprocess.run(command, env=env | more, capture_output=True, text=True, check=False)


def test_the_lock_is_that_of_the_dependencies() -> None:
    text = LOCK.read_text(encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"# dependencies: {load_script('lock_actions').digest(pyproject)}\n" in text, "run bin/lock_actions.py"
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))
    for wanted in map(Requirement, tomllib.loads(pyproject)["project"]["dependencies"]):
        assert wanted.specifier.contains(locked[wanted.name]), wanted


def test_every_package_of_the_lock_has_a_version_and_hashes() -> None:
    text = "\n".join(line for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) >= 10
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[0-9.]+( ; [^\\]+)? \\\n    --hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.network
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_environment_has_the_lock_and_kci_from_the_checkout(tmp_path: Path, tool: str) -> None:
    if tool == "uv" and UV is None:
        pytest.skip("uv is not installed")
    checkout = copy_checkout(tmp_path / "checkout")
    path = f"{Path(UV).parent}:{os.environ['PATH']}" if tool == "uv" and UV else "/usr/bin:/bin"
    # What would send the packages elsewhere is not passed on.
    done = install(checkout, tmp_path / "kci", PATH=path, PIP_TARGET="/nowhere", PIP_DRY_RUN="1", UV_CONSTRAINT="/none")
    assert done.returncode == 0, done.stdout + done.stderr
    python = tmp_path / "kci" / "bin" / "python"
    code = (
        "import kci; from importlib.metadata import version; from kci.builders.running_wheel import running_wheel;"
        "wheel = running_wheel(); print(kci.__file__, version('click'), version('kci'), wheel is not None)"
    )
    shown = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.split()
    click = re.search(r"^click==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert click
    assert shown[0] == str(checkout / "src" / "kci" / "__init__.py")
    assert shown[1:] == [click[1], "0.1.0", "True"]
    (metadata,) = (tmp_path / "kci").glob("lib/*/site-packages/kci-*.dist-info/METADATA")
    assert f"Requires-Dist: click=={click[1]}\n" in metadata.read_text(), "a container installs what is locked"
    rendered = subprocess.run(
        [python, "-I", "-m", "kci", "render", "--diff", "--output", ROOT, ROOT / "examples"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rendered.returncode == 0, rendered.stderr


@pytest.mark.network
def test_a_package_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    lock = checkout / "actions" / "requirements.txt"
    lock.write_text(re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", lock.read_text()))
    done = install(checkout, tmp_path / "kci", PATH="/usr/bin:/bin")
    assert done.returncode == 3
    assert "::error::what kci depends on cannot be installed" in done.stdout
    assert not (tmp_path / "kci" / "complete").exists()


def test_uv_is_told_to_resolve_nothing(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script("uv", tmp_path / "bin", f'printf "%s\\n" "$PWD" "$@" > {seen}')
    checkout = copy_checkout(tmp_path / "checkout")
    done = install(checkout, tmp_path / "kci", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    where, *words = seen.read_text().splitlines()
    assert where == str(tmp_path / "kci"), "not in the repository, whose pyproject.toml uv would read"
    assert words[:2] == ["pip", "install"]
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(words)


def run_sh(checkout: Path, temp: Path, path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    for name in ("bash", "dirname", "cksum", "tr", "env"):
        (path / name).symlink_to(str(shutil.which(name)))
    command = ["bash", str(checkout / "actions" / "run.sh"), "plan"]
    env = {"PATH": str(path), "RUNNER_TEMP": str(temp), **more}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_runner_without_python(tmp_path: Path) -> None:
    """The actions put setup-python before it; this is for who calls the script some other way."""
    script("python3", tmp_path / "bin", "exit 1")
    done = run_sh(ROOT, tmp_path, tmp_path / "bin")
    assert done.returncode == 3
    assert "kci needs Python 3.11 or newer" in done.stdout
    assert "actions/setup-python" in done.stdout


def test_the_python_that_the_action_found_is_the_one(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    python = script("own", tmp_path / "bin", f'echo "$@" > {seen}; exit 3')
    assert run_sh(ROOT, tmp_path, tmp_path / "bin", KCI_PYTHON=str(python)).returncode == 3
    assert seen.read_text().startswith(f"-I {ROOT}/actions/install.py {tmp_path}/kci-")


def test_windows_has_its_python_elsewhere_in_the_environment(tmp_path: Path) -> None:
    number = subprocess.run(["cksum"], input=str(ROOT), capture_output=True, text=True, check=True).stdout
    environment = tmp_path / f"kci-{re.sub(r'[^0-9]', '', number)}"
    environment.mkdir()
    script("python.exe", environment / "Scripts", 'echo "ran $*"')
    (environment / "complete").touch()
    (tmp_path / "bin").mkdir()
    done = run_sh(ROOT, tmp_path, tmp_path / "bin")
    assert done.stdout == f"ran -E -u {ROOT}/actions/plan.py\n"


@pytest.mark.parametrize("action", ["", "plan/", "merge/", "gate/"])
def test_every_action_brings_python_where_there_is_none(action: str) -> None:
    text = (ROOT / f"{action}action.yml").read_text(encoding="utf-8")
    setup, run = text.index("uses: actions/setup-python@"), text.index("actions/run.sh")
    assert text.index("actions/find_python.sh") < setup < run
    assert "if: ${{ steps.python.outputs.found == '' }}" in text
    assert "KCI_PYTHON: ${{ steps.setup.outputs.python-path || steps.python.outputs.found }}" in text
