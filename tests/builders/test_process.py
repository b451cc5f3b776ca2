"""Programs that a build runs: nothing of them is left when the build is stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kci.builders.process import stream


def test_a_program_does_not_outlive_the_call(tmp_path: Path) -> None:
    """Ctrl-C may reach this process alone, as `kill -INT` does."""
    os.mkfifo(tmp_path / "never")
    said: list[str] = []

    def interrupt(line: str) -> None:
        said.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(["sh", "-c", f"echo $$; exec cat {tmp_path / 'never'}"], interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(said[0]), 0)
