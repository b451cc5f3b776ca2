"""A real container engine: podman, in an image of Debian 12 that `bin/container_image.sh` makes.

test_container.py shows which command kci gives; this shows that an engine does with it what kci
says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.process.test_process import gone
from buildkit import copy_example, noarch_kernel, write_tree
from cli.runner import kci_process
from conftest import ROOT
from kci.builders.process import container
from kci.builders.process.container import ContainerBuild, run_in_container
from kci.tree.identity import file_hashes
from podmankit import IMAGE, containers, podman_for_tests, wheels_for_container

VARIANT = "tvm-ffi01-cpu-x86_64-linux"

pytestmark = [pytest.mark.engine, pytest.mark.network]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from podman_for_tests(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def wheels() -> Path:
    return wheels_for_container()


@pytest.fixture
def offline(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture(scope="session")
def cache(shared_by_workers: Path) -> Path:
    """What containers have installed, cold for the first build of a test run."""
    return shared_by_workers / "cache-of-containers"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return copy_example("relu-tvm-ffi", tmp_path)


def version(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def test_the_same_bytes_as_outside_without_any_network(
    podman: None,
    offline: None,
    cache: Path,
    kernel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = [("g++", "--version"), ("ld", "--version")]
    for tool in tools:
        inside = version("podman", "run", "--rm", IMAGE, *tool)
        here = version(*tool)
        if here != inside:
            pytest.skip(
                f"the bytes cannot be compared: the image has {inside}, this machine {here}"
            )
    monkeypatch.setenv("KCI_CACHE", str(cache))
    arguments = ["build", kernel, "--variant", VARIANT, "--tier", "all", "--no-load"]
    within = kci_process(*arguments, "--output", tmp_path / "in", "--container", IMAGE)
    assert within.code == 0, within.stderr
    moves = f"{IMAGE} is a tag, which moves; this time it was localhost/kci-debian@sha256:"
    assert moves in within.stderr
    outside = kci_process(*arguments, "--output", tmp_path / "out")
    assert outside.code == 0, outside.stderr
    assert file_hashes(tmp_path / "in" / VARIANT) == file_hashes(tmp_path / "out" / VARIANT)
    # A second start has what it needs in the cache, and takes a fraction of the time.
    python_only = noarch_kernel(tmp_path / "python-only")
    arguments[1:4] = [python_only, "--variant", "torch-cpu"]
    words = ("--output", tmp_path / "in", "--container", IMAGE)
    again = kci_process(*arguments, *words, PIP_FIND_LINKS="/nowhere")
    assert again.code == 0, again.stderr


def said_in_it(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(container, "SCRIPT", script)
    said: list[str] = []
    kernel = write_tree(tmp_path / "k", {"build.toml": ""})
    places = {"writable": [tmp_path / "o"], "cache": tmp_path / "c"}
    run_in_container(ContainerBuild(IMAGE, kernel, [], **places), said.append)
    return said


@pytest.mark.usefixtures("podman")
def test_what_the_container_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
        touch x 2>/dev/null && echo wrote sources
        touch {tmp_path}/o/x && echo wrote output
        touch "$KCI_CACHE/x" && echo wrote cache
        test -e {ROOT} && echo sees the checkout
        touch "$HOME/x" && echo wrote home
        pwd
        echo "${{A_SECRET-unset}}"
        ls /sys/class/net
        grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status | tr -d '\\t'
        id -u
    """
    monkeypatch.setenv("A_SECRET", "x")
    said = said_in_it(script, tmp_path, monkeypatch)
    none = "0" * 16
    rights = [f"CapPrm:{none}", f"CapEff:{none}", "NoNewPrivs:1", str(os.getuid())]
    wrote = ["wrote output", "wrote cache", "wrote home"]
    assert said[:-1] == [*wrote, str(tmp_path / "k"), "unset", "lo", *rights]


KILLED = """
import sys
from pathlib import Path
from kci.builders.process import container
container.SCRIPT = "echo running; exec sleep 1000"
kernel, out, cache = map(Path, sys.argv[1:])
build = container.ContainerBuild({image!r}, kernel, [], writable=[out], cache=cache)
container.run_in_container(build, lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.usefixtures("podman", "monkeypatch")
def test_killed_in_the_middle_the_container_is_gone(tmp_path: Path, how: signal.Signals) -> None:
    kernel = write_tree(tmp_path / "k", {"build.toml": ""})
    places = [kernel, tmp_path / "o", tmp_path / "c"]
    command = [sys.executable, "-c", KILLED.format(image=IMAGE), *map(str, places)]
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=same, text=True) as kci:
        assert kci.stdout is not None
        assert kci.stdout.readline() == "running\n"
        (name,) = containers()
        assert name.startswith(f"kci-{kci.pid}-")
        (guard,) = Path(f"/proc/{kci.pid}/task/{kci.pid}/children").read_text().split()
        kci.send_signal(how)
        assert gone(int(guard))
    assert containers() == set()
