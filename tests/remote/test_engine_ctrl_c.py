"""Ctrl-C on a terminal asks whether legs that run are to be cancelled or left, and does what is answered."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from cli.runner import kci
from cli.terminal import Terminal, uncolored
from conftest import ROOT

pytestmark = pytest.mark.programs


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    made = Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    (tmp_path / "kci.sh").write_text(f'#!/bin/sh\n{wait}\nexec "{sys.executable}" -m kci "$@"\n')
    (tmp_path / "kci.sh").chmod(0o755)
    own = f'kci = ["{tmp_path}/kci.sh"]'
    (made / "kci.toml").write_text(f'[engines.here]\ntype = "local"\npoll-seconds = 0.05\n{own}\n')
    return made


def interrupted(kernel_dir: Path, answer: bytes) -> tuple[int, str]:
    """A run that is interrupted while its leg waits, and the answer to its question."""
    cache = str(kernel_dir.parent / "cache")
    arguments = ["run", str(kernel_dir), "--engine", "here", "--backend", "cpu", "--cache", cache]
    terminal = Terminal(*arguments, cwd=kernel_dir.parent, columns=120)
    terminal.read_until(b"running")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_until(b"[leave]: ")
    os.write(terminal.master, answer + b"\n")
    code, said = terminal.end()
    return code, uncolored(said)


def test_cancel_ends_the_leg(kernel_dir: Path) -> None:
    code, said = interrupted(kernel_dir, b"cancel")
    assert code == 130
    assert "still to end: 1 leg. Cancel, or leave running? (cancel, leave)" in said
    assert "1 leg cancelled" in said
    (job,) = (kernel_dir.parent / "cache" / "runs").glob("*/jobs/*")
    assert (job / "cancel").exists()
    (run,) = [path.parent.name for path in (kernel_dir.parent / "cache" / "runs").glob("*/run.json")]
    again = kci("run", "--resume", run, "--cache", kernel_dir.parent / "cache")
    assert again.code == 130
    assert "cancelled" in again.stdout


def test_leave_has_it_go_on(kernel_dir: Path) -> None:
    code, said = interrupted(kernel_dir, b"leave")
    assert code == 130
    (run,) = [path.parent.name for path in (kernel_dir.parent / "cache" / "runs").glob("*/run.json")]
    assert f"1 leg left running; `kci run --resume {run}` goes on" in said
    (kernel_dir.parent / "go").touch()
    again = kci("run", "--resume", run, "--cache", kernel_dir.parent / "cache")
    assert again.code == 0, again.stderr
    (executions,) = (kernel_dir.parent / "cache" / "runs").glob("*/jobs/*/executions")
    assert len(executions.read_text().splitlines()) == 1
