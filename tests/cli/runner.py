"""Calls the command line as a user does: in a process of its own, or, where that is too slow, in
this one.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import msgspec

from forked import fork_server
from kci.cli import main


class Result(msgspec.Struct, frozen=True):
    """What a command answered."""

    code: int
    stdout: str
    stderr: str


def kci(*arguments: str | Path, **environment: str) -> Result:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    return Result(int(code or 0), out.getvalue(), err.getvalue())  # type: ignore[call-overload]


def ended(done: Result, code: int, *words: str) -> str:
    """What it said on stdout; it ended with this code, and stderr has these words."""
    assert (done.code, [word for word in words if word not in done.stderr]) == (code, []), done
    return done.stdout


def kci_process(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> Result:
    """Run a command in a process of its own, which is forked unless what Python itself looks at
    differs.
    """
    variables = {**os.environ, **environment}
    if fork_server().can_have(variables):
        return Result(*fork_server().run(*arguments, folder=cwd, environment=variables))
    command = [sys.executable, "-m", "kci", *map(str, arguments)]
    how = {"cwd": cwd, "env": variables, "capture_output": True, "text": True}
    done = subprocess.run(command, **how, check=False)  # type: ignore[call-overload]
    return Result(done.returncode, done.stdout, done.stderr)
