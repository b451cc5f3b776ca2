"""Calls the command line as a user does: in a process of its own, or, where that is too slow, in
this one.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import msgspec

from conftest import ran
from forked import forked_program, looked_at
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
    forks = looked_at(variables) == looked_at(os.environ)
    python = forked_program(in_tests=True) if forks else sys.executable
    done = ran(python, "-m", "kci", *arguments, cwd=cwd, env=variables)
    return Result(done.returncode, done.stdout, done.stderr)
