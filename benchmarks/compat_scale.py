"""Processor time and memory of the scheduled side, for as many kernels as the whole Hub has.

    python benchmarks/compat_scale.py [KERNELSxDAYS...]    history, decisions and report
    python benchmarks/compat_scale.py KERNELS...           coverage
    python benchmarks/compat_scale.py --smallest           two kernels of each

For the first, every kernel has 30 variants; one leg in a thousand fails, one in a hundred is
unknown. For the second, kernels are made for cpu, cuda, rocm and xpu, which is 24 variants, one in
fifty of which is not published; the sizes of real ones, most of which are for fewer backends, are
measured beside them (a number with an r). Figures: compat_scale.txt.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from kci.config.settings import Decisions
from kci.plan.workspace import open_workspace
from kci.publish.listing import ListedVariant, TreeListing
from kci.watch.coverage import CoverageState, coverage
from kci.watch.decide import FailureTracker, latest_decisions
from kci.watch.history import Failure, RecordedRun, append, leg_key, read_runs
from kci.watch.report import make_grid, markdown_report

VARIANTS = 30
SIZES = [
    "250x30",
    "500x30",
    "1000x30",
    "2000x30",
    "500x180",
    "66x365",
    "5000x30",
    "5000x90",
    "5000x365",
]
HUBS = ["625", "1250", "2500", "5000", "5000r"]
BACKENDS = ("cpu", "cuda", "rocm", "xpu")
REAL = (20, 20, 16, 16, *(12,) * 12, *(8,) * 6, *(4,) * 12, *(3,) * 20)
"""About how many variants each of 50 real kernels has."""
FOR = {
    20: BACKENDS,
    16: ("cuda", "rocm"),
    12: ("cuda",),
    8: ("cpu", "rocm"),
    4: ("cpu",),
    3: ("cpu",),
}


def legs_of(kernels: int) -> list[tuple[int, str]]:
    """The legs of every run, with the number of their kernel."""
    variants = [
        f"torch{213 + number % 3}-cxx11-cu1{number:02d}-x86_64-linux" for number in range(VARIANTS)
    ]
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
        watch = FailureTracker(Decisions())
        actions = len(latest_decisions(read_runs(history, lambda _: None), watch))
        deciding = time.process_time() - started
        started = time.process_time()
        grid = make_grid(watch)
        folding = time.process_time() - started
        cells = sum(map(len, grid.kernels.values()))
        if cells != len(legs):
            sys.exit(f"the grid has {cells} cells for {len(legs)} legs")
        started = time.process_time()
        report = len(markdown_report(grid, "scale"))
        drawing = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    results = kernels * VARIANTS * days
    print(
        f"{kernels:7} {days:5} {results:9} {writing:8.2f} {deciding:9.2f} "
        f"{1e6 * deciding / results:10.2f} "
        f"{folding:7.2f} {1e6 * folding / results:10.2f} {drawing:8.2f} {report // 1024:10} "
        f"{size / 2**20:9.1f} {memory:8} {actions:7}"
    )


def make_kernels(root: Path, count: int, *, real: bool) -> None:
    """Write kernels whose sources are empty."""
    for number in range(count):
        name, backends = f"kernel-{number}", FOR[REAL[number % len(REAL)]] if real else BACKENDS
        directory = root / name
        (directory / "torch-ext" / name.replace("-", "_")).mkdir(parents=True)
        (directory / "torch-ext" / name.replace("-", "_") / "__init__.py").write_text("")
        text = (
            f'[general]\nname = "{name}"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
            f"backends = {list(backends)}\n"
        )
        text += '[torch]\nsrc = ["torch-ext/binding.cpp"]\n'
        (directory / "torch-ext" / "binding.cpp").write_text("// nothing\n")
        for backend in backends:
            (directory / f"{backend}.cpp").write_text("// nothing\n")
            text += (
                f'[kernel.{backend}]\nbackend = "{backend}"\ndepends = ["torch"]\n'
                f'src = ["{backend}.cpp"]\n'
            )
        (directory / "build.toml").write_text(text)


def measure_hub(kernels: int, *, real: bool) -> None:
    """Print one line about coverage."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        make_kernels(Path(place) / "hub", kernels, real=real)
        marks = [time.process_time()]
        workspace = open_workspace([str(Path(place) / "hub")], catalog="2026-09-17")
        marks.append(time.process_time())
        matrix = workspace.matrix()
        marks.append(time.process_time())
        missing = expected = 0
        for kernel in matrix.kernels:
            held = tuple(
                ListedVariant(variant.name, kernel.name, kernel.version)
                for variant in kernel.variants
                if chance.random() >= 0.02
            )
            found = coverage(kernel, TreeListing("hub", held))
            missing, expected = (
                missing + len(found.names(CoverageState.MISSING)),
                expected + len(found.variants),
            )
        marks.append(time.process_time())
    if expected < kernels:
        sys.exit(f"{kernels} kernels have {expected} variants")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    reading, selecting, covering = (after - before for before, after in pairwise(marks))
    print(
        f"{kernels:7}{'r' if real else ' '} {expected:9} {missing:8} {reading:7.1f} "
        f"{selecting:7.2f} {covering:10.2f} "
        f"{memory:8}",
        flush=True,
    )


def main(sizes: list[str]) -> None:
    """Measure each size in a process of its own."""
    for chosen, head in (
        ([size for size in sizes if "x" in size], HISTORY),
        ([s for s in sizes if "x" not in s], HUB),
    ):
        if chosen:
            print(head, flush=True)
        for size in chosen:
            subprocess.run([sys.executable, __file__, "--one", size], check=True)


HISTORY = (
    "kernels  days   results  write s  decide s  us/result  grid s  us/result  report s "
    "report KiB  disk MiB  RAM MiB  issues"
)
HUB = "kernels   expected  missing  read s matrix s coverage s  RAM MiB"

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"] and "x" in sys.argv[2]:
        measure(*(int(part) for part in sys.argv[2].split("x")))
    elif sys.argv[1:2] == ["--one"]:
        measure_hub(int(sys.argv[2].rstrip("r")), real=sys.argv[2].endswith("r"))
    else:
        main(["2x3", "2"] if sys.argv[1:] == ["--smallest"] else sys.argv[1:] or [*SIZES, *HUBS])
