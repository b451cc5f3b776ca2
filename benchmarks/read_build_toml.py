"""How long reading takes, as a ratio to starting Python, measured in turns in the same run.

    python benchmarks/read_build_toml.py               judges the ratios
    python benchmarks/read_build_toml.py --smallest    small files once, no ratio is judged

`kci check` of one 550 KB build.toml (the size of the largest real one known) is to stay under 25
times, and of 50 ordinary ones under 15 times, the wall time of `python -c pass`. The files are made
here. PYTHONDONTWRITEBYTECODE is taken out of the environment: with it, every start compiles every
module again.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"one build.toml of 550 KB": 25, "50 ordinary build.toml": 15}

HEAD = """\
# Made by benchmarks/read_build_toml.py.
[general]
name = "kernel-{number}"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cuda", "rocm"]

[general.hub]
repo-id = "acme/kernel-{number}"

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]
"""
COMPONENT = """
[kernel.{backend}_{number}]
backend = "{backend}"
depends = ["torch"]
src = [
{sources}]
{archs}
"""
ARCHS = {
    "cuda": 'cuda-capabilities = ["8.0", "9.0a", "10.0"]',
    "rocm": 'rocm-archs = ["gfx90a", "gfx942"]',
}


def build_toml(number: int, components: int, sources: int) -> str:
    """A build.toml of some components for two backends, each with that many sources."""
    text = HEAD.format(number=number)
    for part in range(components):
        backend = ("cuda", "rocm")[part % 2]
        lines = "".join(
            f'  "csrc/generated/kernel_{part}_{source}_bf16_hdim128.cu",\n'
            for source in range(sources)
        )
        text += COMPONENT.format(backend=backend, number=part, sources=lines, archs=ARCHS[backend])
    return text


def make_sources(kernel: Path, text: str) -> None:
    """Every source that a build.toml names, and the package: checking looks at each, and at what it
    includes.
    """
    (name,) = re.findall('^name = "(.*)"', text, re.MULTILINE)
    package = kernel / "torch-ext" / name.replace("-", "_")
    for directory in (kernel / "csrc/generated", package):
        directory.mkdir(parents=True)
    (package / "__init__.py").touch()
    for source in re.findall(r'"((?:csrc|torch-ext)/[^"]+)"', text):
        (kernel / source).write_text("#include <cuda_runtime.h>\n\n__global__ void kernel();\n")


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """The wall time of a command, which has to succeed."""
    start = time.perf_counter()
    subprocess.run(
        command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def main(smallest: bool) -> int:
    """Measure and print; 1 if a ratio is over its limit."""
    rounds, parts, many = (1, 2, 2) if smallest else (11, 180, 50)
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"PYTHONPATH": str(ROOT / "src"), "GITHUB_ACTIONS": ""}
    with tempfile.TemporaryDirectory() as directory:
        large = Path(directory, "large")
        large.mkdir()
        text = build_toml(0, parts, 62)
        (large / "build.toml").write_text(text)
        make_sources(large, text)
        print(f"one: {len(text) / 1000:.0f} KB")
        ordinary = [Path(directory, f"k{number}") for number in range(many)]
        for number, kernel in enumerate(ordinary):
            kernel.mkdir()
            (kernel / "build.toml").write_text(build_toml(number, 2, 6))
            make_sources(kernel, build_toml(number, 2, 6))
        check = [sys.executable, "-m", "kci", "check"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "one build.toml of 550 KB": [*check, str(large)],
            "50 ordinary build.toml": [*check, *map(str, ordinary)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(rounds + 1):
            for name, command in commands.items():
                taken = seconds(command, environment)
                if turn:  # the first turn warms up and writes bytecode
                    times[name].append(taken)
    base = statistics.median(times.pop("python -c pass"))
    print(f"python -c pass: {base * 1000:.1f} ms (median of {rounds})")
    over = False
    for name, taken in times.items():
        ratio = statistics.median(taken) / base
        over = over or ratio > LIMITS[name]
        print(
            f"kci check, {name}: {statistics.median(taken) * 1000:.0f} ms, {ratio:.1f} times "
            f"(limit {LIMITS[name]})"
        )
    return int(over and not smallest)


if __name__ == "__main__":
    sys.exit(main("--smallest" in sys.argv[1:]))
