"""The program `kci`, and `python -m kci`."""

import gc
import os
import sys
from contextlib import suppress


def start() -> None:
    """Run the command line and exit with its code."""
    try:
        gc.set_threshold(100_000)  # syntax trees are many objects without cycles
        _prepare_streams()
        from kci.cli import main

        main()
    except KeyboardInterrupt:  # while modules are imported, before `main` takes care of it
        os.write(2, b"interrupted\n")
        sys.exit(130)


def _prepare_streams() -> None:
    # A closed stream is opened to nowhere, or the next file would get its number and the output of
    # compilers
    with suppress(OSError):
        while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(spare)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        elif number and stream.isatty():
            stream.reconfigure(errors="replace")
        elif number:
            stream.reconfigure(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    start()
