"""`kci doctor` and `kci clean`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from buildkit import Bare, files_in, noarch_kernel, write_tree
from cli.runner import ended, kci
from conftest import ROOT, failure
from kci.config.facts import BACKENDS
from kci.errors import FindingsError
from kci.matrix.catalog.loading import load_catalog
from kci.run import machine_report
from kci.run.machine_report import ToolReport, examine_machine
from kci.utils.atomic import in_use, locked
from kci.utils.cache import PARTS, CacheEntry, list_cache_entries, remove_cache_entry


@pytest.mark.usefixtures("november")
def test_what_is_missing_is_told_with_what_gets_it(bare: Bare) -> None:
    def machine() -> dict[str, ToolReport]:
        return {item.name: item for item in examine_machine(cache, catalog, BACKENDS)}

    bare.patch.chdir(bare.place)
    cache, catalog = bare.place / "cache", load_catalog()
    first = machine()
    assert first["C++ compiler"].health == "missing"
    assert "apt-get install g++" in first["C++ compiler"].remedy
    assert "ROCM_PATH" in first["rocm 7.2"].remedy
    assert "setvars.sh" in first["xpu 2026.0"].remedy
    assert first["GPU"].health == "note"
    assert not cache.exists(), "nothing is made"
    bare.add("g++", "echo 16.2.0")
    cuda = machine()["cuda 13.0"]
    assert (cuda.health, "takes GCC up to 15" in cuda.detail) == ("missing", True)
    assert "g++-15" in cuda.remedy
    bare.add("g++-15", "echo 15.1.0")
    assert machine()["cuda 13.0"].health == "ok"
    bare.patch.setattr(machine_report, "is_reachable", lambda _url: False)
    bare.patch.setattr(machine_report.os, "access", lambda *_: False)
    bare.patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    alone = machine()
    assert alone["torch's index"].detail.endswith("nor http://127.0.0.1:9/simple can be reached")
    assert "PIP_INDEX_URL or PIP_FIND_LINKS" in alone["torch's index"].remedy
    assert alone["cache"].health == "missing"
    assert alone["cache"].remedy == "set KCI_CACHE to a directory that you can write"


def test_with_kernels_it_says_what_is_built_here_and_what_to_set_on_github(tmp_path: Path) -> None:
    noarch_kernel(tmp_path / "kernel")
    told = ended(kci("doctor", tmp_path / "kernel", KCI_CACHE=str(tmp_path / "cache")), 0)
    parts = ("2 of 2 variants are for this system", "cuda 13.0", "require the status check `kci`")
    assert [part for part in parts if part not in told] == []
    assert "rocm" not in told, "only what the kernel declares"
    assert "self-hosted" not in told
    own = '[runners.cuda.x86_64-linux]\nlabels = ["self-hosted"]\n'
    (tmp_path / "kernel" / "kci.toml").write_text(own)
    assert "register the self-hosted runners" in kci("doctor", tmp_path / "kernel").stdout


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    names = ("run/a/x", "work/b/v/o", "envs/torch/lib", "ccache/o", "notes/mine", "trees/t.json")
    return write_tree(tmp_path / "cache", dict.fromkeys(names, "x" * 1000))


def test_nothing_is_removed_without_yes_and_nothing_but_what_kci_keeps(cache: Path) -> None:
    shown = kci("clean").stdout
    assert "5.0 kB in" in shown
    assert "built variants and their objects" in shown
    assert "envs/torch" not in shown
    assert "envs/torch" in kci("clean", "-v").stdout
    assert len(files_in(cache)) == 6
    assert kci("clean", "builds", "--yes").stdout.startswith("3.0 kB removed")
    assert files_in(cache) == ["ccache/o", "envs/torch/lib", "notes/mine"]
    assert kci("clean", "--yes").stderr == ""
    assert files_in(cache) == ["notes/mine"]


def test_every_folder_of_the_cache_can_be_cleaned() -> None:
    texts = (path.read_text() for path in (ROOT / "src" / "kci").rglob("*.py"))
    made = set(re.findall(r'(?:cache(?:\(\))?\s+/ "|KCI_CACHE/)([a-z-]+)', "\n".join(texts)))
    assert {"run", "envs", "trees", "inputs", "containers", "home"} <= made
    assert made <= set(sum(PARTS.values(), ()))


def test_links_are_not_followed_out_of_the_cache(cache: Path, tmp_path: Path) -> None:
    mine = write_tree(tmp_path / "mine", {"deep/file": "mine"})
    for link in ("run/link", "run/a/inside", "cuda"):
        (cache / link).symlink_to(mine)
    assert kci("clean", "--yes").code == 0
    assert (mine / "deep" / "file").read_text() == "mine"
    for path in (mine / "deep", cache / "notes" / "mine"):
        failure(FindingsError, "", remove_cache_entry, cache, CacheEntry("builds", path, 0, 0))


def test_what_is_new_or_in_use_stays(cache: Path) -> None:
    for old in ("run/a/x", "run/a"):
        os.utime(cache / old, (0, 0))
    assert [item.path.name for item in list_cache_entries(cache) if item.days >= 30] == ["a"]
    with locked(cache / "work" / "b" / "v"):
        assert in_use(cache / "work" / "b")
        ended(kci("clean", "--yes"), 0, "another kci uses it")
        assert (cache / "work" / "b" / "v" / "o").exists()
    assert not in_use(cache / "work" / "b")
