"""Running programs: always a list of arguments, never a shell."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kci.builders.request import Log
from kci.errors import MissingToolError

_SHOWN_LINES = 200


class Finished(msgspec.Struct, frozen=True):
    """A program that ran to its end."""

    code: int
    output: str
    """stdout and stderr together."""

    def tail(self) -> str:
        """The end of the output, as much as a person reads."""
        lines = self.output.strip().splitlines()
        cut = [f"... ({len(lines) - _SHOWN_LINES} lines left out)"] if len(lines) > _SHOWN_LINES else []
        return "\n".join(cut + lines[-_SHOWN_LINES:])


def run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Finished:
    """Run a program and keep what it says.

    Raises:
        MissingToolError: there is no such program, or it is not executable here.
    """
    return stream(command, lambda _line: None, cwd=cwd, env=env)


def stream(
    command: Sequence[str], log: Log, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Finished:
    """Run a program, pass on each line as it comes, and keep them all.

    Whatever stops this, Ctrl-C above all, stops the program as well and waits for its end.

    Raises:
        MissingToolError: there is no such program, or it is not executable here.
    """
    lines: list[str] = []
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise MissingToolError(f"cannot run {command[0]}: {error.strerror}") from error
    with process:
        assert process.stdout is not None  # noqa: S101  - PIPE was asked for
        try:
            for line in process.stdout:
                lines.append(line)
                log(line.rstrip("\n"))
        except BaseException:
            # Without this a Ctrl-C would wait a quarter of a second and leave behind what takes longer to end.
            process.terminate()
            process.wait()
            raise
    return Finished(process.returncode, "".join(lines))


def shown(command: Sequence[str]) -> str:
    """A command as it can be pasted into a shell."""
    return shlex.join(command)
