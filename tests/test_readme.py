"""Every command of the README is run, and its output and workflow are what it shows."""

from __future__ import annotations

import os
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from buildkit import CPU, STABLE_CPU, copy_example
from cli.runner import ended, kci_process
from conftest import ROOT, ran, read_yaml
from kci.cli._output import table_lines
from kci.cli.run import _LAYOUT
from test_examples import accepted_by_the_reference

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


SESSION = blocks("text")[0]
UNWRAPPED = re.sub(r"\n {20,}", " ", SESSION)
COMMANDS = [
    line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")
]
KCI_COMMANDS = [command for command in COMMANDS if command.startswith("kci ")]


def session() -> list[tuple[list[str], str]]:
    """The commands of kci in the session, and what each says in a pipe; its first says more, and is
    not shown.
    """
    steps = [step.partition("\n") for step in UNWRAPPED.removeprefix("$ ").split("\n$ ")]
    return [
        (shlex.split(command), output and f"{output.rstrip()}\n")
        for command, _, output in steps
        if output
    ]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The examples, where commands may write."""
    return copy_example("", tmp_path / "readme" / "examples").parent


def test_the_kci_commands_work_as_shown_one_after_the_other(copy: Path, tmp_path: Path) -> None:
    others = [command for command in COMMANDS if command not in KCI_COMMANDS]
    assert (others, len(KCI_COMMANDS) >= 6) == (["make demo", "make test"], True)
    for command in KCI_COMMANDS:
        result = kci_process(*command.split()[1:], cwd=copy, KCI_CACHE=str(tmp_path / "cache"))
        ended(result, 0)
        assert "Traceback" not in result.stderr, command


def test_the_matrix_is_the_one_shown(copy: Path) -> None:
    shown = next(block for block in blocks("console") if block.startswith("$ kci matrix"))
    command, _, output = shown.partition("\n")
    assert kci_process(*command.split()[2:], cwd=copy).stdout == output


def test_the_session_uses_commands_and_columns_that_there_are(tmp_path: Path) -> None:
    lines = SESSION.splitlines()
    ended(kci_process(*lines[0].split()[2:], "-y", cwd=tmp_path), 0)
    assert kci_process("check", cwd=tmp_path / "softcap").stdout.strip() in lines


def test_the_session_is_what_a_terminal_of_100_columns_shows() -> None:
    """The site cuts off what is wider."""
    headers = ("kernel", "variant", "state", "merged", "verified", "loaded", "time or reason")
    (said,) = (output for command, output in session() if command[1] == "run")
    names, *rows, _ = said.splitlines()
    starts = [names.index(header) for header in headers]
    cells = [[row[at:end].strip() for at, end in pairwise([*starts, None])] for row in rows]
    assert "\n".join(table_lines(headers, cells, 100, _LAYOUT)) in SESSION
    assert max(map(len, SESSION.splitlines())) <= 100


def test_the_workflow_uses_the_three_actions_and_only_outputs_that_they_have() -> None:
    text = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "rendered.md").read_text(), flags=re.DOTALL
    )[-1]
    jobs = read_yaml(text)["jobs"]
    used = [step["uses"] for job in jobs.values() for step in job["steps"]]
    assert {"kci/build/plan@v1", "kci/build@v1", "kci/build/merge@v1"} <= set(used)
    for job in jobs.values():
        for step in job["steps"]:
            if step["uses"].startswith("kci/"):  # a run of the whole is in tests/act
                folder = step["uses"].partition("@")[0].removeprefix("kci/build").strip("/")
                action = read_yaml((ROOT / folder / "action.yml").read_text())
                assert set(step["with"]) <= set(action["inputs"]), step["uses"]


@pytest.mark.torch
def test_make_demo_does_the_main_job(copy: Path, torch_cache: Path) -> None:
    environment = {**os.environ, "KCI_CACHE": str(torch_cache)}
    done = ran(sys.executable, copy / "examples" / "demo.py", cwd=copy, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    table = {tuple(row[:2]): row[2:5] for row in rows if row[2:3] in (["built"], ["reused"])}
    for kernel, variant in (("relu", CPU), ("rms-norm", STABLE_CPU)):
        assert table[kernel, variant][1:] == ["yes", "yes"]
    for kernel in ("relu", "rms-norm", "swiglu"):
        merged = sorted(name for of, name in table if of == kernel)
        assert accepted_by_the_reference(copy / "build" / "demo" / kernel / "build") == merged
        assert re.search(rf"^{kernel}  .* ok$", done.stdout, flags=re.MULTILINE), done.stdout
    assert "examples/demo.py" in (ROOT / "Makefile").read_text()
