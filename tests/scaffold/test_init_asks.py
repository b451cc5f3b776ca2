"""`kci init` on a terminal: it asks for what no option names, and Enter is an answer."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from cli.terminal import Terminal, uncolored

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("no_git_environment")]


@pytest.mark.parametrize(
    ("answers", "backends", "stable"),
    [
        ((b"", b"", b""), ["cpu", "cuda"], None),
        ((b"torch", b"cuda, rocm", b"y"), ["cuda", "rocm"], {"cuda": "2.11", "rocm": "2.11"}),
    ],
    ids=["Enter takes what is offered", "answers"],
)
def test_what_was_answered_is_in_the_files(
    tmp_path: Path, answers: tuple[bytes, ...], backends: list[str], stable: dict[str, str] | None
) -> None:
    terminal = Terminal("init", "asked-kernel", cwd=tmp_path, columns=100)
    for question, answer in zip((b"Framework", b"Backends", b"stable ABI ["), answers, strict=True):
        terminal.read_until(question)
        os.write(terminal.master, answer + b"\n")
    code, seen = terminal.end()
    assert code == 0, seen
    assert "C++ and CUDA, compiled against PyTorch" in uncolored(seen)
    assert "asked-kernel is ready" in seen
    made = tomllib.loads((tmp_path / "asked-kernel" / "build.toml").read_text())
    assert made["general"]["backends"] == backends
    assert made["torch"].get("stable-abi") == stable
