"""What `kci init` writes is built, verified, loaded and tested, as far as this machine can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.runner import ended, kci_process

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_git_environment")]

KINDS = {
    "stable": ("--stable-abi", "2.11", "--backend", "cpu"),
    "noarch": ("--framework", "torch-noarch"),
    "tvm-ffi": ("--framework", "tvm-ffi"),
}
"""Beside that of the tutorial, which tests/test_tutorial.py builds, loads and tests."""

EDITION = ("--catalog", "2026-08-20")
"""In which torch 2.13 is the newest: the builds then share the one that other tests have."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_kernel_is_built_verified_loaded_and_tested(
    kind: str, tmp_path: Path, torch_cache: Path
) -> None:
    here: dict[str, Any] = {"cwd": tmp_path, "KCI_CACHE": str(torch_cache), "GITHUB_ACTIONS": ""}
    ended(kci_process("init", "my-kernel", "-y", *KINDS[kind], **here), 0)
    with (tmp_path / "my-kernel" / "kci.toml").open("a") as settings:
        settings.write("\n[plan]\nload = []\n")  # its tests load it
    # What does not compile against torch has no version of it.
    chosen = ("--where", "torch == 2.13") if kind == "stable" else ()
    built = kci_process("run", "my-kernel", "--only", "*cpu*", *chosen, *EDITION, **here)
    assert "1 variant in" in ended(built, 0)
    tested = ended(kci_process("test", "my-kernel", "--torch", "2.13", **here), 0)
    assert tested.splitlines()[-1].split()[2] == "passed"
