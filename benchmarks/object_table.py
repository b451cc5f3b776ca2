"""What single objects of kernels take: measures the rows of kci's table of objects, or others.

    python benchmarks/object_table.py FOLDER [--cache DIR] [--cases FILE] [--box MINUTES]

FOLDER has the kernels. Each object is compiled alone, by `kci build` of a copy of its kernel whose build.toml lists no
other source; a row of the table is printed as soon as it is known, and a comment for what the box of time cut off.
`seconds` are those of the CPU: what `kci build` and all its children used, less what they use when the object is there.
`memory` is the GiB that the compilers held. A file of cases has a line for each: kernel, variant, component, source,
and an arch or a dash. Nothing else should fill the machine's memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import tomlkit

from kci.builders.object_packs import read_costs

KCI = [sys.executable, "-m", "kci"]


class Case(NamedTuple):
    """One object to measure."""

    kernel: str
    variant: str
    component: str
    source: str
    arch: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "kci")
    parser.add_argument("--catalog", default="2026-08-20")
    parser.add_argument("--settings", type=Path, help="a kci.toml, for its mirrors")
    parser.add_argument("--box", type=float, default=10)
    asked = parser.parse_args()
    for line in asked.cases.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            print(measured(Case(*line.split()), asked), flush=True)
    return 0


def measured(case: Case, asked: argparse.Namespace) -> str:
    """A row of the table, or a comment that says why there is none."""
    with tempfile.TemporaryDirectory(prefix="kci-objects-") as place:
        kernel, cache, pack = Path(place, case.kernel), Path(place, "cache"), Path(place, "objects.tar")
        shutil.copytree(asked.folder / case.kernel, kernel)
        only(kernel / "build.toml", case)
        if asked.settings:
            shutil.copyfile(asked.settings, kernel / "kci.toml")
        cache.mkdir()
        for shared in ("envs", "headers", "cuda", "wheels", "inputs"):
            (cache / shared).symlink_to(asked.cache / shared)
        command = [*KCI, "build", str(kernel), "--variant", case.variant, "--tier", "all", "--catalog", asked.catalog]
        command += ["--part", "1/1", "--cache", str(cache), "--objects-to", str(pack), "--jobs", "1"]
        command += [] if case.arch == "-" else ["--arch", case.arch]
        began = time.monotonic()
        cpu, said, code = used([*command, "--stop-after", str(asked.box)])
        wall = time.monotonic() - began
        if code != 0:
            return f"# {' '.join(case)}: {f'not done after {wall:.0f} s' if 'not finished' in said else said[-300:]}"
        cost = read_costs(pack).get(case.source)
        again, _, _ = used(command)
        if cost is None:
            return f"# {' '.join(case)}: its object is not in the pack"
    archs = f'archs = ["{case.arch}"], ' if case.arch != "-" else ""
    return (
        f'    {{ kernel = "{case.kernel}", variant = "{case.variant}", source = "{case.source}", {archs}'
        f"seconds = {cpu - again:.0f}, memory = {cost.memory / 2**30:.1f} }}, # {cost.seconds:.0f} s of wall clock"
    )


def only(path: Path, case: Case) -> None:
    """Leave of a build.toml the one source, and the headers that its component lists."""
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    document["torch"]["src"] = [case.source] if case.component == "torch" else []
    for name in list(document["kernel"]):
        part = document["kernel"][name]
        if name != case.component:
            part["src"] = []
            continue
        part["src"] = [case.source, *(entry for entry in part["src"] if entry.endswith((".h", ".hpp", ".cuh")))]
    path.write_text(tomlkit.dumps(document), encoding="utf-8")


def used(command: list[str]) -> tuple[float, str, int]:
    """The CPU seconds of a command and its children, what it said, and how it ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "KCI_COMPILER_CACHE": "off"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, done.stdout + done.stderr, done.returncode


if __name__ == "__main__":
    sys.exit(main())
