"""A kci in the background, as a person at a terminal has it: its output can be looked at, and it can be killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """A kci that has ended."""

    code: int
    output: str
    run: str
    """The id of the run that it was about."""


class Client:
    """One kci."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._output = Path(tempfile.mkdtemp(prefix="kci-client-")) / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kci", *arguments], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
            )  # fmt: skip

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def wait_for(self, there: Callable[[], object], what: str) -> None:
        """Look until something is there, as long as this client runs."""
        for _ in range(1200):
            if there():
                return
            assert self.process.poll() is None, f"kci ended before {what}:\n{self.said()}"
            threading.Event().wait(0.1)
        raise AssertionError(f"waited in vain for {what}:\n{self.said()}")

    def said(self) -> str:
        """All that it has said so far."""
        return self._output.read_text(errors="replace")

    def end(self, seconds: int = 300) -> Ended:
        """Wait for it to end by itself."""
        code = self.process.wait(seconds)
        found = re.search(r"^run ([0-9a-f-]+):", self.said(), re.MULTILINE)
        return Ended(code, self.said(), found[1] if found else "")

    def kill(self) -> None:
        """As when its machine loses power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
