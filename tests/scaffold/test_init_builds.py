"""What `kci init` writes is built, verified, loaded and tested, as far as this machine can."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import kci_process

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_git_environment")]

KINDS = {
    "stable": ("--stable-abi", "2.11", "--backend", "cpu"),
    "noarch": ("--framework", "torch-noarch"),
    "tvm-ffi": ("--framework", "tvm-ffi"),
}
"""Beside that of the tutorial, which tests/test_tutorial.py builds, loads and tests."""

EDITION = ("--catalog", "2026-08-20")
"""In which torch 2.13 is the newest: the builds then share the one that other tests have."""


def built_and_tested(name: str, place: Path, cache: Path, *, torch: bool = True) -> None:
    here = {"cwd": place, "KCI_CACHE": str(cache), "GITHUB_ACTIONS": ""}
    # What does not compile against torch has no version of it.
    chosen = ("--where", "torch == 2.13") if torch else ()
    built = kci_process("run", name, "--only", "*cpu*", *chosen, *EDITION, **here)  # type: ignore[arg-type]
    assert built.code == 0, built.stdout + built.stderr
    assert "1 variant in" in built.stdout
    tested = kci_process("test", name, "--torch", "2.13", **here)  # type: ignore[arg-type]
    assert tested.code == 0, tested.stdout + tested.stderr
    assert tested.stdout.splitlines()[-1].split()[2] == "passed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_kernel_is_built_verified_loaded_and_tested(
    kind: str, tmp_path: Path, torch_cache: Path
) -> None:
    made = kci_process("init", "my-kernel", "-y", *KINDS[kind], cwd=tmp_path)
    assert made.code == 0, made.stderr
    with (tmp_path / "my-kernel" / "kci.toml").open("a") as settings:
        settings.write("\n[plan]\nload = []\n")  # its tests load it
    built_and_tested("my-kernel", tmp_path, torch_cache, torch=kind == "stable")
