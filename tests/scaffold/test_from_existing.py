"""`kci init --from`: what is taken over from a kernel-builder repository, and what is
left to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci

OLD_BUILD = """
[general]
name = "old-kernel"  # a comment
version = 2
license = "apache-2.0"
backends = ["cuda"]

[general.hub]
repo-id = "acme/old-kernel"

[torch]
src = ["torch-ext/torch_binding.cpp"]

[kernel.old]
backend = "cuda"
depends = ["torch"]
src = ["csrc/old.cu"]
"""
REPOSITORY = {
    "build.toml": OLD_BUILD,
    "flake.nix": "{}",
    "flake.lock": "{}",
    "torch-ext/torch_binding.cpp": '#include "registration.h"\n',
    "torch-ext/old_kernel/__init__.py": "",
    "torch-ext/old_kernel/_ops.py": "generated",
    "csrc/old.cu": "",
    "build/torch-cuda/__init__.py": "",
    "tests/test_old.py": "def test_it(): pass\n",
}


def test_a_kernel_builder_repository_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "old", REPOSITORY)
    monkeypatch.chdir(tmp_path)
    made = kci("init", "new", "--from", "old", "-y")
    assert made.code == 0, made.stderr
    text = (tmp_path / "new" / "build.toml").read_text()
    assert "edition = 5" in text
    assert "# a comment" in text
    assert "taken over: build.toml: `edition = 5`" in made.stdout
    assert "flake.nix was not copied" in made.stdout
    assert "_ops.py was not copied: it is generated" in made.stdout
    assert "no test has the mark" in made.stdout
    there = {path.name for path in (tmp_path / "new").rglob("*")}
    assert not there & {"flake.nix", "flake.lock", "_ops.py", "torch-cuda"}
    assert {"old.cu", "test_old.py", "kci.yml"} <= there
    assert kci("check", "new").code == 0
    assert (tmp_path / "old" / "flake.nix").exists(), "the old one stays as it is"


def test_a_build_toml_that_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "old", {"build.toml": "[general\n"})
    monkeypatch.chdir(tmp_path)
    refused = kci("init", "new", "--from", "old", "-y")
    assert refused.code == 1
    assert "old/build.toml:1:" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--framework torch", "--stable-abi 2.11", "--backend cuda"])
def test_an_option_that_would_be_ignored_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "old", {"build.toml": ""})
    monkeypatch.chdir(tmp_path)
    made = kci("init", "new-one", "--from", "old", "-y", *option.split())
    assert made.code == 2
    assert f"{option.split(maxsplit=1)[0]} is not for --from" in made.stderr
    assert not (tmp_path / "new-one").exists()


NARROWING = (
    '{ torchVersions = all: map (v: v // { systems = filter (s: s == "x86_64-linux") v.systems; '
    "}) all; }"
)


def test_what_a_flake_leaves_out_is_left_out_by_kci_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "old", REPOSITORY | {"flake.nix": NARROWING})
    write_tree(tmp_path / "several", {".git/HEAD": ""})
    monkeypatch.chdir(tmp_path)
    overlay = '[[overlay]]\nkernel = "old-kernel"\nkeep = ["system == x86_64-linux"]\n'
    for target, settings in (("new", "new/kci.toml"), ("several/one", "several/kci.toml")):
        assert kci("init", target, "--from", "old", "-y").code == 0
        assert (tmp_path / settings).read_text() == overlay
        assert "aarch64" not in kci("matrix", target, "--format", "names").stdout
    assert (
        f"add to kci.toml what flake.nix says:\n{overlay}"
        in kci("init", "several/two", "--from", "old", "-y").stdout
    )
    (tmp_path / "old" / "flake.nix").write_text("{ torchVersions = import ./versions.nix; }")
    assert (
        "flake.nix:1: say in kci.toml, as `[[overlay]]`"
        in kci("init", "newer", "--from", "old", "-y").stdout
    )
