"""Runs programs without a shell.

A `ProgramScope` ends those of threads, which Ctrl-C does not reach.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from kci.errors import MissingToolError
from kci.utils.frozen import Frozen
from kci.utils.suggest import count

_Process = subprocess.Popen[str]
_SHOWN_LINES = 200
_MOST_SECONDS = 1e8
"""Three years, for select(2)."""
_GUARD = Path(__file__).with_name("guard_script.py")

Log = Callable[[str], None]
"""Receives a line of progress."""


class StoppedError(BaseException):
    """The scope of a program was stopped.

    Not an Exception, so that no handler takes it for a failure.
    """


class ProgramScope:
    """Stops all programs that its threads have started."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: set[_Process] = set()
        self._stopped = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Add programs of this thread to the scope."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def stop(self) -> None:
        """Terminate the programs, and start no more."""
        with self._guard:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def require_running(self) -> None:
        """Raise `StoppedError` after a stop."""
        if self._stopped:
            raise StoppedError

    @contextmanager
    def _holds(self, start: Callable[[], _Process]) -> Iterator[_Process]:
        with self._guard:
            self.require_running()
            process = start()
            self._running.add(process)
        try:
            yield process
        finally:
            with self._guard:
                self._running.discard(process)
            self.require_running()


_CURRENT: ContextVar[ProgramScope] = ContextVar("kci_program_scope")
_NEVER_STOPPED = ProgramScope()


class ProgramResult(Frozen):
    """A finished program."""

    code: int
    output: str
    """stdout and stderr."""

    def tail(self, last: int = _SHOWN_LINES, first: int = 0) -> str:
        """The last lines of the output, and some of the first."""
        lines = self.output.strip().splitlines()
        left = len(lines) - first - last
        cut = [*lines[:first], f"... ({count(left, 'line')} left out)"] if left > 0 else []
        return "\n".join(cut + lines[-last if left > 0 else 0 :])


def silent(_line: str) -> None:
    """Discard a line."""


def own_program(name: str) -> str | None:
    """The path of a program: beside this Python, else on the PATH."""
    return shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)


def program_output(*command: str) -> str:
    """A program's output; empty if it fails or does not exist."""
    try:
        done = run(command)
    except MissingToolError:
        return ""
    return done.output if done.code == 0 else ""


def run_in_group(
    command: Sequence[str],
    log: Log,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    lock: int | None = None,
    undo: Sequence[str] = (),
    seconds: float = _MOST_SECONDS,
) -> ProgramResult:
    """Like `run`, but all descendants end with this process, or after some seconds, except on
    Windows.

    `lock` is an open lock file that they inherit, and `undo` a command that cleans up after a stop.
    """
    if sys.platform == "win32":  # pragma: no cover - Windows cannot adopt processes
        return run(command, log, cwd=cwd, env=env)
    if shutil.which(command[0], path=(env or os.environ).get("PATH")) is None:
        raise MissingToolError(f"cannot run {command[0]}: there is no such program")
    alive, ours = os.pipe()
    try:
        limit = str(min(seconds, _MOST_SECONDS))
        guard = [
            sys.executable,
            "-I",
            "-S",
            str(_GUARD),
            str(alive),
            limit,
            str(len(undo)),
            *undo,
            *command,
        ]
        return run(
            guard, log, cwd=cwd, env=env, inherited=(alive,) if lock is None else (alive, lock)
        )
    finally:
        os.close(ours)
        os.close(alive)


def run(
    command: Sequence[str],
    log: Log = silent,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    inherited: tuple[int, ...] = (),
) -> ProgramResult:
    """Run a program; `log` gets its lines.

    An exception ends it. Raises MissingToolError or StoppedError.

    With `inherited` handles it has a session of its own.
    """
    lines: list[str] = []

    def start() -> _Process:
        try:
            return subprocess.Popen(
                list(command),
                cwd=cwd,
                pass_fds=inherited,
                start_new_session=bool(inherited),
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

    with _CURRENT.get(_NEVER_STOPPED)._holds(start) as process, process:
        assert process.stdout is not None  # noqa: S101  - PIPE was asked for
        try:
            for line in process.stdout:
                lines.append(line)
                log(line.rstrip("\n"))
        except BaseException:
            # Ctrl-C would otherwise wait, and leave slow programs behind
            process.terminate()
            process.wait()
            raise
    return ProgramResult(process.returncode, "".join(lines))


def shell_line(command: Sequence[str]) -> str:
    """Quote a command for a shell."""
    return shlex.join(command)
