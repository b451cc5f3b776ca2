"""How long fingerprints take, against `sha256sum` of the same files.

    python benchmarks/fingerprints.py [FOLDER]      fails when a bound is passed
    python benchmarks/fingerprints.py --smallest    one round of kci's own examples, no bound is
    judged

FOLDER has kernels below it; without one it is kci's own examples. Three things are timed in turn,
and the best of some rounds is printed:

    fingerprints with nothing remembered                            at most 2 times sha256sum
    fingerprints with what an earlier run remembered of the files   at most 0.5 times sha256sum
    sha256sum of the files that these kernels have
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kci.config.discovery import find_kernels
from kci.config.reader import Kernel, read_kernel
from kci.errors import KciError
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.catalog.runners import default_runners
from kci.matrix.selection import compute_matrix
from kci.plan.fingerprint import Fingerprints, builder, fingerprints
from kci.plan.inputs.source_tree import SourceTree
from kci.utils.cache import StatCache

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ROUNDS = 10
BOUNDS = {"fingerprints": 2.0, "remembered": 0.5}


def main(folder: Path, smallest: bool) -> int:
    kernels = readable(folder)
    matrix = compute_matrix(kernels, load_catalog())
    builder()

    def all_of_them(remembered: StatCache | None) -> dict[tuple[str, str], str]:
        tree = SourceTree(folder, remembered)
        sources = {kernel.build.name: Fingerprints(kernel, tree) for kernel in kernels}
        found = fingerprints(sources, matrix, default_runners(), True)
        if remembered is not None:
            remembered.save()
        return found

    with tempfile.TemporaryDirectory() as place:
        first = all_of_them(StatCache(folder, Path(place)))
        if not first or first != all_of_them(StatCache(folder, Path(place))):
            sys.exit("fingerprints differ when nothing has changed, or there are none")
        files = sorted(
            str(path)
            for kernel in kernels
            for path in Path(kernel.directory).rglob("*")
            if path.is_file()
        )
        listed = Path(place) / "files"
        listed.write_text("".join(f"{path}\0" for path in files))
        took = {
            "fingerprints": lambda: all_of_them(None),
            "remembered": lambda: all_of_them(StatCache(folder, Path(place))),
            "sha256sum": lambda: subprocess.run(
                ["xargs", "-0", "-a", listed, "sha256sum"], check=True, stdout=subprocess.DEVNULL
            ),
        }
        best = {name: float("inf") for name in took}
        for _ in range(1 if smallest else ROUNDS):
            for name, call in took.items():
                best[name] = min(best[name], timed(call))
    size = sum(Path(path).stat().st_size for path in files)
    print(
        f"{len(kernels)} kernels, {len(first)} variants, {len(files)} files, {size / 2**20:.0f} MiB"
    )
    ratios = {name: seconds / best["sha256sum"] for name, seconds in best.items()}
    for name, seconds in best.items():
        print(f"{name:14} {seconds * 1000:7.0f} ms  {ratios[name]:.2f} times sha256sum")
    return int(not smallest and any(ratios[name] > bound for name, bound in BOUNDS.items()))


def readable(folder: Path) -> list[Kernel]:
    kernels = []
    for directory in find_kernels([str(folder)]):
        try:
            kernels.append(read_kernel(directory))
        except KciError as error:
            print(f"left out: {error.message}", file=sys.stderr)
    return kernels


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    asked = [Path(word) for word in sys.argv[1:] if word != "--smallest"]
    sys.exit(main(asked[0] if asked else EXAMPLES, "--smallest" in sys.argv))
