"""How wrong estimates are: compiles variants on this machine, and compares their CPU seconds with what a plan counts.

    python benchmarks/estimates.py KERNEL[=ARCH,...]... [--variants GLOB] [--cache DIR] [--most 20] [--box MINUTES]
        [--rows FILE]

Every variant is compiled with an empty store of objects, one source at a time; with architectures, in a copy of the
kernel whose CUDA components name these. Its CPU seconds, less those of the same command when all is there, are compared
with the estimate for one core: the factor between the two, and whether they are within the range that a plan says. The
median and the worst factor are printed at the end. The file gets a row for each object, as in kci's table of objects
(`plan/data/objects.toml`): its share of the CPU seconds, by wall clocks, and the GiB that its compilers held at most.
What does not end in the box of time counts for its rows alone.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tomlkit

import kci
from kci.builders.object_packs import read_costs
from kci.errors import KciError
from kci.inputs.header_names import HeaderNames
from kci.inputs.kernel_inputs import inputs_for
from kci.matrix.names import Kind, this_system
from kci.matrix.variants import Variant
from kci.plan.object_work import ObjectCost, Work, work_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--variants", default="*-cpu-*", help="which variants, by name")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "kci", help="where environments are")
    parser.add_argument("--catalog", default="2026-08-20")
    parser.add_argument("--most", type=int, default=20, help="how many builds")
    parser.add_argument("--box", type=float, default=10, help="minutes that a build may take")
    parser.add_argument("--rows", type=Path)
    asked = parser.parse_args()
    factors, within = [], 0
    for named in asked.kernels:
        for variant, work, took in measured(named, asked):
            seconds, (least, most) = work.seconds(1), work.ends
            if took.rows and asked.rows:
                with asked.rows.open("a", encoding="utf-8") as file:
                    file.writelines(rows(variant, named, took))
            if not took.done:
                continue
            factors.append(max(took.cpu / seconds, seconds / took.cpu))
            inside = seconds * least <= took.cpu <= seconds * most
            within += inside
            said = "" if inside else ", outside of its range"
            text = f"{took.cpu:.0f} s, estimated {seconds:.0f} s, factor {factors[-1]:.1f}{said}"
            print(f"{named} {variant.name}: {text}", flush=True)
            if len(factors) == asked.most:
                break
    if not factors:
        print("nothing was built")
        return 1
    worst = f"median factor {statistics.median(factors):.2f}, worst {max(factors):.2f}"
    print(f"{len(factors)} builds: {worst}, {within} in range")
    return 0


class Took(NamedTuple):
    """What compiling a variant took."""

    cpu: float
    """Seconds."""
    done: bool
    rows: dict[str, ObjectCost]


def measured(named: str, asked: argparse.Namespace) -> Iterator[tuple[Variant, Work, Took]]:
    """The variants of a kernel that this machine compiles, what a plan counts for them, and what they took."""
    path, _, archs = named.partition("=")
    with tempfile.TemporaryDirectory(prefix="kci-estimates-") as place:
        folder = Path(place, Path(path).name)
        shutil.copytree(path, folder)
        if archs:
            document = tomlkit.parse((folder / "build.toml").read_text(encoding="utf-8"))
            for part in document["kernel"].values():
                if part["backend"] == "cuda":
                    part["cuda-capabilities"] = archs.split(",")
            (folder / "build.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
        workspace = kci.open_workspace([str(folder)], catalog=asked.catalog)
        (kernel,) = workspace.kernels
        headers = HeaderNames(inputs_for(kernel.build, folder))
        for variant in workspace.matrix(kci.Choice(tier="all")).kernels[0].each_once():
            here = variant.system == this_system() and variant.kind is not Kind.NOARCH
            if here and fnmatch.fnmatchcase(variant.name, asked.variants):
                took = compiled(folder, variant.name, asked, Path(place))
                if took is not None:
                    yield variant, work_of(kernel.build, variant, headers), took


def compiled(folder: Path, variant: str, asked: argparse.Namespace, place: Path) -> Took | None:
    """What compiling all sources of a variant takes of which nothing is there yet; None if it fails."""
    cache, pack = place / f"cache-{variant}", place / f"{variant}.tar"
    cache.mkdir()
    for shared in ("envs", "headers", "cuda", "wheels"):
        (cache / shared).symlink_to(asked.cache / shared)
    command = [sys.executable, "-m", "kci", "build", str(folder), "--variant", variant, "--tier", "all"]
    command += [
        "--catalog",
        asked.catalog,
        "--cache",
        str(cache),
        "--part",
        "1/1",
        "--jobs",
        "1",
        "--objects-to",
        str(pack),
    ]
    first, said = used([*command, "--stop-after", str(asked.box)])
    done = said is None
    if said is not None and "not finished" not in said:
        print(f"left out: {folder.name} {variant}: {said[-300:]}", file=sys.stderr)
        return None
    if not done:
        print(f"not done: {folder.name} {variant}: {first:.0f} s", file=sys.stderr)
    found = read_costs(pack) if pack.exists() else {}
    again = used(command)[0] if done else 0.0
    return Took(max(1.0, first - again), done, found)


def rows(variant: Variant, named: str, took: Took) -> Iterator[str]:
    """The lines of a table of objects."""
    path, _, archs = named.partition("=")
    share = took.cpu / sum(cost.seconds for cost in took.rows.values()) if took.done else 1.0
    for source, cost in sorted(took.rows.items()):
        device = archs if source.endswith(".cu") else ""
        known = {"kernel": Path(path).name, "source": source, "archs": device.split(",") if device else []}
        known |= {"seconds": round(cost.seconds * share), "memory": round(cost.memory / 2**30, 1)}
        known |= {"stable": variant.kind is Kind.STABLE_ABI}
        yield tomlkit.dumps({"object": [known]}) + f"# wall clock {cost.seconds:.0f} s\n\n"


def used(command: list[str]) -> tuple[float, str | None]:
    """The CPU seconds of a command and its children, and what it said if it failed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "KCI_COMPILER_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, done.stdout + done.stderr if done.returncode else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KciError as error:
        sys.exit(error.message)
