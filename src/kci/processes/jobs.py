"""How many compilers run at once: ninja's jobs and pools, by the cores and the memory of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import msgspec

from kci.catalog.runners import default_runners
from kci.errors import UsageError
from kci.processes.machine import cores, memory


def job_count(asked: int | None, builds: int = 1) -> int:
    """How many commands ninja runs at once: what was asked for, else `MAX_JOBS`, else as many as there are cores.

    Of several builds at once each gets an equal part.

    Raises:
        UsageError: the number asked for is not a positive integer.
    """
    if asked is not None and asked < 1:
        raise UsageError(f"the number of jobs must be at least 1, not {asked}")
    jobs = asked or _positive("MAX_JOBS") or cores()
    return max(1, jobs // builds)


def pool_depth(asked: int | None, backend: str, *, cutlass: bool = False, builds: int = 1) -> int | None:
    """How many compilers of a backend have memory at their worst; None where somebody chose how many are to run.

    nvcc may run several threads (`NVCC_THREADS`), and each of them takes as much.
    """
    if asked is not None or _positive("MAX_JOBS") is not None:
        return None
    threads = nvcc_threads() if backend == "cuda" else None
    one = default_runners().compiler_memory(backend, cutlass=cutlass) * (threads or 1)
    return max(1, memory() // (one * builds))


def nvcc_threads() -> int | None:
    """`NVCC_THREADS`, or None if it is not set.

    Raises:
        UsageError: it is not a positive integer.
    """
    return _positive("NVCC_THREADS")


def _positive(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UsageError(f"{name}={text!r} is not a positive number", hint=f"set {name} to 1 or more, or unset it")
    return int(text)


_TELLS_TIME = (1, 13)
"""Since this version ninja says how much time is left."""

# `[3/17 00:42] c++ csrc/relu.cpp`; the time can have hours, and is `?` at first
_TOLD = re.compile(r"\[(\d+)/(\d+)(?: (?:\?|(?:(\d+):)?(\d\d):(\d\d)))?\] (.*)", re.DOTALL)


class Progress(msgspec.Struct, frozen=True):
    """How far ninja has come."""

    done: int
    """Commands that have ended: one for each translation unit, and the links."""
    total: int
    left: int | None
    """Seconds that the rest will take, by what the same commands took the last time; None if it does not say."""
    what: str
    """The command that has just ended, such as `c++ csrc/relu.cpp`."""


def ninja_status(version: Sequence[int]) -> str:
    """The value of `NINJA_STATUS` for a ninja of a version (major and minor), by which `read_progress` reads it."""
    return "[%f/%t %W] " if tuple(version) >= _TELLS_TIME else "[%f/%t] "


def read_progress(line: str) -> Progress | None:
    """What one of ninja's lines says about its progress; None for a line that says something else."""
    found = _TOLD.fullmatch(line)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.group(3, 4, 5))
    left = hours * 3600 + minutes * 60 + seconds if found[4] else None
    return Progress(int(found[1]), int(found[2]), left, found[6])
