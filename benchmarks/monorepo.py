"""What processor time kci takes over a monorepo, as ratios against an empty Python measured in the
same run.

75 kernels of the sizes that real ones have (most build.toml have 1 to 6 KB, a few 20 to 90 KB, one
550 KB):

    kci matrix over all of them              at most 20 times `python -c pass`
    kci plan --format json, where none of 15,700 sources changed, at most 70 times
    the first time                           at most 120 times
    with --fingerprints                      at most 100 times, and no less than without
    kci render and its checks                at most 100 times
    one kernel                               at most 7 times
    peak memory of each                      at most 120 MB

and the cost per kernel up to 1,000 kernels, which should not grow: a plan of these takes at most
290 times. The script fails when a bound is passed; with --smallest there are four kernels, each
command runs once, and no bound is judged.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

KERNELS = 75
LARGE = 550_000
BOUNDS = {
    "matrix": 20.0, "plan": 70.0, "first plan": 170.0, "fingerprints": 100.0, "render": 100.0,
    "one kernel": 7.0,
}  # fmt: skip
MAX_MB = 120.0
MAX_OF_1000 = 400.0
MAX_GROWTH = 1.5
"""How much more a kernel may cost among 1,000 than among 125."""

LISTED_FILE = re.compile(r'"([\w/-]+\.(?:cu|cpp|h))"')
BACKENDS = [["cuda"], ["cuda", "rocm"], ["cpu", "cuda"], ["cpu", "cuda", "rocm", "xpu"]]
COMPONENT = {
    "cpu": 'cxx-flags = ["-O3", "-fopenmp"]',
    "cuda": 'cuda-capabilities = ["8.0", "9.0a", "10.0"]\ncuda-flags = ["-O3", "--use_fast_math"]',
    "rocm": 'rocm-archs = ["gfx90a", "gfx942"]\nhip-flags = ["-O3"]',
    "xpu": 'sycl-flags = ["-O3"]',
    "metal": "",
}


class Measured(NamedTuple):
    """One command, measured."""

    seconds: float
    megabytes: float
    output: bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smallest", action="store_true", help="four kernels, once; no bound is judged"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="how often each command runs; the fastest counts"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kci-benchmark-") as place:
        os.environ["KCI_CACHE"] = f"{place}/cache"
        if asked.smallest:
            return smallest(Path(place))
        failures = measure(Path(place), asked.rounds)
    for failure in failures:
        print(f"over the bound: {failure}")
    return 1 if failures else 0


def measure(place: Path, rounds: int) -> list[str]:
    repository = place / "monorepo"
    names = make_monorepo(repository, KERNELS, large=True)
    size = sum(file.stat().st_size for file in repository.glob("*/build.toml"))
    sizes = f"{size / 1024:.0f} KB of build.toml, the largest {LARGE // 1000} KB"
    print(f"{KERNELS} kernels, {sizes}; the fastest of {rounds} runs", flush=True)
    kci = [sys.executable, "-m", "kci"]
    plan = [*kci, "plan", ".", "--format", "json"]
    commands = {
        "matrix": [*kci, "matrix", ".", "--format", "json"],
        "plan": plan,
        "fingerprints": [*plan, "--fingerprints"],
        "render": [*kci, "render", "."],
        "one kernel": [*kci, "matrix", names[1], "--format", "names"],
    }
    run([*kci, "matrix", ".", "--format", "names"], repository)  # compiles what is not compiled yet
    # The two that take next to nothing run more often, or the noise of the machine would be most of
    # their ratio.
    quick = {"python": [sys.executable, "-c", "pass"], "one kernel": commands["one kernel"]}
    timed = together(commands, repository, rounds) | together(quick, repository, rounds * 5)
    timed["first plan"] = min(
        run(plan, repository, KCI_CACHE=f"{place}/first-{number}") for number in range(3)
    )
    base = timed["python"].seconds
    print(f"\n{'':24}{'seconds':>9}{'ratio':>8}{'bound':>8}{'MB':>7}")
    print(f"{'python -c pass':24}{base:9.3f}{1:8.1f}{'':8}{timed['python'].megabytes:7.0f}")
    failures = []
    for name, bound in BOUNDS.items():
        took, ratio = timed[name], timed[name].seconds / base
        print(f"{name:24}{took.seconds:9.3f}{ratio:8.1f}{bound:8.0f}{took.megabytes:7.0f}")
        if ratio > bound:
            failures.append(
                f"{name} takes {ratio:.1f} times an empty Python; {bound:.0f} are allowed"
            )
        if took.megabytes > MAX_MB:
            failures.append(f"{name} needs {took.megabytes:.0f} MB; {MAX_MB:.0f} are allowed")
    if timed["plan"].seconds > timed["fingerprints"].seconds:
        failures.append("a plan without fingerprints takes longer than one with them")
    return failures + hash_seeds(commands["matrix"], plan, repository) + growth(place, base)


def smallest(repository: Path) -> int:
    """Whether the commands answer about every kernel."""
    names = make_monorepo(repository, 4, large=False)
    kci = [sys.executable, "-m", "kci"]
    for command in (["matrix", ".", "--format", "json"], ["plan", ".", "--format", "json"]):
        took = run([*kci, *command], repository)
        missing = [name for name in names if name.encode() not in took.output]
        if missing:
            raise SystemExit(f"kci {command[0]} says nothing of {missing}")
        print(f"{command[0]:8}{took.seconds:6.2f} s{took.megabytes:7.0f} MB")
    run([*kci, "render", "."], repository)
    return 0


def hash_seeds(*arguments: object) -> list[str]:
    """Whether the answers are the same bytes whatever the seed of Python's hashes is."""
    *commands, repository = arguments
    different = []
    for command in commands:
        answers = {run(command, repository, PYTHONHASHSEED=seed).output for seed in ("0", "1", "2")}  # type: ignore[arg-type]
        if len(answers) > 1:
            different.append(
                f"{' '.join(command[2:4])} answers differently under another PYTHONHASHSEED"
            )  # type: ignore[index]
    print(f"\nPYTHONHASHSEED 0, 1, 2: {'different' if different else 'the same bytes'}")
    return different


