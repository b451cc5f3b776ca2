"""A real ninja, whose commands hold a known memory until a test lets them go."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from buildkit import quiet
from kci.processes.memory_gate import THIS_MACHINE, MemoryGate, Need
from kci.processes.process import Log, guarded
from kci.processes.running_commands import EndedCommand, RunningCommands

MIB = 2**20
EATER = """
import subprocess, sys
mib, fifo, output = int(sys.argv[1]), sys.argv[2], sys.argv[-1]
child = subprocess.Popen([sys.executable, __file__, str(mib), f"{fifo}2", ""]) if "--child" in sys.argv else None
held = bytearray(mib << 20)
held[::4096] = b"x" * len(held[::4096])
open(fifo).read()
if child:
    child.wait()
if output:
    open(output, "w").close()
"""
"""A program that holds so many MiB until somebody opens its fifo for writing, and then makes its output."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is known on Linux only")


def eat(mib: int, output: str, *, more: str = "") -> str:
    return f"{sys.executable} eat.py {mib} {output}.fifo {more} -o {output}"


def ninja_folder(work: Path, commands: Mapping[str, str]) -> list[str]:
    """The command that makes these outputs by a real ninja, each by its own command."""
    ninja = shutil.which("ninja")
    assert ninja is not None
    (work / "eat.py").write_text(EATER)
    eaters = [output for output, command in commands.items() if "eat.py" in command]
    for fifo in (work / f"{output}.fifo{more}" for output in eaters for more in ("", "2")):
        if not fifo.exists():
            os.mkfifo(fifo)
    lines = ["rule run", "  command = $c"]
    lines += [line for output, command in commands.items() for line in (f"build {output}: run", f"  c = {command}")]
    (work / "build.ninja").write_text("\n".join([*lines, ""]))
    return [ninja, "-C", str(work)]


def ninja_runs(
    work: Path,
    commands: Mapping[str, str],
    ended: Callable[[EndedCommand], None],
    *arguments: str,
    needs: Mapping[str, Need] | None = None,
    gate: MemoryGate = THIS_MACHINE,
    log: Log = quiet,
) -> RunningCommands:
    """Run commands by a real ninja in a folder, watched."""
    command = [*ninja_folder(work, commands), *arguments]
    with RunningCommands(work, needs or dict.fromkeys(commands, Need()), ended, log, gate) as running:
        guarded(command, quiet, started=running.follow)
    return running


def let_go(work: Path, output: str) -> None:
    """Let a program that holds memory end; it must be waiting."""
    for fifo in (f"{output}.fifo2", f"{output}.fifo"):
        try:
            os.close(os.open(work / fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # that one has no child
            continue


AfterLook = Callable[[Callable[[RunningCommands], None]], None]
