"""What building with kci costs beside the compilers, as ratios against something measured in the
same run.

    CPU time of a build against its bare commands, one after the other at most 1.08
    a build with nothing to do, against `python -c pass`               at most 170
    `kci run` of three variants against the sum of single builds      at most 0.85, on two cores or
    more
    a second environment with the same torch, in seconds               at most 2

The kernels have ten sources beside their binding, with torch's stable ABI, or the binding alone:
one compiler leaves a core idle, while two at once take 1.6 of two cores already. A torch is
installed into kci's cache if it is not there; nothing is loaded. With nothing to do each object is
looked up in ccache by its content, for a time proves nothing; that takes two thirds of the time.
The script fails when a bound is passed; with --smallest there is a binding without torch,
everything is built once, and no bound is judged.
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

from kci.builders.process.run import silent
from kci.builders.toolchains.environment import ensure_runtime

VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
KCI = [sys.executable, "-m", "kci"]
SETTINGS = 'catalog = "2026-08-20"\n[plan]\nload = []\n'
BOUNDS = {"cpu": 1.08, "no-op": 170.0, "run": 0.85, "environment": 2.0}
SOURCES = 10

BUILD_TOML = """\
[general]
name = "{name}"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]

[torch]
src = ["torch-ext/binding.cpp"]
stable-abi = "2.11"

[kernel.parts]
backend = "cpu"
depends = ["torch"]
src = [{sources}]
"""
SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <vector>

double part_{number}(const std::vector<torch::stable::Tensor> &all) {{
  double sum = {number};
  for (const auto &one : all) sum += static_cast<double>(one.numel());
  return sum;
}}
"""
BINDING = """\
#include <torch/csrc/stable/library.h>
#include "registration.h"
STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, m) { m.def("nothing() -> ()"); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
NO_TORCH = """\
#define PASTE(a, b) a##b
#define NAMED(a, b) PASTE(a, b)
extern "C" __attribute__((visibility("default")))
void *NAMED(PyInit_, TORCH_EXTENSION_NAME)() { return nullptr; }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smallest", action="store_true", help="a binding alone, built once; no bound is judged"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often what is short runs; the fastest counts"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kci-benchmark-") as folder:
        place = Path(folder).resolve()
        (place / "kci.toml").write_text(SETTINGS)
        if asked.smallest:
            one_kernel(place, 1, sources=0)
            return 0
        ratios = one_kernel(place, asked.rounds, SOURCES)
        ratios["run"] = three_at_once(place)
        ratios["environment"] = second_environment(place / "environments", asked.rounds)
    failures = [
        f"{name}: {ratio:.2f} > {BOUNDS[name]}"
        for name, ratio in ratios.items()
        if ratio > BOUNDS[name]
    ]
    for failure in failures:
        print(f"over the bound: {failure}")
    return 1 if failures else 0


def make_kernel(root: Path, name: str, sources: int) -> Path:
    kernel = root / name
    names = [f"csrc/part{number}.cpp" for number in range(sources)]
    files = {path: SOURCE.format(number=number) for number, path in enumerate(names)}
    files["torch-ext/binding.cpp"] = BINDING
    files[f"torch-ext/{name}/__init__.py"] = "from ._ops import ops\n"
    files["build.toml"] = BUILD_TOML.format(
        name=name, sources=", ".join(f'"{path}"' for path in names)
    )
    for path, text in files.items():
        (kernel / path).parent.mkdir(parents=True, exist_ok=True)
        (kernel / path).write_text(text)
    return kernel


def fresh_cache(place: Path, name: str) -> Path:
    """A cache with the user's environments, in which nothing is built yet."""
    user = Path(os.environ.get("KCI_CACHE") or Path.home() / ".cache" / "kci")
    (user / "envs").mkdir(parents=True, exist_ok=True)
    cache = place / name
    cache.mkdir()
    (cache / "envs").symlink_to(user / "envs")
    return cache


