"""The program `kci`, and `python -m kci`."""

import gc
import importlib
import os
import sys
from _thread import RLock
from contextlib import suppress
from types import ModuleType
from typing import Any

gc.set_threshold(100_000)  # most commands end before a collection would pay for itself; imports make much garbage


class _Later(ModuleType):
    """A module that is loaded when something of it is asked for."""

    _loading = RLock()

    def __getattr__(self, name: str) -> Any:
        with self._loading:  # two threads may be the first to ask
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            return getattr(importlib.import_module(self.__name__), name)


def start() -> None:
    """Run the command line, and leave the process with its exit code."""
    _prepare_streams()
    if sys.argv[1:2] == ["build"]:
        from kci.run.receipt import recall  # noqa: PLC0415  - for this command alone

        if recall(sys.argv[1:]):
            return
    sys.modules.setdefault("inspect", _Later("inspect"))  # click imports it; only help pages and few commands use it
    from kci.cli import run  # noqa: PLC0415  - after the lines above

    run()


def _prepare_streams() -> None:
    """Standard streams that every answer can be written to.

    One that the caller has closed leads nowhere: otherwise the next file that is opened would have its number, and get
    what compilers say. Files and pipes are UTF-8 everywhere; a terminal that lacks a character shows a question mark.
    """
    with suppress(OSError):
        while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:  # takes the numbers that are free
            pass
        os.close(spare)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
        elif number and stream.isatty():
            stream.reconfigure(errors="replace")
        elif number:
            stream.reconfigure(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    start()
