"""How long a merge takes, as ratios against `tar -x` and `sha256sum` of the same artifacts,
measured in the same run.

    26 variants of 80 MB, merged                             at most 0.9 times tar -x plus sha256sum
    one new variant over 25 that are carried                 at most 0.15 times the full merge
    peak memory of either                                    at most 60 MB
    the cost of a variant among 260 of 1 MB                  at most 1.5 times that among 26

The merge has everything on the disk before it ends, `tar` and `sha256sum` have not. The script
fails when a bound is passed. --megabytes makes the variants smaller, for machines without 6 GB to
spare; with --smallest there are two of 1 MB, and no bound is judged.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from kci.config.reader import parse_kernel
from kci.matrix.variants import parse_variant_name
from kci.tree.manifest import leg_for
from kci.tree.metadata import metadata_for, seal
from kci.tree.pack import pack

VARIANTS = 26
FULL, ONE, MEGABYTES, GROWTH = 0.9, 0.15, 60.0, 1.5
TORCHES = [f"2{minor:02}" for minor in range(10, 62)]
COMPUTE = ("cpu", "cu126", "cu130", "cu132", "rocm72")


class Measured(NamedTuple):
    """One merge, measured."""

    seconds: float
    megabytes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smallest", action="store_true", help="two variants of 1 MB, once; no bound is judged"
    )
    parser.add_argument("--megabytes", type=int, default=80, help="size of a variant")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each thing is done; the fastest counts"
    )
    parser.add_argument("--place", help="where to work; the file system matters")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kci-benchmark-", dir=asked.place) as place:
        os.environ["KCI_CACHE"] = str(Path(place) / "cache")
        if asked.smallest:
            measure(Path(place), 2, 1, 1)
            return 0
        failures = measure(Path(place), VARIANTS, asked.megabytes, asked.rounds)
    for failure in failures:
        print(f"over the bound: {failure}")
    return 1 if failures else 0


def measure(place: Path, variants: int, megabytes: int, rounds: int) -> list[str]:
    files = artifacts(place / "large", variants, megabytes * 2**20)
    base = min(plain(files, place / "plain") for _ in range(rounds))
    fulls, ones = [], []
    for _ in range(rounds):
        fulls.append(merged(files, place / "tree"))
        shutil.rmtree(place / "tree")
        merged(files[:-1], place / "tree")
        ones.append(merged(files[-1:], place / "tree"))
        shutil.rmtree(place / "tree")
    full, one = min(item.seconds for item in fulls), min(item.seconds for item in ones)
    memory = max(item.megabytes for item in (*fulls, *ones))
    shutil.rmtree(place / "large")
    print(f"{variants} variants of {megabytes} MB: tar -x and sha256sum {base:.2f} s")
    print(f"full merge            {full:.2f} s, {full / base:.2f} times that")
    print(f"one over {variants - 1} carried   {one:.2f} s, {one / full:.2f} times the full merge")
    print(f"peak memory           {memory:.0f} MB")
    many = artifacts(place / "many", 10 * variants, 2**20)
    few, all_ = (
        min(merged_anew(part, place / "tree") for _ in range(rounds)) / len(part)
        for part in (many[:variants], many)
    )
    print(
        f"a variant of 1 MB     {1000 * few:.1f} ms among {variants}, {1000 * all_:.1f} ms among "
        f"{len(many)}"
    )
    bounds = (
        ("full merge", full / base, FULL),
        ("one over the others", one / full, ONE),
        ("memory", memory, MEGABYTES),
        ("growth to 260 variants", all_ / few, GROWTH),
    )
    return [
        f"{what}: {value:.2f}, at most {bound}" for what, value, bound in bounds if value > bound
    ]


def artifacts(folder: Path, count: int, size: int) -> list[Path]:
    """Artifacts of variants with one large file each."""
    build = parse_kernel(
        b'[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        b'backends = ["cpu", "cuda", "rocm"]\n[torch]\n'
    ).build
    names = [
        f"torch{torch}-cxx11-{compute}-x86_64-linux" for torch in TORCHES for compute in COMPUTE
    ][:count]
    content = os.urandom(2**20)
    made = []
    for name in names:
        directory = folder / "src" / name
        directory.mkdir(parents=True)
        with (directory / "data.so").open("wb") as file:
            for _ in range(size // len(content)):
                file.write(content)
        (directory / "__init__.py").write_text("")
        backend = parse_variant_name(name).backend
        seal(directory, metadata_for(build, backend, "1a2b3c4", archs=["9.0"], variant=name))
        leg = leg_for(directory, system="x86_64-linux", builder="native")
        made.append(pack(directory, folder / f"kci-ab-{name}.tar", leg))
        shutil.rmtree(directory)
    os.sync()
    return made


def plain(files: list[Path], target: Path) -> float:
    """Unpack with tar and hash with sha256sum."""
    started = time.perf_counter()
    for number, file in enumerate(files):
        (target / str(number)).mkdir(parents=True)
        subprocess.run(["tar", "-xf", str(file), "-C", str(target / str(number))], check=True)
    found = [str(path) for path in target.rglob("*") if path.is_file()]
    subprocess.run(["sha256sum", *found], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    os.sync()
    return seconds


def merged(files: list[Path], tree: Path) -> Measured:
    """Merge in a process of its own."""
    script = (
        "import sys, resource; from pathlib import Path; from kci.tree.merge import merge;"
        "merge([Path(name) for name in sys.argv[2:]], Path(sys.argv[1]));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, str(tree), *map(str, files)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    seconds = time.perf_counter() - started
    for file in files:
        if not (tree / file.stem.removeprefix("kci-ab-") / "data.so").is_file():
            sys.exit(f"the merged tree has nothing of {file.name}")
    return Measured(seconds, int(done.stdout) / unit)


def merged_anew(files: list[Path], tree: Path) -> float:
    seconds = merged(files, tree).seconds
    shutil.rmtree(tree)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
