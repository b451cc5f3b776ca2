"""Ends a command in the middle of what it writes: `python crash_anywhere.py ARGUMENT...`.

It runs `kci ARGUMENT...` once as it is, which imports all that it needs, and then reads steps, a
number a line. For each it runs the command in a process of its own, which is gone, as after a power
cut, just before its STEP-th change of a file or directory; with fewer changes the command ends by
itself. It answers each run with a line, the exit code. Python tells of each change before it is
made, so this knows nothing of how kci writes.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from kci.cli import main as kci

CRASHED = 137
_CHANGES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
}


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    with redirect_stdout(sys.stderr):
        try:
            kci(arguments)
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def crash(step: int) -> None:
    """End this process at a step."""
    count = itertools.count(1)

    def watch(event: str, details: tuple[object, ...]) -> None:
        writes = (
            event == "open"
            and isinstance(details[2], int)
            and details[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if (writes or event in _CHANGES) and next(count) == step:
            os._exit(CRASHED)

    sys.addaudithook(watch)


def main() -> None:
    """Run, and answer each line."""
    print(run(sys.argv[1:]), flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            crash(int(line))
            os._exit(run(sys.argv[1:]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
