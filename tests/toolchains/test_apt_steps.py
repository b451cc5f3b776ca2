"""The steps that install a cross compiler and qemu on a runner, of the actions and of GitLab, run in Debian 12."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, read_yaml
from kci.catalog.runners import default_runners
from podmankit import IMAGE, podman_for_tests
from render.test_gitlab import crossed_jobs

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]

PACKAGE = default_runners().cross["aarch64-linux"].package
BARE = "apt-get purge -qq -y '*-aarch64-linux-gnu*' '*-arm64-cross' >/dev/null; ! command -v aarch64-linux-gnu-g++"
COMPILES = """
printf '#include <vector>\\nint main() { return std::vector<int>{1, 2}[0] - 1; }\\n' > /tmp/one.cpp
aarch64-linux-gnu-g++ -static /tmp/one.cpp -o /tmp/one
"""
RUNS = "qemu-aarch64-static /tmp/one\ntest -s /usr/share/keyrings/debian-archive-keyring.gpg\n"


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from podman_for_tests(tmp_path, monkeypatch, network="host")


def step(action: str, name: str) -> str:
    """The script of a step of one of kci's actions."""
    steps = read_yaml((ROOT / action).read_text(encoding="utf-8"))["runs"]["steps"]
    (found,) = (item["run"] for item in steps if item.get("name") == name)
    return str(found)


def in_debian(*scripts: str) -> str:
    """What scripts say, each in a shell of its own as a runner has them, in a new root that has neither program."""
    bare = ["bash", "-e", "-c", f'{BARE}\nfor script; do bash -e -c "$script"; done', "bash"]
    command = ["podman", "run", "--rm", f"--env=PACKAGE={PACKAGE}", IMAGE, *bare, *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("podman")
def test_the_steps_of_the_actions_install_what_compiles_and_what_runs_it() -> None:
    install = step("action.yml", "Install the cross compiler")
    assert PACKAGE in install
    in_debian(install, COMPILES, step("test/action.yml", "Install qemu"), RUNS)


@pytest.mark.usefixtures("podman")
def test_the_lines_of_gitlabs_jobs_do_the_same() -> None:
    found = crossed_jobs()
    build, test = found["k: torch213-cxx11-cpu-aarch64-linux"], found["k: test cpu-aarch64-linux"]
    install, emulate = (next(line for line in job["script"] if "apt-get" in line) for job in (build, test))
    in_debian(install, COMPILES, emulate, RUNS)
