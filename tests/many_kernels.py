"""Synthetic repositories with as many kernels as real ones have, and of their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SIZES = {
    20: ["cpu", "cuda", "rocm", "xpu"], 16: ["cuda", "rocm"], 12: ["cuda"], 8: ["cpu", "rocm"],
    4: ["cpu"],
    3: ["noarch-3"], 1: ["noarch-1"],
    0: ["metal"],
}  # fmt: skip
"""What a kernel of about so many legs is built for."""

REAL = (20,) * 2 + (16,) * 2 + (12,) * 12 + (8,) * 6 + (4,) * 12 + (3,) * 6 + (1,) * 8 + (0,) * 4
"""The legs of the 52 kernels of the community's repository (release tier, catalog 2026-08-20),
rounded to the above. There are 338 here and 337 there."""


def make_repository(root: Path, count: int, sizes: Sequence[int] = REAL) -> Path:
    """Write a repository of so many kernels, of these sizes in turn."""
    for number in range(count):
        add_kernel(root, f"kernel-{number:03}", sizes[number % len(sizes)])
    return root


def add_kernel(root: Path, name: str, size: int) -> None:
    """A kernel of about so many legs; what is compiled is empty."""
    directory = root / name
    package = directory / "torch-ext" / name.replace("-", "_")
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def double(x):\n    return x + x\n")
    backends = SIZES[size]
    if backends[0].startswith("noarch"):
        declared = ["cpu", "cuda", "rocm"][: int(backends[0][-1])]
        text = "[torch-noarch]\n"
    else:
        declared = backends
        (directory / "torch-ext" / "torch_binding.cpp").write_text("// nothing\n")
        text = '[torch]\nsrc = ["torch-ext/torch_binding.cpp"]\n'
        for backend in declared:
            (directory / f"{backend}.cpp").write_text("// nothing\n")
            text += (
                f'[kernel.{backend}]\nbackend = "{backend}"\ndepends = ["torch"]\n'
                f'src = ["{backend}.cpp"]\n'
            )
    listed = ", ".join(f'"{backend}"' for backend in declared)
    general = f'name = "{name}"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = [{listed}]\n'
    (directory / "build.toml").write_text(f"[general]\n{general}{text}")
