"""Processor time and memory of the history, of the decisions about it and of the report, by kernels and days.

    python benchmarks/compat_scale.py [KERNELSxDAYS...]

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

from kci.compat.decide import standing
from kci.compat.history import Failure, RecordedRun, append, each_run, leg_key
from kci.compat.leg_grid import grid_of
from kci.compat.report_site import write_site
from kci.config.settings import Decisions

VARIANTS = 30
SIZES = ["250x30", "500x30", "1000x30", "2000x30", "500x180", "66x365", "5000x30"]


def legs_of(kernels: int) -> list[tuple[int, str]]:
    """The legs of every run, with the number of their kernel."""
    variants = [f"torch{213 + number % 3}-cxx11-cu1{number:02d}-x86_64-linux" for number in range(VARIANTS)]
    return [
        (kernel, leg_key(f"kernel-{kernel}", variant, "x86_64-linux", "2.13", variant[-15:-13]))
        for kernel in range(kernels)
        for variant in variants
    ]


def run_of(day: int, legs: list[tuple[int, str]], chance: random.Random) -> RecordedRun:
    """The results of one day."""
    passed, failed, unknown = [], [], []
    for kernel, key in legs:
        lot = chance.random()
        if lot < 0.001:
            failed.append(Failure(key, f"csrc/op.cu:{day}: error: no member 'x{kernel % 50}'"))
        else:
            (unknown if lot < 0.011 else passed).append(key)
    at = f"2026-11-{day % 28 + 1:02d}T03:17:00+00:00"
    return RecordedRun(day, at, passed=tuple(passed), failed=tuple(failed), unknown=tuple(unknown))


def measure(kernels: int, days: int) -> None:
    """Print one line of figures; in a process of its own, because memory is a process's."""
    chance, legs = random.Random(1), legs_of(kernels)
    with tempfile.TemporaryDirectory() as place:
        history = Path(place) / "history"
        writing = 0.0
        for day in range(days):
            run = run_of(day, legs, chance)
            started = time.process_time()
            append(history, [run])
            writing += time.process_time() - started
        size = sum(file.stat().st_size for file in history.iterdir())
        started = time.process_time()
        actions = len(standing(each_run(history, lambda _: None), Decisions()))
        deciding = time.process_time() - started
        started = time.process_time()
        grid = grid_of(each_run(history, lambda _: None), Decisions())
        folding = time.process_time() - started
        started = time.process_time()
        pages = write_site(grid, Path(place) / "site", "scale")
        drawing = time.process_time() - started
        largest = max((Path(place) / "site" / page).stat().st_size for page in pages)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    results = kernels * VARIANTS * days
    print(
        f"{kernels:7} {days:5} {results:9} {writing:8.2f} {deciding:9.2f} {1e6 * deciding / results:10.2f} "
        f"{folding:7.2f} {1e6 * folding / results:10.2f} {drawing:8.2f} {len(pages):6} {largest // 1024:11} "
        f"{size / 2**20:9.1f} {memory:8} {actions:7}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(*(int(part) for part in sys.argv[2].split("x")))
    else:
        print(
            "kernels  days   results  write s  decide s  us/result  grid s  us/result  pages s  pages "
            "largest KiB  disk MiB  RAM MiB  issues",
            flush=True,
        )
        for size in sys.argv[1:] or SIZES:
            subprocess.run([sys.executable, __file__, "--one", size], check=True)
