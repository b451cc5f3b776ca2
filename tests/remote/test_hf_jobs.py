"""Hugging Face Jobs against a server that speaks the documented API and runs the jobs as processes of this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import _commit_api, constants

from cli.runner import Result, kci
from conftest import ROOT
from kci.tree.manifest import read_manifest
from kci.verify import verify
from remote.background import Client
from remote.hub_stand_in import HubStandIn
from run.cuda_python import python_with_cuda

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """The service, which the library of this process takes for the real one."""
    made = HubStandIn(tmp_path / "hub")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield made
    made.close()


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))


def configure(kernel_dir: Path, script: str = "", more: str = "") -> None:
    own = kernel_dir.parent / "kci.sh"
    source = Path(sys.modules["kci"].__path__[0]).parent
    own.write_text(f'#!/bin/sh\nexport PYTHONPATH="{source}"\n{script}\nexec "{sys.executable}" -m kci "$@"\n')
    own.chmod(0o755)
    (kernel_dir / "kci.toml").write_text(
        '[engines.hub]\npoll-seconds = 0.05\ntype = "hf-jobs"\nnamespace = "acme"\nrepository = "acme/sources"\n'
        'bucket = "acme/results"\n'
        f'image = "docker.io/library/python:3.12"\nkci = ["{own}"]\n{more}'
    )


def surroundings(hub: HubStandIn) -> dict[str, str]:
    home = str(hub.folder / "home")
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HF_HOME": home, "HF_HUB_DISABLE_XET": "1"}


def run(hub: HubStandIn, kernel_dir: Path, *arguments: str) -> Result:
    arguments = arguments or (str(kernel_dir), "--engine", "hub")
    return kci("run", *arguments, "--cache", kernel_dir.parent / "cache")


@pytest.mark.programs
def test_legs_run_as_jobs_and_come_back_through_the_bucket(hub: HubStandIn, kernel_dir: Path) -> None:
    configure(kernel_dir)
    result = run(hub, kernel_dir)
    assert result.code == 0, result.stderr
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert manifest.complete
    assert verify(kernel_dir / "build") == []
    assert len(hub.specs) == 3
    spec = hub.specs[0]
    assert spec["flavor"] == "cpu-upgrade"  # the cheapest with 4 cores and 16 GB
    assert spec["timeoutSeconds"] == 20 * 60
    assert [(volume["type"], volume.get("readOnly")) for volume in spec["volumes"]] == [
        ("dataset", True), ("dataset", True), ("bucket", None),
    ]  # fmt: skip
    assert "hf_secret" not in str(hub.specs)
    assert "secrets" not in spec


@pytest.mark.programs
def test_the_merged_tree_is_tested_on_the_cheapest_machine_with_the_gpu(hub: HubStandIn, kernel_dir: Path) -> None:
    python = python_with_cuda(kernel_dir.parent)
    configure(kernel_dir, more=f'cores = 4\nmemory-gb = 8\ntests = ["cuda"]\ntest-python = "{python}"\n')
    result = run(hub, kernel_dir, str(kernel_dir), "--engine", "hub", "--test", "--backend", "cuda")
    assert result.code == 0, result.stderr
    assert "tested torch-cuda" in result.stdout
    assert [spec["flavor"] for spec in hub.specs] == ["cpu-upgrade", "t4-small"]


@pytest.mark.programs
def test_one_fails_one_is_cancelled_and_the_rest_is_merged(hub: HubStandIn, kernel_dir: Path) -> None:
    here = kernel_dir.parent
    script = f'case "$*" in *torch-cuda*) echo broken; exit 4;; *torch-cpu*) touch {here}/cpu; exec sleep 3600;; esac'
    configure(kernel_dir, script)
    cache = str(here / "cache")
    with Client("run", str(kernel_dir), "--engine", "hub", "--cache", cache, environment=environment(hub)) as client:
        client.wait_for((here / "cpu").exists, "the leg to run")
        (number,) = [key for key in hub.jobs if is_for_cpu(hub, key, here)]
        hub._cancel(number)
        done = client.end()
    assert done.code == 4, done.output
    assert "it was cancelled there" in done.output
    assert "broken" in done.output
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert [entry.variant for entry in manifest.present] == ["torch-rocm"]


def environment(hub: HubStandIn) -> dict[str, str]:
    return {**os.environ, **surroundings(hub)}


def is_for_cpu(hub: HubStandIn, number: str, here: Path) -> bool:
    """Whether a job is the one for the CPU."""
    name = hub.jobs[number]["labels"]["kci-job"]
    (job,) = (here / "cache" / "runs").glob(f"*/jobs/{name}/job.json")
    return '"torch-cpu"' in job.read_text()


@pytest.mark.programs
def test_a_reply_that_was_lost_and_a_service_that_is_away_start_nothing_twice(
    hub: HubStandIn, kernel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an upload ends with, the library tells as the cause of another error."""
    configure(kernel_dir)
    hub.lost_replies = 1
    upload, tried = _commit_api.lfs_upload, []

    def broken_once(**given: Any) -> None:
        tried.append(given)
        if len(tried) == 1:
            raise ConnectionError("reset by peer")
        upload(**given)

    monkeypatch.setattr(_commit_api, "lfs_upload", broken_once)
    result = run(hub, kernel_dir)
    assert result.code == 0, result.stderr
    assert "hub is away" in result.stderr
    assert "reset by peer" in result.stderr
    assert len(hub.specs) == 3
    assert len({spec["labels"]["kci-job"] for spec in hub.specs}) == 3


@pytest.mark.programs
def test_a_job_that_vanishes_is_started_again(hub: HubStandIn, kernel_dir: Path) -> None:
    here = kernel_dir.parent
    configure(
        kernel_dir,
        f'case "$*" in *torch-cpu*) if [ ! -e {here}/once ]; then touch {here}/once; kill -9 $PPID; fi;; esac',
    )
    result = run(hub, kernel_dir)
    assert result.code == 0, result.stderr
    assert "(attempt 2)" in result.stderr
    assert len(hub.specs) == 4


def test_without_the_library_the_command_that_gets_it_is_named(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    result = kci("run", kernel_dir, "--engine", "hf-jobs", "--cache", tmp_path / "cache")
    assert result.code == 3
    assert "pip install 'kci[hf]'" in result.stderr


def test_what_it_needs_is_asked_for(kernel_dir: Path, tmp_path: Path) -> None:
    result = kci("run", kernel_dir, "--engine", "hf-jobs", "--cache", tmp_path / "cache")
    assert result.code == 2
    assert "needs a `namespace`" in result.stderr
