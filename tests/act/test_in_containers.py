"""The rendered workflow in real containers: act drives podman by its socket, and every job begins without kci."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from act.harness import Containers, act_path, copy_checkout, offline_pip, run_workflow
from act.test_workflow import LEGS, RELEASE, add_kernel, render, tree_names
from builders.test_real_engine import IMAGE, podman
from conftest import AT_TOP

__all__ = ["podman"]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
]


@pytest.fixture
def socket(podman: None, tmp_path: Path) -> Iterator[str]:
    """Docker's API, as podman serves it."""
    place = tmp_path / "podman.sock"
    settings = Path(os.environ["CONTAINERS_CONF"])
    # act wants the network of the machine; nothing in the jobs uses it.
    settings.write_text(settings.read_text().replace('netns = "none"\n', ""))
    command = ["podman", "system", "service", "--time=0", f"unix://{place}"]
    with (tmp_path / "service.log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        while not place.exists():
            assert service.poll() is None, (tmp_path / "service.log").read_text()
            time.sleep(0.05)
        yield f"unix://{place}"
    finally:
        os.killpg(service.pid, signal.SIGTERM)
        service.wait()


def test_push_builds_merges_and_passes_on_a_bare_system(socket: str, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    add_kernel(repository, backends=("cpu",))
    render(repository)
    checkout = copy_checkout(tmp_path / "checkout")
    for name in ("tests", "docs", "examples", "benchmarks"):  # act copies the rest into every container, file by file
        shutil.rmtree(checkout / name)
    (tmp_path / "scratch").mkdir()
    offline = offline_pip(tmp_path / "wheels")
    containers = Containers(socket, IMAGE, (tmp_path / "wheels",))
    run = run_workflow(
        repository, RELEASE, "push", tmp_path / "scratch", checkout=checkout, env=offline, containers=containers
    )
    assert run.jobs == dict.fromkeys([LEGS[0], "kci", "merge", "plan"], "success"), run.log
    assert run.log.count("Install what kci depends on") == 4, "every job begins without kci"
    assert tree_names(run.artifacts) == {*AT_TOP, "torch-cpu"}
    shutil.rmtree(tmp_path / "scratch")