def growth(place: Path, base: float) -> list[str]:
    """The cost per kernel in monorepos of several sizes; the largest have more legs than GitHub
    takes.
    """
    print(f"\n{'kernels':>8}{'matrix':>9}{'plan':>9}{'ms/kernel':>11}{'MB':>7}")
    cost: dict[int, float] = {}
    for count in (125, 250, 500, 1000):
        repository = place / f"of-{count}"
        make_monorepo(repository, count, large=False)
        kci = [sys.executable, "-m", "kci"]
        commands = {
            "matrix": [*kci, "matrix", ".", "--format", "names"],
            "plan": [*kci, "plan", ".", "--format", "json"],
        }
        timed = together(commands, repository, 3)
        seconds = timed["plan"].seconds
        cost[count] = (seconds - base) / count
        per_kernel = f"{cost[count] * 1000:11.2f}"
        print(
            f"{count:8}{timed['matrix'].seconds:9.2f}{seconds:9.2f}{per_kernel}{timed['plan'].megabytes:7.0f}"
        )
    rate, ratio = cost[1000] / cost[125], seconds / base
    print(
        f"a plan of 1,000 kernels takes {ratio:.0f} times an empty Python; {MAX_OF_1000:.0f} are "
        "allowed"
    )
    failures = (
        [f"a kernel costs {rate:.2f} times as much among 1,000 as among 125"]
        if rate > MAX_GROWTH
        else []
    )
    if ratio > MAX_OF_1000:
        failures.append(f"a plan of 1,000 kernels takes {ratio:.0f} times an empty Python")
    return failures


# --- measuring ---


def together(commands: dict[str, list[str]], cwd: Path, rounds: int) -> dict[str, Measured]:
    """Run the commands in turns and take the fastest run of each: other work on the machine only
    ever adds time.
    """
    runs: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            runs[name].append(run(command, cwd, codes=(0, 1)))
    return {
        name: Measured(min(one.seconds for one in found), max(one.megabytes for one in found), b"")
        for name, found in runs.items()
    }


def run(
    command: list[str], cwd: Path, *, codes: tuple[int, ...] = (0,), **environment: str
) -> Measured:
    """Run a command; its processor time and its peak memory."""
    settings = {**os.environ, **environment}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile every module again
    with (
        tempfile.TemporaryFile() as errors,  # a second pipe would fill while the first is read
        subprocess.Popen(
            command, cwd=cwd, env=settings, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode()
    if process.returncode not in codes:
        raise SystemExit(f"{' '.join(command)} failed:\n{said}")
    scale = 1 if sys.platform == "darwin" else 1024
    return Measured(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / 1e6, output)


# --- making kernels ---


def make_monorepo(root: Path, count: int, *, large: bool) -> list[str]:
    """Write kernels into a git repository: a third Python only, a tenth with the stable ABI, one
    huge if asked for.
    """
    names = []
    for number in range(count):
        random_source = random.Random(number)
        name = f"kernel-{number:04d}"
        (root / name).mkdir(parents=True)
        if large and number == 0:
            text = compiled(name, ["cuda"], components=1, sources=LARGE // 62, stable=False)
        elif random_source.random() < 0.3:
            text = noarch(name)
        else:
            backends = random_source.choice(BACKENDS)
            components = random_source.choice([1, 1, 1, 2, 4, 8])
            sources = random_source.choice([2, 5, 10, 30, 60])
            text = compiled(
                name, backends, components, sources, stable=random_source.random() < 0.1
            )
        (root / name / "build.toml").write_text(text, encoding="utf-8")
        write_sources(root / name, text)
        package = root / name / "torch-ext" / name.replace("-", "_")
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        names.append(name)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return names


def write_sources(directory: Path, text: str) -> None:
    """Every file that the text lists, because a kernel whose sources are missing is not planned."""
    for path in sorted(set(LISTED_FILE.findall(text))):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text("// nothing\n", encoding="utf-8")


def general(name: str, backends: list[str]) -> str:
    quoted = ", ".join(f'"{backend}"' for backend in backends)
    return (
        f'[general]\nname = "{name}"\nversion = 1\nedition = 5\nlicense = "Apache-2.0"\n'
        f"backends = [{quoted}]\n\n"
        f'[general.hub]\nrepo-id = "example/{name}"\n\n'
    )


def noarch(name: str) -> str:
    return general(name, ["cpu", "cuda", "rocm", "xpu"]) + "[torch-noarch]\n"


def compiled(name: str, backends: list[str], components: int, sources: int, *, stable: bool) -> str:
    text = (
        general(name, backends)
        + '[torch]\nsrc = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]\n'
    )
    text += 'stable-abi = "2.11"\n' if stable else ""
    for backend in backends:
        for part in range(components):
            paths = (
                f"csrc/{backend}/part_{part}/instantiation_{number:05d}_of_the_kernel.cu"
                for number in range(sources)
            )
            files = ",\n".join(f'  "{path}"' for path in paths)
            text += (
                f'\n[kernel.{backend}_{part}]\nbackend = "{backend}"\ndepends = ["torch"]\n'
                'include = ["csrc"]\n'
            )
            text += f"src = [\n{files},\n]\n{COMPONENT[backend]}\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
