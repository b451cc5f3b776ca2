"""What building with kci costs beside the compilers, as ratios against something measured in the same run.

    CPU time of a build against its bare commands, one after the other at most 1.08
    a build with nothing to do, against `python -c pass`               at most 6
    compilations after a commit that touches one of ten sources        at most 2
    `kci run` of three variants against the sum of single builds       at most 0.7, on two cores or more
    compilations that a second checkout, and another torch, finds in a warm compiler cache (printed; needs ccache)

The kernels have ten sources beside their binding, with torch's stable ABI, or the binding alone: one compiler leaves a
core idle, while two at once take 1.6 of two cores already. A torch is installed into kci's cache if it is not there.
With --check the script fails when a bound is passed.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
KCI = [sys.executable, "-m", "kci"]
CATALOG = ["--catalog", "2026-08-20"]
BOUNDS = {"cpu": 1.08, "no-op": 60.0, "commit": 2.0, "run": 0.7}
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
PLAIN_SOURCE = """\
#include <algorithm>
#include <vector>

double part_{number}(std::vector<double> all) {{
  std::sort(all.begin(), all.end());
  return all.empty() ? {number} : all.front();
}}
"""
BINDING = """\
#include <torch/csrc/stable/library.h>
#include "registration.h"
STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, m) { m.def("nothing() -> ()"); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a bound is passed")
    parser.add_argument("--rounds", type=int, default=3, help="how often what is short runs; the fastest counts")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kci-benchmark-") as folder:
        place = Path(folder).resolve()
        cache = shared_cache(place)
        ratios = one_kernel(place, cache, asked.rounds)
        ratios["run"] = three_at_once(place, cache)
        compiler_cache(place, cache)
    failures = [f"{name}: {ratio:.2f} > {BOUNDS[name]}" for name, ratio in ratios.items() if ratio > BOUNDS[name]]
    for failure in failures:
        print(f"over the bound: {failure}")
    return 1 if failures and asked.check else 0


def make_kernel(root: Path, name: str, sources: int) -> Path:
    kernel = root / name
    names = [f"csrc/part{number}.cpp" for number in range(sources)]
    files = {path: SOURCE.format(number=number) for number, path in enumerate(names)}
    files["torch-ext/binding.cpp"] = BINDING
    files[f"torch-ext/{name}/__init__.py"] = "from ._ops import ops\n"
    files["build.toml"] = BUILD_TOML.format(name=name, sources=", ".join(f'"{path}"' for path in names))
    for path, text in files.items():
        (kernel / path).parent.mkdir(parents=True, exist_ok=True)
        (kernel / path).write_text(text)
    return kernel


def shared_cache(place: Path) -> Path:
    """A cache with the user's environments, and with objects of its own."""
    user = Path(os.environ.get("KCI_CACHE") or Path.home() / ".cache" / "kci")
    (user / "envs").mkdir(parents=True, exist_ok=True)
    cache = place / "cache"
    cache.mkdir()
    (cache / "envs").symlink_to(user / "envs")
    return cache


def without_torch(kernel: Path) -> None:
    """Every other source becomes one that includes nothing of torch, as the sources of GPU code often do."""
    for source in sorted((kernel / "csrc").iterdir())[::2]:
        source.write_text(PLAIN_SOURCE.format(number=source.stem[4:]))


def build(kernel: Path, cache: Path, *more: str, variant: str = VARIANT, **environment: str) -> str:
    """Build a variant, and return what was said."""
    arguments = ["build", str(kernel), "--variant", variant, "--tier", "all", *CATALOG, "--cache", str(cache), *more]
    variables = {**os.environ, "KCI_COMPILER_CACHE": "off", **environment}
    done = subprocess.run([*KCI, *arguments], capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout + done.stderr


def used(work: list[str] | str, **options: object) -> tuple[float, float]:
    """CPU and wall seconds of a command and all that it starts."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(work, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - begun


def compilations(said: str) -> int:
    return len(re.findall(r"^\[\d+/\d+[^\]]*\] c\+\+ (?!compat)", said, re.MULTILINE))


def one_kernel(place: Path, cache: Path, rounds: int) -> dict[str, float]:
    """CPU over the bare commands, a build with nothing to do, and one after a commit."""
    kernel = make_kernel(place, "ten", SOURCES)
    git = ["git", "-C", str(kernel), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    build(kernel, cache)  # installs what is missing
    lines = build(kernel, cache, "--dry-run").splitlines()
    bare = [line for line in lines if not line.startswith("#")]
    (place / "bare.sh").write_text("set -e\n" + "\n".join(line for line in bare if not line.startswith("ln ")))
    command = [*KCI, "build", str(kernel), "--variant", VARIANT, "--tier", "all", *CATALOG, "--cache", str(cache)]
    off = {**os.environ, "KCI_COMPILER_CACHE": "off"}
    shown, with_kci = [], []
    for _ in range(rounds):
        shutil.rmtree(next((cache / "work").glob("ten-*")) / VARIANT / "obj")
        with_kci.append(
            used([*command, "--jobs", "1"], env=off)[0]
        )  # two compilers at once share caches, and cost more
        shown.append(used(["sh", str(place / "bare.sh")], env=off)[0])
    cpu = min(with_kci) / min(shown)
    print(f"CPU of a build over its bare commands     {cpu:6.3f}   ({min(with_kci):.1f} and {min(shown):.1f} s)")
    build(kernel, cache)  # the bare commands have left other times than ninja's
    # CPU and not the clock: other work on the machine would be most of either.
    empty = min(used([sys.executable, "-c", "pass"])[0] for _ in range(rounds * 5))
    nothing = min(used(command, env=off)[0] for _ in range(rounds * 2))
    no_op = nothing / empty
    print(f"nothing to do over `python -c pass`       {no_op:6.1f}   ({nothing * 1000:.0f} and {empty * 1000:.0f} ms)")
    source = kernel / "csrc/part3.cpp"
    source.write_text(source.read_text().replace("double sum", "double total = 0, sum"))
    subprocess.run([*git, "commit", "-qam", "second"], check=True)
    count = compilations(build(kernel, cache))
    print(f"compilations after a commit, of {SOURCES + 1}         {count:6d}")
    return {"cpu": cpu, "no-op": no_op, "commit": float(count)}


def three_at_once(place: Path, cache: Path) -> float:
    """Three kernels of one source, the binding, whose single builds leave a core idle."""
    names = ("first", "second", "third")
    kernels = [make_kernel(place, name, 0) for name in names]
    run = [*KCI, "run", *CATALOG, "--only", VARIANT, "--cache", str(cache)]
    off = {**os.environ, "KCI_COMPILER_CACHE": "off"}

    def forget() -> None:
        for part in ("run", "work"):
            for name in names:
                for old in (cache / part).glob(f"{name}-*"):
                    shutil.rmtree(old)

    singly = 0.0
    for kernel in kernels:
        singly += used([*run, str(kernel), "--into", str(place / "tree" / kernel.name), "--jobs", "2"], env=off)[1]
    forget()
    together = used([*run, *map(str, kernels), "--into", str(place / "trees"), "--jobs", "2"], env=off)[1]
    ratio = together / singly
    print(f"three at once over the sum of the three   {ratio:6.2f}   ({together:.1f} and {singly:.1f} s, two jobs)")
    return ratio


def compiler_cache(place: Path, cache: Path) -> None:
    """What a second leg finds in the compiler cache of the first."""
    if shutil.which("ccache") is None:
        print("hits of a warm compiler cache: ccache is not on the PATH")
        return
    first = make_kernel(place / "a", "cached", SOURCES)
    toml = (first / "build.toml").read_text().replace('stable-abi = "2.11"\n', "")
    (first / "build.toml").write_text(toml)
    without_torch(first)
    second = Path(shutil.copytree(first, place / "another place" / "cached"))
    for what, kernel, torch in (
        ("empty cache", first, "213"),
        ("another checkout", second, "213"),
        ("another torch, 2.12", second, "212"),
    ):
        said = build(kernel, cache, variant=f"torch{torch}-cxx11-cpu-x86_64-linux", KCI_COMPILER_CACHE="ccache")
        found = re.search(r"ccache: (\d+) of (\d+) compilations", said)
        hits, asked = (found[1], found[2]) if found else ("?", "?")
        print(f"hits of a warm compiler cache, {what:22} {hits:>3} of {asked}")


if __name__ == "__main__":
    sys.exit(main())
