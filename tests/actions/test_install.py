"""What the actions install: the lock, by uv or by pip, and kci as it lies in the checkout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from buildkit import only_these, output_of, program, write_tree
from checkout import copy_checkout
from conftest import ROOT, load_script

LOCK = ROOT / "actions" / "requirements.txt"
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def install(checkout: Path, place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    own = ("PYTHONPATH", "PYTHONHOME")
    env = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-I", str(checkout / "actions" / "install.py"), str(place)]
    return subprocess.run(command, env=env | more, capture_output=True, text=True, check=False)


SCRIPT = load_script("lock_actions")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
NAMES = sorted(SCRIPT.LOCKS)


def packages(name: str) -> dict[str, str]:
    """The versions in a lock by package."""
    text = (LOCK.parent / name).read_text(encoding="utf-8")
    found = re.findall(r"^([a-z0-9-]+)==([^\s;]+)", text, re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


def stale(name: str, pyproject: str) -> list[str]:
    """What a lock does not have of what pyproject.toml asks for."""
    extras = SCRIPT.LOCKS[name]
    there = packages(name) | packages("requirements.txt")
    found = []
    for wanted in map(Requirement, SCRIPT.dependencies(pyproject, extras)):
        version = there.get(canonicalize_name(wanted.name))
        if version is None or not wanted.specifier.contains(version):
            found.append(f"{wanted}, locked is {version}")
    made_from = f"# dependencies: {SCRIPT.digest(pyproject, extras)}\n"
    if made_from not in (LOCK.parent / name).read_text(encoding="utf-8"):
        found.append("it was made from other dependencies")
    return found


def test_every_lock_is_for_an_action_and_is_held_to_something() -> None:
    assert sorted(path.name for path in LOCK.parent.glob("*.txt")) == NAMES
    named = {Path(name).stem.removeprefix("requirements-") for name in NAMES} - {"requirements"}
    assert all((ROOT / "src" / "kci" / "actions" / f"{action}.py").is_file() for action in named)


@pytest.mark.parametrize("name", NAMES)
def test_the_lock_is_that_of_the_dependencies(name: str) -> None:
    assert stale(name, PYPROJECT) == [], "run bin/lock_actions.py"


def test_what_one_action_needs_besides_repeats_nothing() -> None:
    """It is installed into the same environment, without a look at what is there."""
    for name in NAMES:
        if name != LOCK.name:
            assert packages(name).keys() & packages(LOCK.name).keys() == set()


@pytest.mark.network
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_environment_has_the_lock_and_kci_from_the_checkout(tmp_path: Path, tool: str) -> None:
    if tool == "uv" and UV is None:
        pytest.skip("uv is not installed")
    checkout = copy_checkout(tmp_path / "checkout")
    path = f"{Path(UV).parent}:{os.environ['PATH']}" if tool == "uv" and UV else "/usr/bin:/bin"
    # What would send the packages elsewhere is not passed on.
    elsewhere = {"PIP_TARGET": "/nowhere", "PIP_DRY_RUN": "1", "UV_CONSTRAINT": "/none"}
    done = install(checkout, tmp_path / "kci", PATH=path, **elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    python = tmp_path / "kci" / "bin" / "python"
    code = (
        "import kci; from importlib.metadata import version as of\n"
        "from pathlib import Path\nfrom kci.builders.process.container import running_wheel\n"
        "from kci.builders.toolchains.compilers import find_compiler_cache as cache\n"
        "print(kci.__file__, of('click'), of('kci'), running_wheel(Path())[0].name, cache())"
    )
    env = os.environ | {"KCI_COMPILER_CACHE": ""}
    shown = output_of(python, "-I", "-c", code, env=env).split()
    click = re.search(r"^click==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert click
    assert shown[0] == str(checkout / "src" / "kci" / "__init__.py")
    assert shown[1:] == [
        click[1],
        "0.1.0",
        "kci-0.1.0-py3-none-any.whl",
        str(tmp_path / "kci" / "bin" / "ccache"),
    ]
    (metadata,) = (tmp_path / "kci").glob("lib/*/site-packages/kci-*.dist-info/METADATA")
    # A container installs what is locked.
    assert f"Requires-Dist: click=={click[1]}\n" in metadata.read_text()
    (installer,) = metadata.parents[1].glob("click-*.dist-info/INSTALLER")
    assert installer.read_text().strip() == "uv", "pip installs uv alone"
    words = ("render", "--diff", "--output", ROOT, ROOT / "examples")
    output_of(python, "-I", "-m", "kci", *words)


@pytest.mark.network
def test_pip_installs_what_uv_cannot(tmp_path: Path) -> None:
    """Such as where only pip.conf names an index that can be reached."""
    checkout = copy_checkout(tmp_path / "checkout")
    lock = checkout / "actions" / "requirements.txt"
    lock.write_text(SCRIPT.blocks(lock.read_text())["click"])
    write_tree(tmp_path, {"bin/.keep": ""})
    program(tmp_path / "bin", "uv", "exit 2")
    done = install(checkout, tmp_path / "kci", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "kci").glob("lib/*/site-packages/click"))


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
    write_tree(tmp_path, {"bin/.keep": ""})
    program(tmp_path / "bin", "uv", f'printf "%s\\n" "$PWD" "$@" > {seen}')
    checkout = copy_checkout(tmp_path / "checkout")
    done = install(checkout, tmp_path / "kci", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    where, *words = seen.read_text().splitlines()
    # Not in the repository, whose pyproject.toml uv would read.
    assert where == str(tmp_path / "kci")
    assert words[:2] == ["pip", "install"]
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(words)


def found_python(path: Path) -> str:
    bash = str(shutil.which("bash"))
    return output_of(bash, ROOT / "actions" / "find_python.sh", env={"PATH": str(path)}).strip()


def test_the_jobs_own_python_is_asked_first_and_an_older_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version manager has a program for each version, and takes long to say which of them
    it has.
    """
    seen, real = tmp_path / "seen", shlex.quote(sys.executable)
    place = only_these(monkeypatch, tmp_path, "bash")
    new = program(place, "python3.13", f'echo asked > {seen}; exec {real} "$@"')
    own = program(place, "python3", f'exec {real} "$@"')
    assert found_python(place) == str(own)
    assert not seen.exists()
    older = "import sys; sys.version_info = (3, 10); exec(sys.argv[-1])"
    for reason in ("exit 1", f"exec {real} -c '{older}' \"$@\""):
        program(place, "python3", reason)
        assert found_python(place) == str(new)


@pytest.mark.parametrize(
    "action",
    [
        "action.yml",
        *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/action.yml")),
    ],
)
def test_every_action_brings_python_where_there_is_none(action: str) -> None:
    text = (ROOT / action).read_text(encoding="utf-8")
    setup, run = text.index("uses: actions/setup-python@"), text.index("actions/run.sh")
    assert text.index("actions/find_python.sh") < setup < run
    assert "if: ${{ steps.python.outputs.found == '' }}" in text
    found = "${{ steps.setup.outputs.python-path || steps.python.outputs.found }}"
    assert f"KCI_PYTHON: {found}" in text
