"""Does `kci bench` find a slowdown of 20 % on a busy machine, and none where there is none?

    python benchmarks/bench_noise.py [RUNS] [PROCESSES THAT DISTURB]

A kernel of Python, so that no compiler and no torch is needed; the processes disturb for as long as it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cli.runner import kci
from kci.files.bounded_json import decode_json
from run.benchkit import kernel_with, python_for_benchmarks, tree_that_takes

STEPS = 5000


def main(runs: int, disturbing: int) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(disturbing)]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            python, kernel = python_for_benchmarks(folder), kernel_with(folder / "kernel")
            old = tree_that_takes(folder / "old", STEPS)
            for what, steps in (("equal", STEPS), ("20 % slower", STEPS * 6 // 5)):
                tree, verdicts = tree_that_takes(folder / what.replace(" % ", "-"), steps), Counter()
                for _ in range(runs):
                    words = ["bench", kernel, "--tree", tree, "--against", old, "--python", python, "--format", "json"]
                    said = decode_json(kci(*words).stdout, dict)
                    verdicts[said["benchmarks"][0]["results"][0]["kci"]["change"]["verdict"]] += 1
                print(f"{what}: {dict(verdicts)}, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(*numbers, *(3, os.cpu_count() or 1)[len(numbers) :])
