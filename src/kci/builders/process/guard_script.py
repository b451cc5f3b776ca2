"""A separate program (`python -I -S`): runs a command, and ends all its processes if kci dies.

Arguments: number of an inherited pipe; seconds, after which it ends as by SIGTERM; number of words
of the undo command; these words; the command. The pipe closes with kci, even on SIGKILL. Orphans
are adopted (PR_SET_CHILD_SUBREAPER), so none escapes. kci's lock file stays open in all processes,
so that the next kci waits for the last.
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
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_UNDO_SECONDS = 20


def main() -> int:
    """Run the command and return its exit code, or 128 plus a signal number."""
    alive, ends_at, words = (
        int(sys.argv[1]),
        time.monotonic() + float(sys.argv[2]),
        int(sys.argv[3]),
    )
    undo, command = sys.argv[4 : 4 + words], sys.argv[4 + words :]
    os.set_inheritable(alive, False)
    _linux(_PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENDING):
        signal.signal(number, lambda *_: None)
    child = _start(command)
    while True:
        ready, _, _ = select.select([alive, wake], [], [], max(0, ends_at - time.monotonic()))
        received = os.read(wake, 4096) if wake in ready else b""
        if (code := _exit_code(child)) is not None:
            if not undo:  # a container's remains are left to the engine
                _kill_rest(child)
            return code
        asked = {*received} & {*_ENDING}
        if alive in ready or asked or time.monotonic() >= ends_at:
            return _stop(child, wake, undo)


def _start(command: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for number in (signal.SIGCHLD, *_ENDING):
            signal.signal(number, signal.SIG_DFL)
        _linux(_PR_SET_PDEATHSIG, signal.SIGTERM)  # in case this process is killed
        os.execvp(command[0], command)  # noqa: S606  - no shell is wanted
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _exit_code(child: int) -> int | None:
    # also reaps adopted processes
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
    # the code of a program ended by SIGTERM
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
        _exit_code(child)


def _wait(child: int, wake: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while _exit_code(child) is None and (remaining := end - time.monotonic()) > 0:
        if wake in select.select([wake], [], [], remaining)[0]:
            os.read(wake, 4096)


def _descendants() -> list[int]:
    # empty without /proc, as on macOS, where the child must end its own children
    parents: dict[int, list[int]] = {}
    for place in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            parents.setdefault(int(parent), []).append(int(place.parent.name))
    pids: list[int] = []
    pending = [os.getpid()]
    while pending:
        below = parents.get(pending.pop(), [])
        pids += below
        pending += below
    return pids


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _linux(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
