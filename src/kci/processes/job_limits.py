"""How much of the machine a build may use."""

from __future__ import annotations

import os
import sys

from kci.catalog.runners import default_runners
from kci.errors import UsageError
from kci.processes.cgroups import cpu_limit, memory_limit

_UNKNOWN_MEMORY = 4
"""What to count with where the machine does not say, or where the compiler was never measured."""


def job_count(asked: int | None, backend: str) -> int:
    """How many compilers run at once: what was asked for, else `MAX_JOBS`, else by cores and memory.

    nvcc may itself run several threads (`NVCC_THREADS`), and each of them counts.

    Raises:
        UsageError: the number asked for is not a positive integer.
    """
    if asked is not None:
        if asked < 1:
            raise UsageError(f"the number of jobs must be at least 1, not {asked}")
        return asked
    if (limit := _positive("MAX_JOBS")) is not None:
        jobs = limit
    else:
        build = default_runners().build.get(backend)
        memory = build.memory if build is not None and build.memory else _UNKNOWN_MEMORY
        jobs = max(1, min(_cores(), _memory_gib() // memory))
    threads = nvcc_threads() if backend == "cuda" else None
    return max(1, jobs // (threads or 1))


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


def _cores() -> int:
    """Cores that this process may use, which in a container can be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = cpu_limit()
    return cores if limit is None else max(1, min(cores, round(limit)))


def _memory_gib() -> int:
    if sys.platform == "win32":
        return _UNKNOWN_MEMORY
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = _UNKNOWN_MEMORY * 2**30
    limit = memory_limit()
    return (memory if limit is None else min(memory, limit)) // 2**30
