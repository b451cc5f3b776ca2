"""Programs that several threads run, and that end together: Ctrl-C reaches one thread only, the main one."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_Process = subprocess.Popen[str]
_CURRENT: ContextVar[ProgramScope | None] = ContextVar("kci_program_scope", default=None)


class StoppedError(BaseException):
    """The work that a program belongs to was stopped. No `except Exception` takes it for a failure of the program."""


class ProgramScope:
    """What is started within it, by whichever thread, ends when it is stopped; nothing more is started then."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: set[_Process] = set()
        self._stopped = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Programs that this thread starts from here on belong to the scope."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def stop(self) -> None:
        """Ask every program to end, and let no other one start."""
        with self._guard:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def require_running(self) -> None:
        """Raise if the scope was stopped.

        Raises:
            StoppedError: it was.
        """
        if self._stopped:
            raise StoppedError

    def _add(self, start: Callable[[], _Process]) -> _Process:
        with self._guard:
            self.require_running()
            process = start()
            self._running.add(process)
            return process

    def _remove(self, process: _Process) -> None:
        with self._guard:
            self._running.discard(process)
        self.require_running()


@contextmanager
def in_scope(start: Callable[[], _Process]) -> Iterator[_Process]:
    """Start a program as a part of the scope that this thread is in, if it is in one.

    Raises:
        StoppedError: the scope was stopped, before or while the program ran.
    """
    scope = _CURRENT.get()
    if scope is None:
        yield start()
        return
    process = scope._add(start)
    try:
        yield process
    finally:
        scope._remove(process)
