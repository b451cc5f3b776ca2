"""`kci init` on a terminal: it asks for what no option names, and Enter is an answer."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from cli.terminal import Terminal, uncolored

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("no_git_environment")]


def answered(place: Path, answers: dict[bytes, bytes]) -> str:
    """What a person sees who gives these answers to these questions, in this order."""
    terminal = Terminal("init", "asked-kernel", cwd=place, columns=100)
    for question, answer in answers.items():
        terminal.read_until(question)
        os.write(terminal.master, answer + b"\n")
    code, seen = terminal.end()
    assert code == 0, seen
    return seen


def build_toml(place: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads((place / "asked-kernel" / "build.toml").read_text())


def test_enter_takes_what_is_offered(tmp_path: Path) -> None:
    questions = (b"Framework", b"Backends", b"stable ABI [")
    seen = answered(tmp_path, dict.fromkeys(questions, b""))
    assert "C++ and CUDA, compiled against PyTorch" in uncolored(seen)
    assert build_toml(tmp_path)["general"]["backends"] == ["cpu", "cuda"]
    assert "asked-kernel is ready" in seen


def test_what_was_answered_is_in_the_files(tmp_path: Path) -> None:
    answers = {b"Framework": b"torch", b"Backends": b"cuda, rocm", b"stable ABI [": b"y"}
    answered(tmp_path, answers)
    said = build_toml(tmp_path)
    assert said["general"]["backends"] == ["cuda", "rocm"]
    assert said["torch"]["stable-abi"] == {"cuda": "2.11", "rocm": "2.11"}
