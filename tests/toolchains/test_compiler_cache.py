"""The compiler cache that a build uses: which, how it is set up, and what it says of its hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import program
from kci.errors import MissingToolError
from kci.toolchains.compiler_cache import CacheTool, CacheUse, CompilerCache, find_compiler_cache

GXX = ("g++",)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("KCI_COMPILER_CACHE", "CCACHE_DIR", "CCACHE_BASEDIR", "SCCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_ccache_comes_first_because_it_gives_the_compilers_own_bytes(programs: Path) -> None:
    assert find_compiler_cache(GXX) is None
    program(programs, "sccache", "true")
    assert find_compiler_cache(GXX) == CompilerCache(CacheTool.SCCACHE, programs / "sccache")
    program(programs, "ccache", "true")
    assert find_compiler_cache(GXX) == CompilerCache(CacheTool.CCACHE, programs / "ccache")


def test_a_launcher_of_the_users_own_is_enough(programs: Path) -> None:
    program(programs, "ccache", "true")
    assert find_compiler_cache(("/opt/bin/sccache", "g++")) is None


def test_one_can_be_chosen_or_turned_off(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ccache", "sccache"):
        program(programs, name, "true")
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")
    assert find_compiler_cache(GXX) is None
    for choice in ("sccache", str(programs / "sccache")):
        monkeypatch.setenv("KCI_COMPILER_CACHE", choice)
        found = find_compiler_cache(GXX)
        assert found is not None
        assert found.tool is CacheTool.SCCACHE
    for choice in ("distcc", "/nowhere/ccache"):
        monkeypatch.setenv("KCI_COMPILER_CACHE", choice)
        with pytest.raises(MissingToolError, match=choice):
            find_compiler_cache(GXX)


def test_a_dollar_in_a_path_is_no_variable_of_ccache(tmp_path: Path, programs: Path) -> None:
    found = CompilerCache(CacheTool.CCACHE, programs / "ccache")
    made = found.settings(tmp_path / "wo$rk", tmp_path / "cache")
    assert (made["CCACHE_BASEDIR"], made["KCI_CCACHE_BASEDIR"]) == ("${KCI_CCACHE_BASEDIR}", str(tmp_path / "wo$rk"))
    assert made["KCI_CCACHE_STATSLOG"].startswith(str(tmp_path / "wo$rk"))
    assert made["CCACHE_DIR"] == str(tmp_path / "cache/ccache")


def test_what_the_user_has_set_stays(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CompilerCache(CacheTool.CCACHE, programs / "ccache")
    made = found.settings(tmp_path / "work", tmp_path / "cache")
    assert (made["CCACHE_DIR"], made["CCACHE_BASEDIR"]) == (str(tmp_path / "cache/ccache"), str(tmp_path / "work"))
    monkeypatch.setenv("CCACHE_DIR", "/mine")
    assert "CCACHE_DIR" not in found.settings(tmp_path / "work", tmp_path / "cache")


def test_the_hits_of_ccache_are_those_of_this_build(tmp_path: Path, programs: Path) -> None:
    found = CompilerCache(CacheTool.CCACHE, programs / "ccache")
    log = Path(found.settings(tmp_path, tmp_path)["CCACHE_STATSLOG"])
    log.write_text("# old.cu\ncache_miss\n")
    before = found.start(tmp_path, {})
    assert found.use(tmp_path, {}, before) is None, "nothing was compiled"
    hits = "# a.cu\ndirect_cache_hit\nlocal_storage_hit\n# b.cpp\npreprocessed_cache_hit\n"
    log.write_text(f"{hits}# c.cpp\ncache_miss\ndirect_cache_miss\n")
    used = found.use(tmp_path, {}, before)
    assert used == CacheUse("ccache", 2, 1)
    assert str(used) == "ccache: 2 of 3 compilations were in the cache"


def test_the_hits_of_sccache_are_the_difference(tmp_path: Path, programs: Path) -> None:
    text = '{"stats": {"cache_hits": {"counts": %s}, "cache_misses": {"counts": {"C++": 2}}}}'
    answer = tmp_path / "answer"
    path = program(programs, "sccache", f"test $1 = --start-server || cat {answer}")
    found = CompilerCache(CacheTool.SCCACHE, path)
    answer.write_text(text % "{}")
    environment = {"PATH": "/bin:/usr/bin"}
    before = found.start(tmp_path, environment)
    answer.write_text(text % '{"C++": 3, "PTX": 1}')
    assert found.use(tmp_path, environment, before) == CacheUse("sccache", 4, 0)
    answer.write_text("server is gone")
    assert found.use(tmp_path, environment, before) is None
