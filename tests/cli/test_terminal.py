"""What people see: four widths of terminal, no color where none is wanted, and nothing else."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from cli.terminal import Terminal, on_terminal, uncolored
from conftest import ROOT, ran
from kci.cli._output import Layout, table_lines

EXAMPLES = ROOT / "examples"
WIDTHS = (60, 80, 120, 200)
EDITION = ("--catalog", "2026-08-20")
SHOWN = (
    ("matrix", "rms-norm", *EDITION),
    ("matrix", "relu", *EDITION, "--backend", "rocm", "--explain"),
    ("plan", "rms-norm", *EDITION, "--tier", "pr", "--backend", "cpu"),
    ("plan", "relu", *EDITION, "--where", "torch == 2.13 and rocm == 7.2"),
)


@pytest.mark.programs
@pytest.mark.parametrize("columns", WIDTHS)
def test_the_page_of_a_width(columns: int, request: pytest.FixtureRequest) -> None:
    parts = []
    for arguments in SHOWN:
        code, seen = on_terminal(*arguments, cwd=EXAMPLES, columns=columns)
        assert code == 0, seen
        assert "\x1b[" in seen
        parts.append(f"$ kci {' '.join(arguments)}\n{uncolored(seen)}")
    page = "\n".join(parts)
    golden = ROOT / "tests" / "golden" / f"terminal-{columns}.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(page, encoding="utf-8")
    assert page == golden.read_text(encoding="utf-8")
    commands = [f"$ kci {' '.join(arguments)}" for arguments in SHOWN]
    wide = [line for line in page.splitlines() if len(line) > columns and line not in commands]
    assert wide == []


@pytest.mark.programs
@pytest.mark.parametrize(
    ("option", "environment", "colored"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {}, False),
    ],
)
def test_color_is_there_only_where_it_is_wanted(
    option: str, environment: dict[str, str], colored: bool, tmp_path: Path
) -> None:
    (tmp_path / "build.toml").write_text("[general\n")
    fine = ("matrix", str(EXAMPLES / "rms-norm"), *EDITION)
    for words in (fine, ("check", "."), ("matrix", ".")):
        how = {"cwd": tmp_path, "columns": 120, **environment}
        _, seen = on_terminal(*words, "--color", option, **how)
        assert ("KCI004" in seen) is (words != fine)
        assert ("\x1b[" in seen) is colored, words


SLOW_TO_END = """
import importlib, select
from kci.cli import main
command = importlib.import_module("kci.cli.run")
def works():
    try:
        print("started", flush=True)
        while True:
            # not for ever: a signal that comes just before is heard afterwards
            select.select([], [], [], 1)
    finally:
        open("may-end").readline()  # as a compiler that takes its time to end
command.command.callback = lambda *_, **__: works()
main(["run", "."])
"""


@pytest.mark.programs
def test_ctrl_c_is_answered_at_once(tmp_path: Path) -> None:
    """What runs may take its time to end; whoever pressed Ctrl-C is told before."""
    (tmp_path / "slow.py").write_text(SLOW_TO_END)
    os.mkfifo(tmp_path / "may-end")
    started = Terminal("slow.py", cwd=tmp_path, columns=80, program=(sys.executable,))
    started.read_until(b"started\r\n")  # a signal between the two would cut the line
    os.killpg(started.process.pid, signal.SIGINT)
    started.read_until(b"stopping...")
    may_end = os.open(tmp_path / "may-end", os.O_RDWR)  # which waits for no reader
    os.write(may_end, b"\n")  # only now what runs may end
    code, seen = started.end()
    os.close(may_end)
    assert (code, seen.split()) == (130, ["started", "stopping...", "interrupted"])


# --- the layout as a function ---------------------------------------------------------------------

HEAD = ("variant", "kind", "note")
ROWS = [("torch213-cxx11-cu130-x86_64-linux", "full", "why it is so, in a sentence of some length")]


@pytest.mark.parametrize("width", range(50, 120))
def test_a_table_fits_and_loses_no_word_of_its_reasons(width: int) -> None:
    layout = Layout(drop=("kind",), cut=("variant",), wrap="note")
    lines = table_lines(HEAD, ROWS, width, layout)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert [word for word in ROWS[0][2].split() if word not in words] == []


LATE = """
import os, select, signal
from kci import cli
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.NAME)
        for _ in range(1000): pass
signal.signal(signal.SIGINT, cli._interrupted)
signal.signal(signal.SIGTERM, cli._terminated)
try:
    Late()
    select.select([], [], [], 60)
    print("lost")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends a process there")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_a_finalizer_runs_is_not_lost(name: str) -> None:
    """Python ignores what `__del__` raises: kci said that it stops, and went on."""
    done = ran(sys.executable, "-c", LATE.replace("NAME", name), timeout=50)
    assert (done.stdout, "Traceback" in done.stderr) == ("stopped\n", False), done
