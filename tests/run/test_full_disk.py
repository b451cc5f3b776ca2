"""A disk that fills up: the path that is full is named, with what to do, and nothing partial is
left.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildkit import STABLE_CPU, copy_kernel, noarch_kernel
from cli.runner import Result, kci
from kci.utils.atomic import failed_path, full_disk_hint, full_disk_program_hint

FREE = "free space there"
pytestmark = pytest.mark.programs


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of its own with 64 KiB, or so many as a test says."""
    place = tmp_path / "small"
    place.mkdir()
    size = f"size={getattr(request, 'param', 64)}k"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root, and a container that may")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel whose variants are larger than that disk."""
    large = {"torch-ext/just_python/large.py": f"# {os.urandom(60_000).hex()}\n"}
    return noarch_kernel(tmp_path / "kernel", **large)


def built(kernel: Path, *words: str | Path, **environment: str) -> Result:
    return kci("build", kernel, "--variant", "torch-cpu", *words, **environment)


def check_full(done: Result, place: Path) -> None:
    said = done.stdout + done.stderr
    assert (done.code, f"cannot write {place}/" in said) == (1, True), said
    assert "No space left on device" in said
    assert FREE in said
    left = [path for path in place.rglob("*") if not path.is_dir()]
    assert left == [], "nothing partial is left"


def test_the_output_of_a_build_an_artifact_and_the_tree_of_a_merge(
    small: Path, kernel: Path, tmp_path: Path
) -> None:
    for folder in (small / "packed", tmp_path / "packed"):
        folder.mkdir()
    out = ("--output", tmp_path / "out", "--pack")
    check_full(built(kernel, "--output", small / "out", KCI_CACHE=str(tmp_path / "cache")), small)
    assert not list((small / "out").iterdir())
    check_full(built(kernel, *out, small / "packed"), small)
    assert (tmp_path / "out" / "torch-cpu" / "metadata.json").is_file(), "what was built stays"
    assert built(kernel, *out, tmp_path / "packed").code == 0
    check_full(kci("merge", tmp_path / "packed", "--into", small / "tree"), small)
    assert not (small / "tree").exists()


@pytest.mark.parametrize("full", ["cache", "tree"])
def test_a_run(small: Path, kernel: Path, tmp_path: Path, full: str) -> None:
    places = {"cache": tmp_path / "cache", "tree": tmp_path / "tree"} | {full: small / full}
    words = ("--only", "torch-cpu", "--into", places["tree"])
    done = kci("run", kernel, *words, KCI_CACHE=str(places["cache"]))
    said = done.stdout + done.stderr
    full_disk = (str(small), "No space left on device", FREE)
    assert (done.code, [words for words in full_disk if words not in said]) == (1, []), said
    assert not places["tree"].exists()
    assert not list(small.rglob("*.py"))


@pytest.mark.torch
@pytest.mark.usefixtures("compiles_anew")
def test_the_work_directory_of_compilers(small: Path, torch_cache: Path, tmp_path: Path) -> None:
    (torch_cache / "work").symlink_to(small)
    kernel = copy_kernel("twice", tmp_path)
    (kernel / "kci.toml").write_text('catalog = "2026-08-20"\n')
    words = ("--tier", "all", "--output", tmp_path / "out")
    done = kci("build", kernel, "--variant", STABLE_CPU, *words, KCI_CACHE=str(torch_cache))
    assert done.code == 4
    for said in ("No space left on device", f"{torch_cache}/work/", "free space", "KCI_CACHE"):
        assert said in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_other_errors_keep_their_words() -> None:
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a", None, "b")
    assert failed_path(denied, "c") == "a"
    assert full_disk_hint(denied, "KCI_CACHE") == ""
    full = OSError(errno.ENOSPC, "full")
    assert failed_path(full, Path("c")) == "c"
    assert full_disk_hint(full, "--into") == f"{FREE}, or name another place with --into"
    place = ("/cache/envs", "KCI_CACHE")
    told = full_disk_program_hint("x: Disk quota exceeded\n", *place)
    assert told.startswith("free space in /cache/envs or ")
    assert full_disk_program_hint("x: error\n", *place) == ""
