"""A program of its own, run with `python -I -S`: runs a command, and ends all that it started if kci is gone.

Arguments: the number of a pipe that kci holds the other end of; how many words of a command follow that undoes what is
left of one that was stopped, and those words; then the command. However kci ends, by SIGKILL as well,
the pipe closes with it. Then the command is asked to end, and after a while everything below it is killed: this process
takes over whatever lost its parent (PR_SET_CHILD_SUBREAPER), so that nothing gets away. What a command leaves that ends
by itself is killed as well: nobody waits for it. kci's lock on the work
directory is open here and in everything below, so that the next kci waits until the last of them is gone.
"""

import contextlib
import os
import pathlib
import select
import signal
import sys
import time

assert sys.platform != "win32", "there is nothing there to take over"  # noqa: S101  - for the type checker

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 3
_UNDO_SECONDS = 20


def main() -> int:
    """Run the command; the exit code is its own, or 128 and the signal that ended it."""
    alive, words = int(sys.argv[1]), int(sys.argv[2])
    undo, command = sys.argv[3 : 3 + words], sys.argv[3 + words :]
    os.set_inheritable(alive, False)
    _linux(_PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = _start(command)
    while True:
        ready, _, _ = select.select([alive, wake], [], [])
        received = os.read(wake, 4096) if wake in ready else b""
        if (code := _ended(child)) is not None:
            if not undo:  # what a container engine leaves cleans up behind the container
                _kill_rest(child)
            return code
        if alive in ready or set(received) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            return _stop(child, wake, undo)


def _start(command: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _linux(_PR_SET_PDEATHSIG, signal.SIGTERM)  # should this process be killed itself
        os.execvp(command[0], command)  # noqa: S606  - no shell is wanted
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _ended(child: int) -> int | None:
    # others that were taken over are let go on the way
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def _stop(child: int, wake: int, undo: list[str]) -> int:
    """Ask the child to end, wait, undo, then kill what is left. The code is that of a program ended by SIGTERM."""
    _signal(child, signal.SIGTERM)
    _wait(child, wake, _GRACE_SECONDS)
    if undo:
        _wait(_start(undo), wake, _UNDO_SECONDS)
    _kill_rest(child)
    return 128 + signal.SIGTERM


def _kill_rest(child: int) -> None:
    while below := _descendants():
        for pid in below:
            _signal(pid, signal.SIGKILL)
        _ended(child)


def _wait(child: int, wake: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while _ended(child) is None and (left := end - time.monotonic()) > 0:
        if wake in select.select([wake], [], [], left)[0]:
            os.read(wake, 4096)


def _descendants() -> list[int]:
    """Every process below this one, zombies left out.

    Where there is no /proc it is empty: there the child is trusted to end what it started, which ninja does.
    """
    parents: dict[int, list[int]] = {}
    for place in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            parents.setdefault(int(parent), []).append(int(place.parent.name))
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        below = parents.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _linux(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