def build(kernel: Path, cache: Path, *more: str) -> str:
    """Build a variant, and return what was said."""
    arguments = ["build", str(kernel), "--variant", VARIANT, "--tier", "all", *more]
    variables = {**os.environ, "KCI_COMPILER_CACHE": "off", "KCI_CACHE": str(cache)}
    done = subprocess.run(
        [*KCI, *arguments], capture_output=True, text=True, check=False, env=variables
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout + done.stderr


def used(work: list[str] | str, **options: object) -> tuple[float, float]:
    """CPU and wall seconds of a command and all that it starts."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        work, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )  # type: ignore[call-overload]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - begun


def one_kernel(place: Path, rounds: int, sources: int) -> dict[str, float]:
    """CPU over the bare commands, and a build with nothing to do."""
    kernel = make_kernel(place, "ten", sources)
    if not sources:
        (kernel / "torch-ext" / "binding.cpp").write_text(NO_TORCH)
    cache = fresh_cache(place, "cache")
    build(kernel, cache)  # installs what is missing
    lines = build(kernel, cache, "--dry-run").splitlines()
    bare = [line for line in lines if not line.startswith("#")]
    (place / "bare.sh").write_text(
        "set -e\n" + "\n".join(line for line in bare if not line.startswith("ln "))
    )
    command = [*KCI, "build", str(kernel), "--variant", VARIANT, "--tier", "all"]
    off = {**os.environ, "KCI_COMPILER_CACHE": "off"}
    shown, with_kci = [], []
    for turn in range(rounds):
        # two compilers at once share caches, and cost more
        anew = str(fresh_cache(place, f"cache-{turn}"))
        with_kci.append(used([*command, "--jobs", "1"], env={**off, "KCI_CACHE": anew})[0])
        shown.append(used(["sh", str(place / "bare.sh")], env=off)[0])
    cpu = min(with_kci) / min(shown)
    if cpu < 0.5:
        raise SystemExit(f"a build takes {cpu:.2f} of its compilers: it has compiled nothing")
    print(
        f"CPU of a build over its bare commands     {cpu:6.3f}   ({min(with_kci):.1f} and "
        f"{min(shown):.1f} s)"
    )
    # Without a compiler cache each build compiles anew.
    warm = {
        **os.environ,
        "KCI_COMPILER_CACHE": "ccache",
        "CCACHE_DIR": str(cache / "ccache"),
        "KCI_CACHE": str(cache),
    }
    used(command, env=warm)
    # CPU and not the clock: other work on the machine would be most of either.
    empty = min(used([sys.executable, "-c", "pass"])[0] for _ in range(rounds * 5))
    nothing = min(used(command, env=warm)[0] for _ in range(rounds * 2))
    no_op = nothing / empty
    print(
        f"nothing to do over `python -c pass`       {no_op:6.1f}   ({nothing * 1000:.0f} and "
        f"{empty * 1000:.0f} ms)"
    )
    return {"cpu": cpu, "no-op": no_op}


def three_at_once(place: Path) -> float:
    """Three kernels of one source, the binding, whose single builds leave a core idle."""
    names = ("first", "second", "third")
    kernels = [make_kernel(place, name, 0) for name in names]
    alone, shared = fresh_cache(place, "alone"), fresh_cache(place, "together")
    run = [*KCI, "run", "--only", VARIANT, "--jobs", "2"]
    off = {**os.environ, "KCI_COMPILER_CACHE": "off"}
    singly = 0.0
    for kernel in kernels:
        into = ["--into", str(place / "tree" / kernel.name)]
        singly += used([*run, *into, str(kernel)], env={**off, "KCI_CACHE": str(alone)})[1]
    into = ["--into", str(place / "trees")]
    together = used([*run, *into, *map(str, kernels)], env={**off, "KCI_CACHE": str(shared)})[1]
    ratio = together / singly
    print(
        f"three at once over the sum of the three   {ratio:6.2f}   ({together:.1f} and "
        f"{singly:.1f} s, two jobs)"
    )
    return ratio


def second_environment(cache: Path, rounds: int) -> float:
    """Seconds for an environment whose wheels an earlier one has fetched."""
    seconds = []
    for _ in range(rounds + 1):
        begun = time.monotonic()
        ensure_runtime("2.13", cache=cache, log=silent)
        seconds.append(time.monotonic() - begun)
        shutil.rmtree(cache / "envs")
    print(f"a second environment with torch           {min(seconds[1:]):6.2f} s")
    return min(seconds[1:])


if __name__ == "__main__":
    sys.exit(main())
