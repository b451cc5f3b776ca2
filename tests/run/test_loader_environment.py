"""What a Python can load, and which variants are for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import program
from conftest import failure
from kci.errors import MissingToolError
from kci.matrix.variants import parse_variant_name
from kci.run.loader import LoaderEnvironment, probe, why_incompatible

CUDA_AND_ROCM = {
    (("2.13.1",), "13.1", "cuda"): {
        True: "torch-cpu torch-universal torch-cuda torch213-cxx11-cu130 torch-stable-abi211-cu130",
        False: "torch-rocm torch213-cxx11-cu132 torch213-cxx11-cu126 torch212-cxx11-cu130 "
        "torch-stable-abi214-cu130",
    },
    # Builds of the night, and those of AMD: versions may have more than numbers.
    (("2.15.0.dev20261020", "2.15.0a0"), "7.1.25424-4179531dcd", "rocm"): {
        True: "torch-rocm torch215-cxx11-rocm71 torch-stable-abi215-rocm71",
        False: "torch215-cxx11-rocm72 torch215-cxx11-rocm70 torch214-cxx11-rocm71",
    },
}


@pytest.mark.parametrize(
    ("torches", "toolkit", "backend", "name", "fits"),
    [
        (*machine, f"{name}-x86_64-linux" if name.count("-") > 1 else name, fits)
        for machine, answers in CUDA_AND_ROCM.items()
        for fits, names in answers.items()
        for name in names.split()
    ],
)
def test_which_environment_can_load_a_variant(
    monkeypatch: pytest.MonkeyPatch, torches: tuple[str, ...], toolkit: str, backend: str,
    name: str, fits: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("kci.run.loader.this_system", lambda: "x86_64-linux")
    for torch in torches:
        environment = LoaderEnvironment(torch=torch, toolkit=toolkit, backend=backend)
        assert (why_incompatible(parse_variant_name(name), environment) == "") is fits


def test_a_python_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.run.loader._SECONDS", 0.1)
    hangs = program(tmp_path, "python", "exec sleep 60\n")
    failure(MissingToolError, "does not answer", probe, hangs)


def test_a_python_that_cannot_load_kernels(tmp_path: Path) -> None:
    for python in (tmp_path / "none", program(tmp_path, "python", "echo hello\n")):
        failure(MissingToolError, "does not answer", probe, python)
    answer = 'kci-load-result:{"lacks": "No module named torch"}'
    lacks = program(tmp_path, "python", f"echo '{answer}'\n")
    failure(MissingToolError, "cannot load kernels: No module named torch", probe, lacks)
