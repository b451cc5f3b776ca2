"""What a Python can load, and which variants are for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kci.errors import MissingToolError
from kci.matrix.variants import parse_variant_name
from kci.run.loader import LoaderEnvironment, probe, why_incompatible


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("torch-cpu", True),
        ("torch-universal", True),
        ("torch-rocm", False),
        ("torch-cuda", True),
        ("torch213-cxx11-cu130-x86_64-linux", True),
        ("torch213-cxx11-cu132-x86_64-linux", False),
        ("torch213-cxx11-cu126-x86_64-linux", False),
        ("torch212-cxx11-cu130-x86_64-linux", False),
        ("torch-stable-abi211-cu130-x86_64-linux", True),
        ("torch-stable-abi214-cu130-x86_64-linux", False),
    ],
)
def test_which_environment_can_load_a_variant(
    monkeypatch: pytest.MonkeyPatch, name: str, fits: bool
) -> None:
    monkeypatch.setattr("kci.run.loader.this_system", lambda: "x86_64-linux")
    environment = LoaderEnvironment(torch="2.13.1", toolkit="13.1", backend="cuda")
    assert (why_incompatible(parse_variant_name(name), environment) == "") is fits


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("torch215-cxx11-rocm71-x86_64-linux", True),
        ("torch-rocm", True),
        ("torch215-cxx11-rocm72-x86_64-linux", False),
        ("torch214-cxx11-rocm71-x86_64-linux", False),
        ("torch-stable-abi215-rocm71-x86_64-linux", True),
    ],
)
def test_versions_may_have_more_than_numbers(
    monkeypatch: pytest.MonkeyPatch, name: str, fits: bool
) -> None:
    """Builds of the night, and those of AMD and NVIDIA."""
    monkeypatch.setattr("kci.run.loader.this_system", lambda: "x86_64-linux")
    for torch in ("2.15.0.dev20261020", "2.15.0a0"):
        environment = LoaderEnvironment(torch=torch, toolkit="7.1.25424-4179531dcd", backend="rocm")
        assert (why_incompatible(parse_variant_name(name), environment) == "") is fits


def test_a_python_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.run.loader._SECONDS", 0.1)
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(MissingToolError, match="does not answer"):
        probe(tmp_path / "python")


def test_a_python_that_cannot_load_kernels(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="does not answer"):
        probe(tmp_path / "none")
    (tmp_path / "python").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(MissingToolError, match="does not answer"):
        probe(tmp_path / "python")
