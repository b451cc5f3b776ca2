"""Which tests execute which functions of kci. bin/mutate_random.py puts it into a folder as `sitecustomize`.

There every Python that a test starts imports it, and pytest has it as a plugin (PYTEST_DONT_REWRITE: which is there already).
Each function is noted when it is called for the first time in a test, so that a process that is killed has left its part.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

PLACE = os.environ.get("KCI_EXECUTED", "")
SOURCES = os.environ.get("KCI_EXECUTED_SOURCES", "")
_open, _write, _close = os.open, os.write, os.close  # tests put others in their place
_others: dict[int, CodeType] = {}
_noted: dict[int, CodeType] = {}


def _called(frame: FrameType, _event: str, _argument: object) -> None:
    code = frame.f_code
    key = id(code)
    if key in _others or key in _noted:
        return
    if not code.co_filename.startswith(SOURCES):
        _others[key] = code
        return
    _noted[key] = code
    _note("functions", f"{code.co_filename.removeprefix(SOURCES)}:{code.co_qualname}")


def _note(file: str, text: str) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test:
        opened = _open(f"{PLACE}/{file}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _write(opened, f"{test}\t{text}\n".encode())
        _close(opened)


def _begin() -> None:
    _noted.clear()
    threading.settrace(_called)
    sys.settrace(_called)


def pytest_runtest_logstart() -> None:
    """Another test begins."""
    _begin()


def pytest_runtest_makereport(call: Any) -> None:
    """Note how long a test took that passed."""
    if call.when == "call" and call.excinfo is None:
        _note("passed", f"{call.duration:.3f}")


if PLACE:
    os.register_at_fork(after_in_child=_begin)
    _begin()
