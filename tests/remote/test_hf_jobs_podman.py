"""Hugging Face Jobs, each really run in a container of podman that has nothing of this machine but what the API mounts.

Good, failed, cancelled and out of time, in one run each; test_hf_jobs.py has the rest, without containers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.runner import Result, kci_process
from conftest import ROOT
from kci.tree.manifest import read_manifest
from kci.verify import verify
from podmankit import image_with_kci, podman_for_tests
from remote.background import Client
from remote.hub_stand_in import PodmanHub
from remote.test_hf_jobs import environment, is_for_cpu, surroundings

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from podman_for_tests(tmp_path, monkeypatch)


@pytest.fixture
def image(podman: None) -> str:
    return image_with_kci()


@pytest.fixture
def hub(podman: None, tmp_path: Path) -> Iterator[PodmanHub]:
    made = PodmanHub(tmp_path / "hub")
    yield made
    made.close()


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))


def configure(kernel_dir: Path, image: str, script: str = "", more: str = "") -> None:
    """An engine whose image has kci; a leg does first what the script says."""
    words = json.dumps(["sh", "-c", f'{script}\nexec kci "$@"', "kci"])
    (kernel_dir / "kci.toml").write_text(
        '[engines.hub]\npoll-seconds = 0.2\ntype = "hf-jobs"\nnamespace = "acme"\nrepository = "acme/sources"\n'
        f'bucket = "acme/results"\nimage = "{image}"\nkci = {words}\n{more}'
    )


def run(hub: PodmanHub, kernel_dir: Path, *arguments: str) -> Result:
    cache = kernel_dir.parent / "cache"
    return kci_process("run", kernel_dir, "--engine", "hub", *arguments, "--cache", cache, **surroundings(hub))


def test_legs_build_in_containers_and_come_back_through_the_bucket(
    hub: PodmanHub, image: str, kernel_dir: Path
) -> None:
    configure(kernel_dir, image)
    result = run(hub, kernel_dir)
    assert result.code == 0, result.stderr
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert manifest.complete
    assert verify(kernel_dir / "build") == []
    assert [spec["dockerImage"] for spec in hub.specs] == [image] * 3


def test_one_fails_one_is_cancelled_and_the_rest_is_merged(hub: PodmanHub, image: str, kernel_dir: Path) -> None:
    """The one that fails tells what it sees of this machine, which is nothing: no folder, no variable, no network."""
    here = kernel_dir.parent
    looks = (
        f"ls -d {here} {ROOT} {hub.folder}; ls /sys/class/net; env; ls /kci; "
        "touch /kci/inputs/x || echo inputs are read-only; echo broken; exit 4"
    )
    configure(kernel_dir, image, f'case "$*" in *torch-cuda*) {looks};; *torch-cpu*) exec sleep 3600;; esac')
    arguments = ["run", str(kernel_dir), "--engine", "hub", "--cache", str(here / "cache")]
    with Client(*arguments, environment=environment(hub)) as client:
        client.wait_for(lambda: client.said().count(": submitted") >= 3, "the legs to be submitted")
        client.wait_for(lambda: "torch-cuda on hub: failed" in client.said(), "one to fail")
        (number,) = [key for key in hub.jobs if is_for_cpu(hub, key, here)]
        hub._cancel(number)
        done = client.end()
    assert done.code == 4, done.output
    assert "it was cancelled there" in done.output
    (log,) = [path for path in (here / "cache").glob("runs/*/fetched/*/log.txt") if "broken" in path.read_text()]
    said = log.read_text()
    assert said.count("No such file or directory") == 3, said
    assert "inputs are read-only" in said
    assert "\nlo\n" in said
    assert "eth0" not in said
    assert "HF_TOKEN" not in said
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert [entry.variant for entry in manifest.present] == ["torch-rocm"]


def test_a_job_that_the_service_ends_for_its_time_is_no_result(hub: PodmanHub, image: str, kernel_dir: Path) -> None:
    hub.minute = 0.1
    configure(kernel_dir, image, 'case "$*" in *torch-cpu*) exec sleep 3600;; esac', "restarts = 0\n")
    result = run(hub, kernel_dir, "--backend", "cpu")
    assert result.code == 4, result.stderr
    assert "lost 1 time, the last time because Hugging Face says ERROR" in result.stderr
    assert not (kernel_dir / "build").exists()
