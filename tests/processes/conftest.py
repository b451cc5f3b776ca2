"""What tests of running commands share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kci.processes.running_commands import RunningCommands


@pytest.fixture
def after_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[RunningCommands], None]], None]:
    """Has something done after each look at what runs."""
    look = RunningCommands._look

    def patch(do: Callable[[RunningCommands], None]) -> None:
        def both(running: RunningCommands) -> None:
            look(running)
            do(running)

        monkeypatch.setattr(RunningCommands, "_look", both)

    return patch
