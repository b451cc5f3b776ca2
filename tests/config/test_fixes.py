"""`kci check --fix`: what is rewritten, what stays, and that the file means the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import kci
from kci.config.reader import parse_kernel
from kci.config.update import plan_fixes

FIXED = ("KCI107", "KCI111", "KCI135")

WRONG = """# mine
[general]
name = "relu"  # the name
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]

[general.hub]
repo-id = "acme/relu"

[general.cuda]
minver = "12.6.0"
maxver = '13'    # so it is

[torch-noarch]
cuda-capabilities = ["9.0"]
"""


def fixed(text: str) -> tuple[str, tuple[str, ...]]:
    made = plan_fixes(text.encode(), ".", "build.toml")
    return made.after.decode(), made.changes


def test_the_spelling_changes_and_nothing_else() -> None:
    text, changes = fixed(WRONG)
    assert text == (
        WRONG.replace('"12.6.0"', '"12.6"').replace("'13'", "'13.0'").replace("cuda-capabilities", "cuda_capabilities")
    )
    assert len(changes) == 3
    before, after = parse_kernel(WRONG.encode()).build, parse_kernel(text.encode()).build
    assert after.general.cuda == before.general.cuda
    assert fixed(text) == (text, ())


def test_every_version_with_another_spelling_of_two_parts_is_respelled() -> None:
    part = '[kernel.a]\nbackend = "cuda"\ndepends = []\nsrc = []\ncuda-minver = "13"\n'
    head = WRONG.partition("[torch-noarch]")[0]
    text = fixed(f'{head}[torch]\nminver = "2.12.1"\nstable-abi = {{ cuda = "2.11.0" }}\n{part}')[0]
    assert 'minver = "2.12.1"' in text
    assert 'cuda = "2.11"' in text
    assert 'cuda-minver = "13.0"' in text


def test_the_command_rewrites_and_then_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.toml").write_text(WRONG.replace("edition = 5\n", ""))
    before = kci("check")
    assert all(rule in before.stderr for rule in FIXED)
    after = kci("check", "--fix")
    assert "build.toml: fixed: " in after.stderr
    assert not any(f"[{rule}]" in after.stderr for rule in FIXED)
    assert "edition = 5" in (tmp_path / "build.toml").read_text()
    assert "fixed" not in kci("check", "--fix").stderr


def test_a_file_that_cannot_be_read_is_left_to_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.toml").write_text("[general\n")
    assert kci("check", "--fix").code == 1
    assert (tmp_path / "build.toml").read_text() == "[general\n"
