"""A kernel of Python whose work takes a time of one's choice, and a Python that has what benchmarks import."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from buildkit import program, write_tree
from variants import CPU, make_variant

# `torch` and `kernels` as far as the benchmarks ask them anything.
_MODULES = {
    "torch.py": "def manual_seed(seed): pass\ndef allclose(left, right, atol): return abs(left - right) <= atol\n",
    "kernels/__init__.py": (
        "import runpy, types\n"
        "def get_local_kernel(path, backend):\n"
        "    (variant,) = path.iterdir()\n"
        "    names = runpy.run_path(str(variant / '__init__.py'))\n"
        "    return types.SimpleNamespace(**{**names, '__name__': 'gated_norm_1a2b3c4'})\n"
    ),
    "kernels/benchmark.py": (
        "class Benchmark:\n"
        "    seed = None\n"
        "    device = 'cpu'\n"
        "    def __init__(self): self.kernel = self.out = None\n"
        "    def setup(self): pass\n"
    ),
}
PROBED = '{"torch": "2.13.0", "backend": "cpu", "device": "Quick CPU", "cpu": "Quick CPU", "threads": 2, "python": "3"}'
WORK = "def work():\n    value = 1\n    for _ in range(%d):\n        value = value * 5 %% 8191\n    return value\n"
SCRIPT = """
from kernels.benchmark import Benchmark
class Norm(Benchmark):
    seed = 1
    def setup(self): self.want = self.kernel.work()
    def benchmark_base(self): self.out = self.kernel.work()
    def verify_base(self): return self.want
"""


def python_for_benchmarks(folder: Path) -> Path:
    """The program."""
    library = write_tree(folder / "lib", dict(_MODULES))
    (folder / "bin").mkdir()
    probed = f"case \"$*\" in *_backend*) echo 'kci-load-result:{PROBED}'; exit 0;; esac\n"
    return program(
        folder / "bin",
        "python",
        f'{probed}PYTHONPATH={shlex.quote(str(library))}:$PYTHONPATH exec {shlex.quote(sys.executable)} "$@"',
    )


def kernel_with(folder: Path, script: str = SCRIPT) -> Path:
    """A kernel's directory with a script of benchmarks."""
    general = '[general]\nname = "gated-norm"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    return write_tree(folder, {"build.toml": f"{general}[torch-noarch]\n", "benchmarks/benchmark_norm.py": script})


def tree_that_takes(folder: Path, steps: int) -> Path:
    """A tree with a variant whose work takes so many steps."""
    make_variant(folder, CPU, files={"__init__.py": WORK % steps})
    return folder
