"""How long `kci matrix` takes for one kernel, as a multiple of starting Python at all.

    python benchmarks/matrix_startup.py           prints the figures
    python benchmarks/matrix_startup.py --check   fails if the multiple is above the bound

The commands are measured in turn in the same run, so that a busy machine slows all. Bytecode is written, as where kci
is installed: without it every start would compile the modules anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOUND = 7.0
"""The multiple that `--check` allows."""
ROUNDS = 25

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "kci matrix, names": ["-m", "kci", "matrix", "examples/relu", "--format", "names"],
    "kci matrix, table": ["-m", "kci", "matrix", "examples/relu"],
    "kci matrix, a filter": ["-m", "kci", "matrix", "examples/relu", "--format", "names", "--where", "torch == newest"],
    "kci matrix, explained": ["-m", "kci", "matrix", "examples/relu", "--explain"],
}


def main() -> None:
    """Measure every command in turn, print what each takes, and judge the first of kci's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"fail above {BOUND:.0f} times")
    check = parser.parse_args().check
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(ROUNDS + 1):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True)
            if turn:  # the first round compiles the modules
                seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["python -c pass"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:<24} {median * 1000:6.1f} ms  {median / base:5.1f} x  (best {min(taken) * 1000:.1f} ms)")
    ratio = statistics.median(seconds["kci matrix, names"]) / base
    if check and ratio > BOUND:
        sys.exit(f"kci matrix takes {ratio:.1f} times the start of Python; the bound is {BOUND:.0f}")


if __name__ == "__main__":
    main()
