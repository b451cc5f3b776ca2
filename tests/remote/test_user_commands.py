"""The `command` engine: a user's own commands. The example of docs/engines.md is what runs here."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from cli.runner import Result, kci
from conftest import ROOT
from kci.tree.manifest import read_manifest
from kci.verify import verify

PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
SCRIPT = re.search(r"```sh\n(#!/bin/sh\n.*?)```", PAGE, re.DOTALL)
TABLE = re.search(r"```toml\n(\[engines\.queue\]\n.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))


def configure(kernel_dir: Path, **commands: str) -> None:
    """The example of the page, with some of its commands in place of others."""
    assert SCRIPT
    assert TABLE
    script = kernel_dir.parent / "queue.sh"
    script.write_text(SCRIPT[1])
    script.chmod(0o755)
    own = kernel_dir.parent / "kci.sh"
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kci "$@"\n')
    own.chmod(0o755)
    text = TABLE[1].replace("./queue.sh", str(script)).replace('"kci"', f'"{own}"').replace("python3", sys.executable)
    for name, command in commands.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {command}", text, flags=re.MULTILINE)
    (kernel_dir / "kci.toml").write_text(f'{text}environment = ["PYTHONPATH"]\npoll-seconds = 0.05\n')


def run(kernel_dir: Path, *arguments: str) -> Result:
    return kci("run", kernel_dir, "--engine", "queue", "--cache", kernel_dir.parent / "cache", *arguments)


@pytest.mark.programs
def test_the_example_of_the_page_builds_merges_and_verifies(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    configure(kernel_dir)
    result = run(kernel_dir)
    assert result.code == 0, result.stderr
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert manifest.complete
    assert verify(kernel_dir / "build") == []


@pytest.mark.parametrize(
    ("commands", "code", "said"),
    [
        ({"submit": '["false"]'}, 4, "the command `submit` failed with code 1"),
        ({"submit": '["true"]'}, 4, "did not print the job's name there"),
        ({"submit": '["/no/such/program"]'}, 3, "cannot run the command `submit` (/no/such/program)"),
        (
            {"submit": '["echo", "7"]', "poll": '["echo", "done"]'},
            4,
            "said 'done'; it prints one of queued, running, ended",
        ),
        ({"submit": '["echo", "7"]', "poll": '["echo", "stopped", "no quota"]'}, 4, "no quota"),
        ({"submit": "[]"}, 2, "needs the command `submit`"),
    ],
)
def test_what_a_command_says_wrong_is_told(
    kernel_dir: Path, commands: dict[str, str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    configure(kernel_dir, **commands)
    result = run(kernel_dir, "--only", "torch-cpu")
    assert (result.code, said in result.stderr) == (code, True), result.stderr


def test_what_is_filled_in_is_one_argument(kernel_dir: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    words = '"{name}", "{cores} {memory_gb}", "{nothing}"'
    command = f"""["sh", "-c", 'printf "%s|" "$@" >> {told}; exit 1', "x", {words}]"""
    configure(kernel_dir, submit=command)
    assert run(kernel_dir, "--only", "torch-cpu").code == 4
    name, size, unknown, _ = told.read_text().split("|")
    assert name.startswith("kci-")
    assert (size, unknown) == ("4 16", "{nothing}")
