"""`kci build --check-reproducible`: a second build elsewhere, out of the inputs alone, must give the same bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from buildkit import STABLE_CPU, STABLE_CUDA, copy_kernel, noarch_kernel
from cli.runner import kci
from kci.tree.metadata import FILE_NAME

SECONDS_OF_2001 = 10**9


def build(kernel: Path, variant: str, tmp_path: Path, *more: str, cache: Path | None = None) -> tuple[int, str]:
    arguments = ["build", str(kernel), "--variant", variant, "--output", str(tmp_path / "out"), "--check-reproducible"]
    done = kci(*arguments, "--cache", str(cache or tmp_path / "cache"), *more)
    return done.code, done.stderr


@pytest.mark.rule("KCI512", triggers=False)
def test_a_variant_of_python_only_is_the_same(tmp_path: Path) -> None:
    code, said = build(noarch_kernel(tmp_path / "k"), "torch-cpu", tmp_path)
    assert code == 0, said
    assert "building torch-cpu again in " in said
    assert "torch-cpu has the same bytes when it is built in another directory" in said
    assert (tmp_path / "out/torch-cpu" / FILE_NAME).is_file()


def test_nix_has_a_check_of_its_own(tmp_path: Path) -> None:
    code, said = build(noarch_kernel(tmp_path / "k"), "torch-cpu", tmp_path, "--builder", "nix")
    assert code == 2
    assert "nix build --rebuild" in said


@pytest.mark.torch
@pytest.mark.rule("KCI512", triggers=False)
def test_a_compiled_variant_is_the_same_and_nothing_is_left(
    torch_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = shutil.which("ccache") is not None
    monkeypatch.setenv("KCI_COMPILER_CACHE", "ccache" if caches else "off")
    kernel = copy_kernel("bare", tmp_path)
    code, said = build(kernel, STABLE_CPU, tmp_path, cache=torch_cache)
    assert code == 0, said
    assert "has the same bytes" in said
    assert said.count("c++ csrc/bare.cpp") == 2
    assert said.count("ccache: 0 of ") == 2 * caches, "really compiled twice"
    assert len(list((torch_cache / "work").iterdir())) == 1


@pytest.mark.torch
@pytest.mark.rule("KCI512", triggers=True)
def test_what_depends_on_the_file_is_found_and_shown(torch_cache: Path, tmp_path: Path) -> None:
    kernel = copy_kernel("bare", tmp_path)
    source = kernel / "csrc/bare.cpp"
    source.write_text(source.read_text() + '\nextern "C" const char *made() { return __TIMESTAMP__; }\n')
    os.utime(source, (SECONDS_OF_2001, SECONDS_OF_2001))
    artifact = tmp_path / "a.tar"
    code, said = build(kernel, STABLE_CPU, tmp_path, "--pack", str(artifact), cache=torch_cache)
    assert code == 1
    assert "KCI512" in said
    assert ".abi3.so (" in said
    assert "from byte" in said
    assert not artifact.exists()


@pytest.mark.torch
@pytest.mark.rule("KCI512", triggers=False)
def test_cuda_is_the_same(torch_cache: Path, tmp_path: Path) -> None:
    kernel = copy_kernel("bare", tmp_path)
    config = kernel / "build.toml"
    config.write_text(config.read_text().replace('["9.0"]', '["8.0", "9.0"]'))
    code, said = build(kernel, STABLE_CUDA, tmp_path, "--arch", "9.0", cache=torch_cache)
    assert code == 0, said
