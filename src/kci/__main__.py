"""The program `kci`, and `python -m kci`."""

import gc
import sys

gc.set_threshold(100_000)  # most commands end before a collection would pay for itself; imports make much garbage


def start() -> None:
    """Run the command line, and leave the process with its exit code."""
    if sys.argv[1:2] == ["build"]:
        from kci.run.receipt import recall  # noqa: PLC0415  - for this command alone

        if recall(sys.argv[1:]):
            return
    from kci.cli import run  # noqa: PLC0415  - after the line above

    run()


if __name__ == "__main__":
    start()
