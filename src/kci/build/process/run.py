"""Running programs: always a list of arguments, never a shell; and stopping all that some threads have started.

Ctrl-C reaches the main thread only, so programs of other threads end by their `ProgramScope`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import msgspec

from kci.errors import MissingToolError
from kci.utils.suggest import count

_Process = subprocess.Popen[str]
_SHOWN_LINES = 200
_GUARD = Path(__file__).with_name("guard_script.py")

Log = Callable[[str], None]
"""Takes one line of progress."""


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
        """Raise `StoppedError` if the scope was stopped."""
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


class Finished(msgspec.Struct, frozen=True):
    """A program that ran to its end."""

    code: int
    output: str
    """stdout and stderr together."""

    def tail(self) -> str:
        """The end of the output, as much as a person reads."""
        lines = self.output.strip().splitlines()
        cut = [f"... ({count(len(lines) - _SHOWN_LINES, 'line')} left out)"] if len(lines) > _SHOWN_LINES else []
        return "\n".join(cut + lines[-_SHOWN_LINES:])


def silent(_line: str) -> None:
    """A log that keeps nothing."""


def output_of(*command: str) -> str:
    """What a program says; nothing where it fails, or is not here."""
    try:
        done = run(command)
    except MissingToolError:
        return ""
    return done.output if done.code == 0 else ""


def run(
    command: Sequence[str], log: Log = silent, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Finished:
    """Run a program, pass on each line as it comes, and keep them all.

    Whatever stops this, Ctrl-C above all, stops the program as well and waits for its end.

    Raises:
        MissingToolError: there is no such program, or it is not executable here.
        StoppedError: the scope that this thread is in was stopped.
    """
    return _finish(command, log, cwd, env)


def run_in_group(
    command: Sequence[str],
    log: Log,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    lock: int | None = None,
    undo: Sequence[str] = (),
    started: Callable[[int], None] = lambda _session: None,
) -> Finished:
    """Like `run`, for a program that starts others: all of them end with this process, however that ends.

    Args:
        command: the program and its arguments.
        log: takes each line.
        cwd: where to run it.
        env: its environment.
        lock: an open lock file (`kci.utils.atomic.locked`), which stays locked until the last of them has ended.
        undo: a command that removes what is left of a program that was stopped, such as its container.
        started: is told the session that the program and all that it starts are in; not called on Windows.
    """
    if sys.platform == "win32":  # pragma: no cover - there is no such thing as taking over a child there
        return _finish(command, log, cwd, env)
    if shutil.which(command[0], path=(env or os.environ).get("PATH")) is None:
        raise MissingToolError(f"cannot run {command[0]}: there is no such program")
    alive, ours = os.pipe()
    try:
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(alive), str(len(undo)), *undo, *command]
        return _finish(guard, log, cwd, env, (alive,) if lock is None else (alive, lock), started)
    finally:
        os.close(ours)
        os.close(alive)


def _finish(
    command: Sequence[str],
    log: Log,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    inherited: tuple[int, ...] = (),
    started: Callable[[int], None] = lambda _session: None,
) -> Finished:
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
            started(process.pid)
            for line in process.stdout:
                lines.append(line)
                log(line.rstrip("\n"))
        except BaseException:
            # Without this a Ctrl-C would wait a quarter of a second and leave behind what takes longer to end.
            process.terminate()
            process.wait()
            raise
    return Finished(process.returncode, "".join(lines))


def shell_line(command: Sequence[str]) -> str:
    """A command as it can be pasted into a shell."""
    return shlex.join(command)
