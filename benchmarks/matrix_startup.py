"""How long `kci matrix` takes for one kernel, as a multiple of starting Python at all.

    python benchmarks/matrix_startup.py               fails if the multiple is above the bound
    python benchmarks/matrix_startup.py --smallest    each command twice, no bound is judged

The commands are measured in turn in the same run, so that a busy machine slows all, in a new
environment that has only kci and what it needs: of what developers have beside it, msgspec would
import typing_extensions. The smallest form has the Python that runs it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOUND = 6.0
"""The multiple that is allowed."""
ROUNDS = 25

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "kci matrix, names": ["-m", "kci", "matrix", "examples/relu", "--format", "names"],
    "kci matrix, table": ["-m", "kci", "matrix", "examples/relu"],
    "kci matrix, a filter": [
        "-m",
        "kci",
        "matrix",
        "examples/relu",
        "--format",
        "names",
        "--where",
        "torch == newest",
    ],
    "kci matrix, explained": ["-m", "kci", "matrix", "examples/relu", "--explain"],
}


def main() -> None:
    """Measure every command in turn, print what each takes, and judge the first of kci's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smallest", action="store_true", help="each command twice, no bound is judged"
    )
    smallest = parser.parse_args().smallest
    with tempfile.TemporaryDirectory(prefix="kci-startup-") as folder:
        seconds = (
            measured(sys.executable, 1) if smallest else measured(installed(Path(folder)), ROUNDS)
        )
    base = statistics.median(seconds["python -c pass"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(
            f"{name:<24} {median * 1000:6.1f} ms  {median / base:5.1f} x  (best "
            f"{min(taken) * 1000:.1f} ms)"
        )
    ratio = statistics.median(seconds["kci matrix, names"]) / base
    if ratio > BOUND and not smallest:
        sys.exit(
            f"kci matrix takes {ratio:.1f} times the start of Python; the bound is {BOUND:.0f}"
        )


def installed(folder: Path) -> str:
    """The Python of a new environment with kci and what it needs."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)],
        check=True,
    )
    return python


def measured(python: str, rounds: int) -> dict[str, list[float]]:
    """How long each command takes, in seconds, round for round."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            done = subprocess.run(
                [python, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True
            )
            if name.startswith("kci") and b"torch" not in done.stdout:
                sys.exit(f"{name} names no variant")
            if turn:  # the first round reads the modules from the disk
                seconds[name].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
