"""Does `kci bench` find a slowdown of 20 % on a busy machine, and none where there is none?

    python benchmarks/bench_noise.py [RUNS] [PROCESSES THAT DISTURB]

The kernel is examples/relu-tvm-ffi, compiled here, with torch and the loader as users have them. The slower build
waits after each call for a fifth of what it took. The processes disturb for as long as it runs. A run takes 40 seconds
where the first rounds tell, and two to four minutes where all are needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cli.runner import kci
from conftest import ROOT
from kci.files.bounded_json import decode_json

VARIANT, TORCH = "tvm-ffi01-cpu-x86_64-linux", "2.13"
WORK = "  for (int64_t i = 0; i < count; ++i) out[i] = x[i] < T(0) ? T(0) : x[i];\n"
LONGER = f"""  const auto begun = std::chrono::steady_clock::now();
{WORK}  const auto took = std::chrono::steady_clock::now() - begun;
  while (std::chrono::steady_clock::now() - begun < took * 6 / 5) {{}}
"""


def built(folder: Path, *, slower: bool = False) -> Path:
    """A tree with the example's variant for the CPU."""
    shutil.copytree(ROOT / "examples" / "relu-tvm-ffi", folder, ignore=shutil.ignore_patterns("build"))
    source = folder / "csrc" / "relu.cpp"
    text = source.read_text(encoding="utf-8")
    assert WORK in text, source
    source.write_text("#include <chrono>\n" + text.replace(WORK, LONGER if slower else WORK), encoding="utf-8")
    made = kci("build", folder, "--variant", VARIANT)
    assert made.code == 0, made.stderr
    return folder / "build"


def main(runs: int, disturbing: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = built(folder / "old")
        trees = {"equal": built(folder / "new"), "20 % slower": built(folder / "slower", slower=True)}
        verdicts = {what: Counter[str]() for what in trees}
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(disturbing)]
        try:
            for what, tree in [*trees.items()] * runs:
                words = ("--tree", tree, "--against", old, "--torch", TORCH, "--format", "json")
                done = kci("bench", folder / "old", *words)
                assert done.stdout, done.stderr
                record = decode_json(done.stdout, dict)["benchmarks"][0]
                change = record["results"][0]["kci"]["change"]
                verdicts[what][change["verdict"]] += 1
                between = f"{change['ratio']:.3f} ({change['low']:.3f} to {change['high']:.3f})"
                rounds = f"{record['kci']['rounds']} rounds, load {os.getloadavg()[0]:.1f}"
                print(f"{what}: {change['verdict']}, {between}, {rounds}", flush=True)
        finally:
            for process in busy:
                process.kill()
        for what, found in verdicts.items():
            print(f"{what}: {dict(found)}")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(*numbers, *(3, os.cpu_count() or 1)[len(numbers) :])
