"""Extensions of torch that others publish and many use: no rule about binaries says what is not so
of them.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kci.tree.verify import verify
from variants import make_variant

pytestmark = pytest.mark.network

CUDA = "torch211-cxx11-cu130-x86_64-linux"
RULES = ["KCI740", "KCI746", "KCI751", "KCI752", "KCI753", "KCI754", "KCI755"]

WHEELS = {
    "torchaudio==2.11.0": (
        CUDA,
        ["lib/_torchaudio", "lib/libtorchaudio", "lib/torchaudio_prefixctc"],
    ),
    "torchvision==0.26.0": (CUDA, ["torchvision/_C"]),
    "torchvision==0.29.2": ("torch-stable-abi211-cu130-x86_64-linux", ["torchvision/_C_stable"]),
    "xformers==0.0.35": ("torch-stable-abi210-cu128-x86_64-linux", ["xformers/_C"]),
    "torchao==0.18.0": (CUDA, ["torchao/_C_cutlass_90a", "torchao/_C_mxfp8"]),
}
"""Wheels, what they are built for, and their own libraries.

Others in them are libraries of third parties (libpng, libwebp) that are found by search paths,
which a kernel cannot have: that users lack them (KCI745) is so, and that nothing gives their
functions (KCI746) too."""


def libraries(folder: Path, wheel: str) -> dict[str, bytes]:
    """The libraries of a wheel of the package registry."""
    options = "--quiet --no-deps --only-binary :all:"
    command = [sys.executable, "-m", "pip", "download", *options.split()]
    command += ["--python-version", "3.11", "--dest", str(folder), wheel]
    for platform in ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64"):
        command += ["--platform", platform]
    subprocess.run(command, check=True)
    (found,) = folder.glob("*.whl")
    with zipfile.ZipFile(found) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}


@pytest.mark.parametrize("wheel", WHEELS)
def test_no_rule_is_wrong_about_an_official_wheel(tmp_path: Path, wheel: str) -> None:
    variant, own = WHEELS[wheel]
    there = libraries(tmp_path, wheel)
    files = {name: content for name, content in there.items() if any(part in name for part in own)}
    assert len(files) == len(own)
    made = make_variant(tmp_path, variant, files={"__init__.py": b"", **files})
    assert verify(made, select=RULES) == []
