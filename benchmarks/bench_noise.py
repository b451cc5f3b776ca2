"""Does `kci bench` find a slowdown of 20 % on a busy machine, and none where there is none?

    python benchmarks/bench_noise.py [RUNS] [PROCESSES THAT DISTURB]

The kernel is C++ that g++ compiles here, an RMS norm of float32 in one thread; torch and the loader are stand-ins, so
that a run takes seconds. The processes disturb for as long as it runs.
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
from run.benchkit import kernel_with, python_for_benchmarks
from variants import CPU, make_variant

ROWS = 200
SOURCE = """
#include <cmath>
static float in[1024], out[1024];
extern "C" float work() {
  float sum = 0;
  for (int row = 0; row < ROWS; ++row) {
    float squares = 1e-6f;
    for (int i = 0; i < 1024; ++i) { in[i] = static_cast<float>((i * 31 + row) % 97); squares += in[i] * in[i]; }
    const float scale = 1 / std::sqrt(squares / 1024);
    for (int i = 0; i < 1024; ++i) out[i] = in[i] * scale;
    sum += out[row % 1024];
  }
  return sum - sum;
}
"""
LOADED = """
import ctypes, pathlib
work = ctypes.CDLL(str(pathlib.Path(__file__).with_name("norm.so"))).work
work.restype = ctypes.c_float
"""


def compiled(folder: Path, rows: int) -> Path:
    """A tree with a variant that does so many rows of the norm."""
    folder.mkdir()
    source, binary = folder.with_suffix(".cpp"), folder.with_suffix(".so")
    source.write_text(SOURCE)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", f"-DROWS={rows}", source, "-o", binary], check=True)
    make_variant(folder, CPU, files={"__init__.py": LOADED, "norm.so": binary.read_bytes()})
    return folder


def main(runs: int, disturbing: int) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(disturbing)]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            python, kernel = python_for_benchmarks(folder), kernel_with(folder / "kernel")
            old = compiled(folder / "old", ROWS)
            for what, rows in (("equal", ROWS), ("20 % slower", ROWS * 6 // 5)):
                tree, verdicts = compiled(folder / what.replace(" % ", "-"), rows), Counter()
                ratios: list[float] = []
                for _ in range(runs):
                    words = ["bench", kernel, "--tree", tree, "--against", old, "--python", python, "--format", "json"]
                    said = decode_json(kci(*words).stdout, dict)
                    change = said["benchmarks"][0]["results"][0]["kci"]["change"]
                    verdicts[change["verdict"]] += 1
                    ratios.append(change["ratio"])
                ratio = f"ratio {min(ratios):.3f} to {max(ratios):.3f}"
                print(f"{what}: {dict(verdicts)}, {ratio}, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(*numbers, *(3, os.cpu_count() or 1)[len(numbers) :])
