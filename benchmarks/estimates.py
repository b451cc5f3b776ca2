"""How wrong estimates are: builds variants on this machine, and compares their CPU seconds with what a plan counts.

    python benchmarks/estimates.py KERNEL... [--variants GLOB] [--cache DIR] [--most 20]

Every variant is built with an empty store of objects. Its CPU seconds, less those of building it again when all is
there, are compared with the estimate for one core: the factor between the two, and whether they are within the range
that a plan says. The median and the worst factor are printed at the end.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import kci
from kci.errors import KciError
from kci.inputs.header_names import HeaderNames
from kci.inputs.kernel_inputs import inputs_for
from kci.matrix.names import Kind, this_system
from kci.plan.object_work import work_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+", type=Path)
    parser.add_argument("--variants", default="*-cpu-*", help="which variants, by name")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "kci", help="where environments are")
    parser.add_argument("--catalog", default="2026-08-20")
    parser.add_argument("--most", type=int, default=20, help="how many builds")
    asked = parser.parse_args()
    factors, within = [], 0
    for folder in asked.kernels:
        for name, seconds, (least, most) in expected(folder, asked.variants, asked.catalog):
            took = built(folder, name, asked)
            if took is None:
                continue
            factors.append(max(took / seconds, seconds / took))
            inside = seconds * least <= took <= seconds * most
            within += inside
            said = "" if inside else ", outside of its range"
            text = f"{took:.0f} s, estimated {seconds:.0f} s, factor {factors[-1]:.1f}{said}"
            print(f"{folder.name} {name}: {text}", flush=True)
            if len(factors) == asked.most:
                break
    if not factors:
        print("nothing was built")
        return 1
    worst = f"median factor {statistics.median(factors):.2f}, worst {max(factors):.2f}"
    print(f"{len(factors)} builds: {worst}, {within} in range")
    return 0


def expected(folder: Path, glob: str, catalog: str) -> list[tuple[str, float, tuple[float, float]]]:
    """The variants of a kernel that this machine may build, with the seconds of one core, and the range of these."""
    workspace = kci.open_workspace([str(folder)], catalog=catalog)
    (kernel,) = workspace.kernels
    headers = HeaderNames(inputs_for(kernel.build, folder))
    found = []
    for variant in workspace.matrix(kci.Choice(tier="all")).kernels[0].each_once():
        here = variant.system == this_system() and variant.kind is not Kind.NOARCH
        if here and fnmatch.fnmatchcase(variant.name, glob):
            work = work_of(kernel.build, variant, headers)
            found.append((variant.name, work.seconds(1), work.ends))
    return found


def built(folder: Path, variant: str, asked: argparse.Namespace) -> float | None:
    """CPU seconds of a build of which nothing is there yet; None if it fails."""
    with tempfile.TemporaryDirectory(prefix="kci-estimates-") as place:
        cache = Path(place, "cache")
        cache.mkdir()
        for shared in ("envs", "headers", "cuda", "wheels"):
            (cache / shared).symlink_to(asked.cache / shared)
        command = [sys.executable, "-m", "kci", "build", str(folder), "--variant", variant, "--tier", "all"]
        command += ["--catalog", asked.catalog, "--cache", str(cache), "--output", str(Path(place, "out"))]
        first, again = used(command), used(command)
    return None if first is None or again is None else max(1.0, first - again)


def used(command: list[str]) -> float | None:
    """The CPU seconds of a command and its children; None if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "KCI_COMPILER_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        print(f"left out: {' '.join(command[4:7])}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KciError as error:
        sys.exit(error.message)
