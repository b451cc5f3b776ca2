"""`kci doctor`, `kci clean`, and what a shell completes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from buildkit import Bare, noarch_kernel, write_tree
from cli.runner import ended, kci
from conftest import ROOT, failure
from kci.config.facts import BACKENDS
from kci.errors import FindingsError
from kci.matrix.catalog.loading import load_catalog
from kci.run import machine_report
from kci.run.machine_report import ToolReport, examine_machine
from kci.utils.atomic import in_use, locked
from kci.utils.cache import PARTS, CacheEntry, list_cache_entries, remove_cache_entry


def examined(cache: Path) -> dict[str, ToolReport]:
    return {item.name: item for item in examine_machine(cache, load_catalog(), BACKENDS)}


@pytest.mark.usefixtures("november")
def test_what_is_missing_is_told_with_what_gets_it(bare: Bare) -> None:
    bare.patch.chdir(bare.place)
    machine = examined(bare.place / "cache")
    assert machine["C++ compiler"].health == "missing"
    assert "apt-get install g++" in machine["C++ compiler"].remedy
    assert "ROCM_PATH" in machine["rocm 7.2"].remedy
    assert "setvars.sh" in machine["xpu 2026.0"].remedy
    assert machine["GPU"].health == "note"
    assert not (bare.place / "cache").exists(), "nothing is made"


@pytest.mark.usefixtures("november")
def test_without_a_network_and_a_place_to_write_that_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_report, "is_reachable", lambda _url: False)
    monkeypatch.setattr(machine_report.os, "access", lambda *_: False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    machine = examined(here / "cache")
    assert machine["torch's index"].detail.endswith("nor http://127.0.0.1:9/simple can be reached")
    assert "PIP_INDEX_URL or PIP_FIND_LINKS" in machine["torch's index"].remedy
    assert machine["cache"].health == "missing"
    assert machine["cache"].remedy == "set KCI_CACHE to a directory that you can write"


def test_nvcc_and_a_gcc_that_is_too_new_for_it(bare: Bare) -> None:
    bare.patch.chdir(bare.place)
    bare.add("g++", "echo 16.2.0")
    cuda = examined(bare.place / "cache")["cuda 13.0"]
    assert cuda.health == "missing"
    assert "takes GCC up to 15" in cuda.detail
    assert "g++-15" in cuda.remedy
    bare.add("g++-15", "echo 15.1.0")
    assert examined(bare.place / "cache")["cuda 13.0"].health == "ok"


def test_with_kernels_it_says_what_is_built_here_and_what_to_set_on_github(tmp_path: Path) -> None:
    noarch_kernel(tmp_path / "kernel")
    told = ended(kci("doctor", tmp_path / "kernel", KCI_CACHE=str(tmp_path / "cache")), 0)
    assert "2 of 2 variants are for this system" in told
    assert "cuda 13.0" in told
    assert "rocm" not in told, "only what the kernel declares"
    assert "require the status check `kci`" in told
    assert "self-hosted" not in told
    own = '[runners.cuda.x86_64-linux]\nlabels = ["self-hosted"]\n'
    (tmp_path / "kernel" / "kci.toml").write_text(own)
    assert "register the self-hosted runners" in kci("doctor", tmp_path / "kernel").stdout


def kept(cache: Path) -> Path:
    names = ("run/a/x", "work/b/v/o", "envs/torch/lib", "ccache/o", "notes/mine", "trees/t.json")
    return write_tree(cache, dict.fromkeys(names, "x" * 1000))


def test_nothing_is_removed_without_yes_and_nothing_but_what_kci_keeps(tmp_path: Path) -> None:
    cache = kept(tmp_path / "cache")
    shown = kci("clean", KCI_CACHE=str(cache))
    assert "5.0 kB in" in shown.stdout
    assert "built variants and their objects" in shown.stdout
    assert "envs/torch" not in shown.stdout
    assert "envs/torch" in kci("clean", "-v", KCI_CACHE=str(cache)).stdout
    assert len(list(cache.rglob("*"))) == len(list(kept(tmp_path / "other").rglob("*")))
    removed = kci("clean", "builds", "--yes", KCI_CACHE=str(cache))
    assert removed.stdout.startswith("3.0 kB removed")
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == ["ccache/o", "envs/torch/lib", "notes/mine"]
    assert kci("clean", "--yes", KCI_CACHE=str(cache)).code == 0
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["mine"]


def test_every_folder_of_the_cache_can_be_cleaned() -> None:
    texts = (path.read_text() for path in (ROOT / "src" / "kci").rglob("*.py"))
    made = set(re.findall(r'(?:cache(?:\(\))?\s+/ "|KCI_CACHE/)([a-z-]+)', "\n".join(texts)))
    assert {"run", "envs", "trees", "inputs", "containers", "home"} <= made
    assert made <= set(sum(PARTS.values(), ()))


def test_links_are_not_followed_out_of_the_cache(tmp_path: Path) -> None:
    cache = kept(tmp_path / "cache")
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "file").write_text("mine")
    (cache / "run" / "link").symlink_to(mine)
    (cache / "run" / "a" / "inside").symlink_to(mine)
    (cache / "cuda").symlink_to(mine)
    assert kci("clean", "--yes", KCI_CACHE=str(cache)).code == 0
    assert (mine / "deep" / "file").read_text() == "mine"
    for path in (mine / "deep", cache / "notes" / "mine"):
        failure(FindingsError, "", remove_cache_entry, cache, CacheEntry("builds", path, 0, 0))


def test_what_is_new_or_in_use_stays(tmp_path: Path) -> None:
    cache = kept(tmp_path / "cache")
    os.utime(cache / "run" / "a" / "x", (0, 0))
    os.utime(cache / "run" / "a", (0, 0))
    assert [item.path.name for item in list_cache_entries(cache) if item.days >= 30] == ["a"]
    with locked(cache / "work" / "b" / "v"):
        assert in_use(cache / "work" / "b")
        cleaned = kci("clean", "--yes", KCI_CACHE=str(cache))
        assert "another kci uses it" in cleaned.stderr
        assert (cache / "work" / "b" / "v" / "o").exists()
    assert not in_use(cache / "work" / "b")
