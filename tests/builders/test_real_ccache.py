"""Builds through a real ccache: what it has of an earlier build in another place, and that the bytes are the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from buildkit import STABLE_CPU, STABLE_CUDA, copy_kernel, program, quiet, variant
from kci.builders.request import BuildOptions
from kci.config.reader import read_kernel
from kci.run.one_variant import make_variant_dir
from kci.toolchains.launcher import CacheUse
from kci.tree.leg_record import LegRecord

pytestmark = [
    pytest.mark.torch,
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which("ccache") is None, reason="ccache is not installed"),
]


@pytest.fixture
def cache(torch_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, with the environments that there are."""
    for name in ("CCACHE_DIR", "CCACHE_BASEDIR", "CCACHE_DISABLE", "CCACHE_CONFIGPATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KCI_COMPILER_CACHE", "ccache")
    return torch_cache


class Made(NamedTuple):
    directory: Path
    leg: LegRecord


def made(kernel: Path, name: str, cache: Path, torch: str = "2.13", *, kept: bool = False) -> Made:
    """A build for which kci's own objects are gone, unless they are `kept`."""
    if not kept:
        shutil.rmtree(cache / "objects", ignore_errors=True)
    options, out = BuildOptions(cache=cache, unique_id="1a2b3c4"), kernel / "build"
    return Made(out / name, make_variant_dir(read_kernel(kernel), variant(name, torch=torch), out, options, quiet))


def binary(built: Made) -> bytes:
    (module,) = built.directory.glob("*.so")
    return module.read_bytes()


def test_another_checkout_compiles_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with another copy of the same compiler."""
    compiler = program(tmp_path, "compiler", 'exec g++ "$@"')
    monkeypatch.setenv("CXX", str(compiler))
    first, second = (copy_kernel("twice", tmp_path / name) for name in ("one", "two"))
    cold = made(first, STABLE_CPU, cache)
    os.utime(compiler, (10**9, 10**9))
    warm = made(second, STABLE_CPU, cache)
    assert cold.leg.cache == CacheUse("ccache", 0, 2)
    assert warm.leg.cache == CacheUse("ccache", 2, 0)
    before = binary(warm)
    assert binary(cold) == before
    source = second / "csrc" / "twice.cpp"
    source.write_text(source.read_text().replace("2", "3"))
    changed = made(second, STABLE_CPU, cache, kept=True)
    assert changed.leg.cache == CacheUse("ccache", 0, 1), "kci asks for the one that changed"
    assert binary(changed) != before


def test_a_leg_of_another_torch_finds_what_includes_nothing_of_torch(tmp_path: Path, cache: Path) -> None:
    kernel = copy_kernel("bare", tmp_path)
    source = kernel / "csrc" / "bare.cpp"
    source.write_text(f"#include <torch/headeronly/version.h>\n{source.read_text()}int minor = TORCH_VERSION_MINOR;\n")
    cold = made(kernel, STABLE_CPU, cache)
    warm = made(kernel, STABLE_CPU, cache, torch="2.14")
    assert cold.leg.cache == CacheUse("ccache", 0, 2)
    assert warm.leg.cache == CacheUse("ccache", 1, 1)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_goes_through_it_too(tmp_path: Path, cache: Path) -> None:
    first, second = (copy_kernel("bare", tmp_path / name) for name in ("one", "two"))
    cold = made(first, STABLE_CUDA, cache)
    warm = made(second, STABLE_CUDA, cache)
    assert cold.leg.cache == CacheUse("ccache", 0, 2)
    assert warm.leg.cache == CacheUse("ccache", 2, 0)
    assert binary(cold) == binary(warm)


def test_a_header_that_would_be_found_first_is_not_missed(tmp_path: Path, cache: Path) -> None:
    first, second = (copy_kernel("bare", tmp_path / name) for name in ("one", "two"))
    before = binary(made(first, STABLE_CPU, cache))
    text = (first / "include" / "bare.h").read_text()
    for kernel in (second, first):  # known to the compiler cache alone, and compiled here before
        (kernel / "csrc" / "bare.h").write_text(f'{text}\nextern "C" int another_header() {{ return 1; }}\n')
        assert binary(made(kernel, STABLE_CPU, cache)) != before
