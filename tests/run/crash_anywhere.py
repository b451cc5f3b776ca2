"""Ends a command in the middle of what it writes: `python crash_anywhere.py STEP ARGUMENT...` runs `kci ARGUMENT...`.

The process is gone, as after a power cut, just before its STEP-th change of a file or directory; with fewer changes the
command ends by itself. Python tells of each change before it is made, so this knows nothing of how kci writes.
"""

from __future__ import annotations

import itertools
import os
import sys

CRASHED = 137
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


def main() -> None:
    """Count and crash."""
    from kci.cli import main as kci

    step, count = int(sys.argv[1]), itertools.count(1)

    def watch(event: str, details: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in _CHANGES) and next(count) == step:
            os._exit(CRASHED)

    sys.addaudithook(watch)
    kci(sys.argv[2:])


if __name__ == "__main__":
    main()
