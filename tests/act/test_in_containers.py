"""The rendered workflow in real containers: act drives podman by its socket, and a job begins without kci."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from act.harness import Containers, act_path, copy_whole_actions, offline_pip, run_workflow
from act.test_workflow import RELEASE, add_kernel, render
from build.process.test_real_engine import IMAGE, podman
from buildkit import wait_for

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
        wait_for(lambda: place.exists() or service.poll() is not None, "podman's socket")
        assert service.poll() is None, (tmp_path / "service.log").read_text()
        yield f"unix://{place}"
    finally:
        os.killpg(service.pid, signal.SIGTERM)
        service.wait()


def test_a_job_begins_on_a_bare_system_and_installs_what_it_needs(socket: str, tmp_path: Path) -> None:
    """One job, because act copies every action into every container, which takes longer than what is tested."""
    repository = tmp_path / "repository"
    add_kernel(repository)
    render(repository)
    checkout = copy_whole_actions(tmp_path / "checkout")
    (tmp_path / "scratch").mkdir()
    run = run_workflow(
        repository,
        RELEASE,
        "push",
        tmp_path / "scratch",
        checkout=checkout,
        env=offline_pip(tmp_path / "wheels"),
        containers=Containers(socket, IMAGE, (tmp_path / "wheels",)),
        job="plan",
    )
    assert run.jobs == {"plan": "success"}, run.log
    assert run.log.count("Install what kci depends on") == 1
    assert [path.name for path in run.artifacts.iterdir()] == ["run-plan.1"]
