"""What compilers read, and what of it is the toolchain's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builders.test_commands import chain
from buildkit import write_tree
from kci.builders.read_files import _as_hip, read_by_compilers
from kci.config.reader import read_kernel
from kci.inputs.kernel_inputs import KernelInputs
from kci.inputs.source_tree import SourceTree
from kci.toolchains.cutlass import Headers, HeaderSource


def test_a_toolchain_in_the_repository_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment, headers that were fetched, and the work directory may all lie beside the kernel."""
    root = write_tree(
        tmp_path,
        {
            "k/build.toml": """\
                [general]
                name = "some-k"
                version = 1
                edition = 5
                license = "MIT"
                backends = ["cpu"]
                [torch-noarch]
                """,
            "k/a.h": "", "venv/a.h": "", "base/a.h": "", "cutlass/a.h": "", "work/a.h": "",
        },
    )  # fmt: skip
    monkeypatch.setattr(sys, "prefix", str(root / "venv"))
    monkeypatch.setattr(sys, "base_prefix", str(root / "base"))
    tools = chain(headers=(Headers("cutlass_3_8", root / "cutlass", ("include",), HeaderSource.FOLDER),))
    inputs = KernelInputs(read_kernel(root / "k").build, root / "k", SourceTree(root))
    named = [str(root / place / "a.h") for place in ("k", "venv", "base", "cutlass", "work")]
    assert read_by_compilers(root / "work", named, tools, [], inputs) == {str(root / "k" / "a.h")}


def test_what_hipify_renames_is_found_again() -> None:
    """`_hip` is what it puts behind the name of a file that would have the name of its source."""
    cases = {
        "csrc/cuda/a.cu": "csrc/hip/a.hip",
        "csrc/a.cu": "csrc/a.hip",
        "csrc/cuda/a.h": "csrc/hip/a.h",
        "b_hip.h": "b.h",
    }
    assert {name: _as_hip(name) for name in cases} == cases
