"""Time and memory of the history and of the decisions about it, by the number of kernels and days.

    python benchmarks/compat_scale.py [KERNELS...]

Every kernel has 30 variants; one leg in a thousand fails, one in a hundred is unknown. Figures: compat_scale.txt.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kci.compat.decide import WatchState
from kci.compat.history import Failure, RecordedRun, append, each_run, leg_key
from kci.config.settings import Decisions

DAYS = 30
VARIANTS = 30


def run_of(day: int, kernels: int, chance: random.Random) -> RecordedRun:
    """The results of one day."""
    passed, failed, unknown = [], [], []
    for kernel in range(kernels):
        for number in range(VARIANTS):
            variant = f"torch{213 + number % 3}-cxx11-cu1{number:02d}-x86_64-linux"
            key = leg_key(f"kernel-{kernel}", variant, "x86_64-linux", "2.13")
            lot = chance.random()
            if lot < 0.001:
                failed.append(Failure(key, f"csrc/op.cu:{day}: error: no member 'x{kernel % 50}'"))
            else:
                (unknown if lot < 0.011 else passed).append(key)
    at = "2026-11-21T03:17:00+00:00"
    return RecordedRun(day, at, passed=tuple(passed), failed=tuple(failed), unknown=tuple(unknown))


def measure(kernels: int) -> None:
    """Print one line of figures; in a process of its own, because memory is a process's."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        history = Path(place)
        writing = 0.0
        for day in range(DAYS):
            run = run_of(day, kernels, chance)
            started = time.perf_counter()
            append(history, [run])
            writing += time.perf_counter() - started
        size = sum(file.stat().st_size for file in history.iterdir())
        started = time.perf_counter()
        watch = WatchState(Decisions())
        actions = sum(len(watch.step(run)) for run in each_run(history, lambda _: None))
        deciding = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    legs = kernels * VARIANTS * DAYS
    print(
        f"{kernels:7} {legs:9} {writing:8.2f} {deciding:15.2f} {1e6 * deciding / legs:9.2f} "
        f"{size / 2**20:8.1f} {memory:7} {actions:8}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(int(sys.argv[2]))
    else:
        print("kernels   results  write s  read, decide s  us/result  disk MiB  RAM MiB  actions", flush=True)
        for count in sys.argv[1:] or ["250", "500", "1000", "2000"]:
            subprocess.run([sys.executable, __file__, "--one", count], check=True)
