"""Runs the command line on a terminal of a chosen size, as a person sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

from forked import forked_program

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process on a pseudo terminal."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        columns: int,
        program: tuple[str, ...] = (sys.executable, "-m", "kci"),
        **environment: str,
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "CI")
        base = {key: value for key, value in os.environ.items() if key not in left_out}
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**base, "TERM": "xterm-256color", **environment},
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def read_until(self, text: bytes = b"") -> None:
        """Read until a text was seen, or to the end; what takes longer than a minute is ended."""
        while not text or text not in self.seen:
            if not select.select([self.master], [], [], 60)[0]:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise AssertionError(
                    f"nothing more was shown after {self.seen.decode(errors='replace')}"
                )
            try:
                part = os.read(self.master, 65536)
            except OSError:  # the other side is gone
                return
            if not part:
                return
            self.seen += part

    def end(self) -> tuple[int, str]:
        """The exit code and everything that was shown."""
        self.read_until()
        code = self.process.wait()
        os.close(self.master)
        return code, self.seen.decode().replace("\r\n", "\n")


def on_terminal(*arguments: str, cwd: Path, columns: int, **environment: str) -> tuple[int, str]:
    """What a command shows on a terminal that is so many columns wide, with its colors."""
    program = (forked_program(in_tests=True), "-m", "kci")
    return Terminal(*arguments, cwd=cwd, columns=columns, program=program, **environment).end()


def uncolored(text: str) -> str:
    """The text without the sequences that color it."""
    return _ESCAPE.sub("", text)
