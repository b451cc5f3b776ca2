"""A leg of several variants: one `kci build` for all of them."""

from __future__ import annotations

from pathlib import Path

from cli.runner import kci
from conftest import ROOT

SWIGLU = ROOT / "examples" / "swiglu"


def test_several_variants_are_built_and_packed_one_by_one(tmp_path: Path) -> None:
    variants = ["--variant", "torch-cpu", "--variant", "torch-cuda", "--variant", "torch-cpu"]
    done = kci(
        "build", SWIGLU, *variants, "--output", tmp_path / "out", "--pack", tmp_path / "packed"
    )
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [
        str(tmp_path / "out" / name) for name in ("torch-cpu", "torch-cuda")
    ]
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == [
        "kci-swiglu-torch-cpu.tar", "kci-swiglu-torch-cuda.tar",
    ]  # fmt: skip
    assert kci("merge", tmp_path / "packed", "--into", tmp_path / "tree").code == 0


def test_one_artifact_cannot_hold_several_variants(tmp_path: Path) -> None:
    (tmp_path / "file.tar").touch()
    variants = ["--variant", "torch-cpu", "--variant", "torch-cuda"]
    done = kci(
        "build", SWIGLU, *variants, "--output", tmp_path / "out", "--pack", tmp_path / "file.tar"
    )
    assert done.code == 2
    assert "names a folder" in done.stderr


def test_an_unknown_variant_stops_before_anything_is_built(tmp_path: Path) -> None:
    done = kci(
        "build",
        SWIGLU,
        "--variant",
        "torch-cpu",
        "--variant",
        "torch-nope",
        "--output",
        tmp_path / "out",
    )
    assert done.code == 2
    assert not (tmp_path / "out").exists()
