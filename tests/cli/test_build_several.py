"""A leg of several variants: one `kci build` for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buildkit import files_in
from cli.runner import Result, kci
from conftest import ROOT


def build(*words: str | Path, names: Sequence[str]) -> Result:
    """Build variants of an example."""
    chosen = [f"--variant={name}" for name in names]
    return kci("build", ROOT / "examples" / "swiglu", *chosen, *words)


def test_several_variants_are_built_and_packed_one_by_one(tmp_path: Path) -> None:
    names, out = ("torch-cpu", "torch-cuda"), tmp_path / "out"
    done = build("--output", out, "--pack", tmp_path / "packed", names=(*names, "torch-cpu"))
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [str(out / name) for name in names]
    assert files_in(tmp_path / "packed") == [f"kci-swiglu-{name}.tar" for name in names]
    assert kci("merge", tmp_path / "packed", "--into", tmp_path / "tree").code == 0


def test_one_artifact_cannot_hold_several_variants(tmp_path: Path) -> None:
    (tmp_path / "file.tar").touch()
    places = ("--output", tmp_path / "out", "--pack", tmp_path / "file.tar")
    done = build(*places, names=("torch-cpu", "torch-cuda"))
    assert done.code == 2
    assert "names a folder" in done.stderr


def test_an_unknown_variant_stops_before_anything_is_built(tmp_path: Path) -> None:
    done = build("--output", tmp_path / "out", names=("torch-cpu", "torch-nope"))
    assert done.code == 2
    assert not (tmp_path / "out").exists()
