"""The launcher of compilers that a build uses: which, how it is set up, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import program
from kci.config.values import LauncherTool
from kci.errors import MissingToolError
from kci.toolchains.launcher import CacheUse, Launcher, find_launcher

GXX = ("g++",)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    own = ("CCACHE_DIR", "CCACHE_BASEDIR", "CCACHE_CONFIGPATH", "SCCACHE_DIR", "SCCACHE_CONF")
    for name in ("KCI_COMPILER_CACHE", *own):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_ccache_comes_first_because_it_gives_the_compilers_own_bytes(programs: Path) -> None:
    assert find_launcher(GXX) is None
    program(programs, "sccache", "true")
    assert find_launcher(GXX) == Launcher(LauncherTool.SCCACHE, programs / "sccache")
    program(programs, "ccache", "true")
    assert find_launcher(GXX) == Launcher(LauncherTool.CCACHE, programs / "ccache")


def test_a_launcher_of_the_users_own_is_enough(programs: Path) -> None:
    program(programs, "ccache", "true")
    assert find_launcher(("/opt/bin/sccache", "g++")) is None


def test_one_can_be_chosen_or_turned_off(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ccache", "sccache"):
        program(programs, name, "true")
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")
    assert find_launcher(GXX) is None
    for choice in ("sccache", str(programs / "sccache")):
        monkeypatch.setenv("KCI_COMPILER_CACHE", choice)
        found = find_launcher(GXX)
        assert found is not None
        assert found.tool is LauncherTool.SCCACHE
    for choice in ("distcc", "/nowhere/ccache"):
        monkeypatch.setenv("KCI_COMPILER_CACHE", choice)
        with pytest.raises(MissingToolError, match=choice):
            find_launcher(GXX)


@pytest.mark.parametrize("tool", ["ccache", "sccache", "distcc", "icecc"])
def test_kci_toml_chooses_and_the_environment_goes_before_it(
    programs: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    for name in ("ccache", tool):
        program(programs, name, "true")
    wanted = LauncherTool(tool)
    assert find_launcher(GXX, wanted) == Launcher(wanted, programs / tool)
    assert find_launcher((f"/opt/{tool}", "g++"), wanted) is None, "CXX names one"
    monkeypatch.setenv("KCI_COMPILER_CACHE", "ccache")
    assert find_launcher(GXX, wanted) == Launcher(LauncherTool.CCACHE, programs / "ccache")
    monkeypatch.delenv("KCI_COMPILER_CACHE")
    assert find_launcher(GXX, LauncherTool.OFF) is None


def test_what_kci_toml_asks_for_is_not_replaced_by_another(programs: Path) -> None:
    program(programs, "ccache", "true")
    said: list[str] = []
    assert find_launcher(GXX, LauncherTool.DISTCC, said.append) is None
    expected = "kci.toml starts compilers through distcc, which is not on the PATH: they are started without it"
    assert said == [expected]


@pytest.mark.parametrize(
    ("tool", "prefix", "words"),
    [
        ("ccache", "", []),
        ("ccache", "distcc", ["ccache distcc"]),
        ("sccache", "", ["sccache"]),
        ("distcc", "", ["distcc"]),
        ("icecc", "", ["icecc"]),
    ],
)
def test_an_object_of_another_compiler_has_another_name(
    programs: Path, tool: str, prefix: str, words: list[str]
) -> None:
    path = program(programs, tool, f'test "$*" = "--get-config prefix_command" && echo {prefix}')
    assert Launcher(LauncherTool(tool), path).words() == words


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"Disabled":"disabled"}', ""),
        ('{"NotConnected":["http://user:secret@host/","refused"]}', "sccache: its scheduler has no server; all is"),
        (
            '{"SchedulerStatus":["http://user:secret@host/",{"num_servers":2,"num_cpus":1,"in_progress":0}]}',
            "sccache: 2 servers with 1 core compile too",
        ),
        (
            '{"SchedulerStatus":["http://host/",{"num_servers":0,"num_cpus":0,"in_progress":0}]}',
            "sccache: its scheduler has no server; all is",
        ),
        ("nonsense", ""),
    ],
)
def test_what_sccache_knows_of_its_servers_is_said_without_their_address(
    programs: Path, answer: str, said: str
) -> None:
    path = program(programs, "sccache", f"test $1 = --dist-status && echo '{answer}'")
    line = Launcher(LauncherTool.SCCACHE, path).about_to_run({}, [])
    assert line.startswith(said)
    assert bool(line) == bool(said)
    assert "secret" not in line


def test_what_cannot_be_sent_is_said(programs: Path) -> None:
    sender, cache = (Launcher(LauncherTool(name), programs / name) for name in ("distcc", "ccache"))
    assert sender.about_to_run({}, []) == "distcc sends C++ to its hosts"
    assert sender.about_to_run({}, ["nvcc"]) == "distcc sends C++ to its hosts; nvcc cannot be sent and runs here"
    assert cache.about_to_run({}, []) == ""
    assert sender.use(programs, {}, sender.start(programs, {})) is None


@pytest.mark.parametrize(("tool", "file"), [("sccache", "SCCACHE_CONF"), ("ccache", "CCACHE_CONFIGPATH")])
def test_a_file_of_settings_that_the_user_names_says_where_data_lie(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, tool: str, file: str
) -> None:
    found, place = Launcher(LauncherTool(tool), programs / tool), f"{tool.upper()}_DIR"
    assert place in found.settings(tmp_path, tmp_path)
    monkeypatch.setenv(file, "/mine")
    assert place not in found.settings(tmp_path, tmp_path)
    assert Launcher(LauncherTool.DISTCC, programs / "distcc").settings(tmp_path, tmp_path) == {}


def test_a_dollar_in_a_path_is_no_variable_of_ccache(tmp_path: Path, programs: Path) -> None:
    found = Launcher(LauncherTool.CCACHE, programs / "ccache")
    made = found.settings(tmp_path / "wo$rk", tmp_path / "cache")
    assert (made["CCACHE_BASEDIR"], made["KCI_CCACHE_BASEDIR"]) == ("${KCI_CCACHE_BASEDIR}", str(tmp_path / "wo$rk"))
    assert made["KCI_CCACHE_STATSLOG"].startswith(str(tmp_path / "wo$rk"))
    assert made["CCACHE_DIR"] == str(tmp_path / "cache/ccache")


def test_what_the_user_has_set_stays(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Launcher(LauncherTool.CCACHE, programs / "ccache")
    made = found.settings(tmp_path / "work", tmp_path / "cache")
    assert (made["CCACHE_DIR"], made["CCACHE_BASEDIR"]) == (str(tmp_path / "cache/ccache"), str(tmp_path / "work"))
    monkeypatch.setenv("CCACHE_DIR", "/mine")
    assert "CCACHE_DIR" not in found.settings(tmp_path / "work", tmp_path / "cache")


def test_the_hits_of_ccache_are_those_of_this_build(tmp_path: Path, programs: Path) -> None:
    found = Launcher(LauncherTool.CCACHE, programs / "ccache")
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
    found = Launcher(LauncherTool.SCCACHE, path)
    answer.write_text(text % "{}")
    environment = {"PATH": "/bin:/usr/bin"}
    before = found.start(tmp_path, environment)
    answer.write_text(text % '{"C++": 3, "PTX": 1}')
    assert found.use(tmp_path, environment, before) == CacheUse("sccache", 4, 0)
    shared = '"dist_compiles": {"a:1": 3, "b:1": 2}, "cache_hits"'
    answer.write_text((text % "{}").replace('"cache_hits"', shared))
    used = found.use(tmp_path, environment, before)
    assert used == CacheUse("sccache", 0, 0, elsewhere=5, servers=2)
    assert str(used).endswith("; 5 were done by 2 servers")
    answer.write_text("server is gone")
    assert found.use(tmp_path, environment, before) is None
