"""`kci init --from`: what is taken over from a kernel-builder repository, and what is
left to do.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import ended, kci
from conftest import torch_toml

OLD_BUILD = torch_toml({"cuda": "csrc/old.cu"}, "old-kernel", "torch-ext/torch_binding.cpp")
OLD_BUILD = OLD_BUILD.replace(
    'version = 1\nedition = 5\nlicense = "MIT"\n',
    'version = 2\nlicense = "apache-2.0"  # a comment\nhub.repo-id = "acme/old-kernel"\n',
)
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


pytestmark = pytest.mark.usefixtures("here")


def test_a_kernel_builder_repository_is_taken_over(tmp_path: Path) -> None:
    write_tree(tmp_path / "old", REPOSITORY)
    said = ended(kci("init", "new", "--from", "old", "-y"), 0)
    text = (tmp_path / "new" / "build.toml").read_text()
    assert "edition = 5" in text
    assert "# a comment" in text
    assert "taken over: build.toml: `edition = 5`" in said
    assert "flake.nix was not copied" in said
    assert "_ops.py was not copied: it is generated" in said
    assert "no test has the mark" in said
    assert not re.search("is missing|say in kci.toml", said)
    there = {path.name for path in (tmp_path / "new").rglob("*")}
    assert not there & {"flake.nix", "flake.lock", "_ops.py", "torch-cuda"}
    assert {"old.cu", "test_old.py", "kci.yml"} <= there
    assert kci("check", "new").code == 0
    assert (tmp_path / "old" / "flake.nix").exists(), "the old one stays as it is"


@pytest.mark.parametrize(
    ("text", "options", "code", "said"),
    [
        ("[general\n", (), 1, "old/build.toml:1:"),
        *(("", (name, value), 2, f"{name} is not for --from") for name, value in (
            ("--framework", "torch"), ("--stable-abi", "2.11"), ("--backend", "cuda"))),
    ],
)  # fmt: skip
def test_what_cannot_be_read_or_would_be_ignored_is_refused(
    tmp_path: Path, text: str, options: tuple[str, ...], code: int, said: str
) -> None:
    write_tree(tmp_path / "old", {"build.toml": text})
    ended(kci("init", "new-one", "--from", "old", "-y", *options), code, said)
    assert not (tmp_path / "new-one").exists()


ONE_SYSTEM = 'filter (s: s == "x86_64-linux") v.systems'
NARROWING = f"{{ torchVersions = all: map (v: v // {{ systems = {ONE_SYSTEM}; }}) all; }}"


def test_what_a_flake_leaves_out_is_left_out_by_kci_toml(tmp_path: Path) -> None:
    write_tree(tmp_path / "old", REPOSITORY | {"flake.nix": NARROWING})
    write_tree(tmp_path / "several", {".git/HEAD": ""})
    overlay = '[[overlay]]\nkernel = "old-kernel"\nkeep = ["system == x86_64-linux"]\n'
    for target, settings in (("new", "new/kci.toml"), ("several/one", "several/kci.toml")):
        assert kci("init", target, "--from", "old", "-y").code == 0
        assert (tmp_path / settings).read_text() == overlay
        assert "aarch64" not in kci("matrix", target, "--format", "names").stdout
    told = f"add to kci.toml what flake.nix says:\n{overlay}"
    assert told in kci("init", "several/two", "--from", "old", "-y").stdout
    (tmp_path / "old" / "flake.nix").write_text("{ torchVersions = import ./versions.nix; }")
    told = "flake.nix:1: say in kci.toml, as `[[overlay]]`"
    assert told in kci("init", "newer", "--from", "old", "-y").stdout
