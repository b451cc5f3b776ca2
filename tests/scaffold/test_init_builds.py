"""What `kci init` writes is built, verified, loaded and tested, as far as this machine can."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli.runner import ended, kci_process
from conftest import ran

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_git_environment")]

KINDS = {
    "my-stable": ("--stable-abi", "2.11", "--backend", "cpu"),
    "my-noarch": ("--framework", "torch-noarch"),
    "my-tvm": ("--framework", "tvm-ffi"),
}
"""Beside that of the tutorial, which tests/test_tutorial.py builds, loads and tests."""

EDITION = ("--catalog", "2026-08-20")
"""In which torch 2.13 is the newest: the builds then share the one that other tests have."""


def test_new_kernels_are_built_and_verified_and_pass_their_tests(
    tmp_path: Path, torch_cache: Path, torch_python: Path
) -> None:
    here: dict[str, Any] = {"cwd": tmp_path, "KCI_CACHE": str(torch_cache), "GITHUB_ACTIONS": ""}
    for name, options in KINDS.items():
        ended(kci_process("init", name, "-y", *options, cwd=tmp_path), 0)
        with (tmp_path / name / "kci.toml").open("a") as settings:
            settings.write("\n[plan]\nload = []\n")  # its tests load it
        # What does not compile against torch has no version of it.
        chosen = ("--where", "torch == 2.13") if name == "my-stable" else ()
        built = kci_process("run", name, "--only", "*cpu*", *chosen, *EDITION, **here)
        assert "1 variant in" in ended(built, 0)
    # As `kci test` does, in one process: each start of torch and of its compiler takes seconds.
    trees = ":".join(f"your-name/{name}={tmp_path / name / 'build'}" for name in KINDS)
    tests = [f"{name}/tests" for name in KINDS]
    command = (torch_python, "-m", "pytest", "-q", "--import-mode", "importlib", *tests)
    environment = os.environ | {"LOCAL_KERNELS": trees, "HF_HUB_OFFLINE": "1"}
    tested = ran(*command, cwd=tmp_path, env=environment)
    assert tested.returncode == 0, tested.stdout
    assert tested.stdout.split()[-4:-2] == ["49", "passed"], tested.stdout
