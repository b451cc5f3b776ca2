"""Read very many random, mutated and hostile build.toml files; count what came of them, watch time
and memory.

    python benchmarks/fuzz_reader.py [COUNT] [SEED]
    python benchmarks/fuzz_reader.py --smallest        every shape at 12 KB, and 200 inputs, in one
    process

Every hostile shape is read once at the full size that is read at all, each in a process of its own,
then COUNT (default 100,000) random inputs in one process. Anything but a kernel or diagnostics, an
input that takes more than 2 seconds of processor time to read or to update, or a process larger
than 300 MB ends the run with exit code 1.
"""

from __future__ import annotations

import gc
import itertools
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import fuzzing  # noqa: E402
from kci.config.document import MAX_BYTES  # noqa: E402
from kci.config.reader import parse_kernel  # noqa: E402
from kci.config.update import plan_update  # noqa: E402
from kci.errors import FindingsError  # noqa: E402

SECONDS = 2.0
MEGABYTES = 300


def read(raw: bytes) -> tuple[str, float]:
    """What came of an input, and the time that the slower of reading and updating took."""
    came, slowest = "accepted", 0.0
    for work in (plan_update, parse_kernel):
        start = time.process_time()
        try:
            work(raw)
        except FindingsError as error:
            came = f"refused {error.diagnostics[0].rule}"
        slowest = max(slowest, time.process_time() - start)
    return came, slowest


def megabytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(count: int, seed: int, shapes: list[str]) -> int:
    """Run everything; 1 if a limit was broken. A traceback is a failure as well."""
    wrong = False
    for name in shapes:
        line = subprocess.run(
            [sys.executable, __file__, "--one", name], check=True, capture_output=True, text=True
        ).stdout
        came, seconds, size = line.rsplit(maxsplit=2)
        bad = float(seconds) > SECONDS or int(size) > MEGABYTES
        wrong = wrong or bad
        print(
            f"{name:36} {came:18} {seconds:>6} s {size:>4} "
            f"MB{'  <-- over the limit' if bad else ''}",
            flush=True,
        )
    results: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    slowest = 0.0
    for kind, raw in itertools.islice(fuzzing.endless(seed), count):
        came, seconds = read(raw)
        kinds[kind] += 1
        results[came] += 1
        slowest = max(slowest, seconds)
    print(f"\n{count} inputs, seed {seed}; slowest {slowest:.2f} s; {megabytes()} MB")
    for counter in (kinds, results):
        print("  " + ", ".join(f"{name}: {number}" for name, number in sorted(counter.items())))
    # The process of the smallest form has read every shape itself.
    return int(wrong or slowest > SECONDS or (bool(shapes) and megabytes() > MEGABYTES))


if __name__ == "__main__":
    gc.set_threshold(100_000)  # as the command line does
    if sys.argv[1:2] == ["--one"]:
        shape = sys.argv[2]
        size = MAX_BYTES - 1000
        text = (
            'x = "' + "a" * 50_000_000 if shape == "50 MB string" else fuzzing.HOSTILE[shape](size)
        )
        came, seconds = read(text.encode())
        print(came, f"{seconds:.2f}", megabytes())
    elif sys.argv[1:2] == ["--smallest"]:
        for name, made in fuzzing.HOSTILE.items():
            came, seconds = read(made(12_000).encode())
            if seconds > SECONDS:
                sys.exit(f"{name} of 12 KB takes {seconds:.2f} s")
        sys.exit(main(200, 0, []))
    else:
        every = [*fuzzing.HOSTILE, "50 MB string"]
        sys.exit(
            main(int((sys.argv[1:2] or ["100000"])[0]), int((sys.argv[2:3] or ["0"])[0]), every)
        )
