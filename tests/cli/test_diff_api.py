"""`kci diff --api`: what a change takes from users, between commits of a real repository."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cli.runner import kci

BUILD = '[general]\nname = "silu"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n[torch-noarch]\n'


def commit(repository: Path) -> None:
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    if not (repository / ".git").exists():
        subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=x"], check=True)


@pytest.fixture
def kernel(tmp_path: Path, no_git_environment: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed kernel below the top of a repository, which is the working directory."""
    kernel = tmp_path / "kernels" / "silu"
    write(kernel, "def silu(x, out=None): ...\n")
    (kernel / "build.toml").write_text(BUILD)
    commit(tmp_path)
    monkeypatch.chdir(tmp_path)
    return kernel


def write(kernel: Path, text: str) -> None:
    file = kernel / "torch-ext" / "silu" / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.rule("KCI452", triggers=True)
def test_a_breaking_change_needs_a_new_version(kernel: Path) -> None:
    write(kernel, "def silu(x): ...\n")
    done = kci("diff", "--api", "HEAD")
    assert done.code == 1
    assert done.stdout == "silu, version 1: 1 breaking change of 1 change\n  ! silu has no parameter `out` any more\n"
    assert "kernels/silu/build.toml:3:11: error[KCI452]: 1 breaking change without a new version" in done.stderr
    answer = json.loads(kci("diff", "--api", "HEAD", "--format", "json").stdout)
    assert answer["differs"]
    assert answer["kernels"][0]["changes"] == [
        {"name": "silu", "what": "has no parameter `out` any more", "breaking": True}
    ]
    assert [item["rule"] for item in answer["problems"]] == ["KCI452"]
    table = kci("diff", "--api", "HEAD", "--format", "markdown").stdout
    assert table.startswith("### silu, version 1: 1 breaking change of 1 change\n\n|")


def test_a_commit_whose_build_toml_has_to_be_rewritten_is_compared_as_kci_update_would_write_it(kernel: Path) -> None:
    (kernel / "build.toml").write_text(BUILD.replace("[torch-noarch]\n", "").replace("edition = 5\n", ""))
    commit(kernel.parents[1])
    (kernel / "build.toml").write_text(BUILD)
    write(kernel, "def silu(x): ...\n")
    done = kci("diff", "--api", "HEAD")
    assert "silu has no parameter `out` any more" in done.stdout, done.stderr
    assert "KCI108" not in done.stderr


@pytest.mark.rule("KCI452", "KCI453", triggers=False)
def test_what_is_no_finding(kernel: Path) -> None:
    assert kci("diff", "--api", "HEAD").stdout == "no difference for users\n"
    write(kernel, "def silu(x, out=None, scale=1.0): ...\ndef gelu(x): ...\n")
    added = kci("diff", "--api", "HEAD")
    assert (added.code, added.stdout) == (0, "silu, version 1: 0 breaking changes of 1 change\n  + gelu is new\n")
    assert kci("diff", "--api", "HEAD", "--exit-code").code == 1
    write(kernel, "")
    (kernel / "build.toml").write_text(BUILD.replace("version = 1", "version = 2"))
    raised = kci("diff", "--api", "HEAD")
    assert raised.code == 0
    assert "silu, version 1 -> 2: 1 breaking change of 1 change" in raised.stdout


def test_the_same_from_every_place(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(kernel, "")
    commit(tmp_path)
    for arguments in (["kernels/silu"], ["kernels"], [str(kernel)], ["HEAD:kernels"], ["HEAD:kernels/silu"]):
        assert kci("diff", "--api", "HEAD~1", *arguments).code == 1, arguments
        assert kci("diff", "--api", "HEAD", *arguments).code == 0, arguments
    monkeypatch.chdir(kernel / "torch-ext")
    assert kci("diff", "--api", "HEAD~1", "..").code == 1


@pytest.mark.rule("KCI453", triggers=True)
def test_what_cannot_be_read_is_a_finding(kernel: Path) -> None:
    write(kernel, "def silu(:\n")
    done = kci("diff", "--api", "HEAD")
    assert done.code == 1
    assert "error[KCI453]: the interface of silu cannot be read" in done.stderr
    (kernel / "build.toml").write_text(BUILD.replace("version = 1", "version = 2"))
    raised = kci("diff", "--api", "HEAD")
    assert raised.code == 0, "users of the old version keep what they had"
    assert "  ! silu is not compared: the interface of silu cannot be read" in raised.stdout


def test_a_new_kernel_has_no_users(kernel: Path) -> None:
    other = kernel.with_name("gelu")
    write(other, "def gelu(x): ...\n")
    (other / "build.toml").write_text(BUILD.replace("silu", "gelu"))
    assert kci("diff", "--api", "HEAD", os.fspath(other)).stdout == "no difference for users\n"


def test_wrong_calls_say_what_is_right(kernel: Path) -> None:
    assert "there is no commit 'nope'" in kci("diff", "--api", "nope").stderr
    assert "OLD and NEW are needed" in kci("diff", "kernels").stderr
    refused = kci("diff", "--api", "HEAD", "--backend", "cpu")
    assert refused.code == 2
    assert "--backend" in refused.stderr
