"""What compilers are started through: a compiler cache, or a client that sends work to other machines.

How it talks to its servers and its storage is its own affair, by its own variables and files.

Of the caches ccache comes first: what it gives back are the very bytes of the compiler. sccache takes nvcc apart, and
the object that it puts together differs from nvcc's own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from kci.config.values import LauncherTool
from kci.errors import MissingToolError
from kci.files.bounded_json import decode_json
from kci.plurals import count
from kci.processes.process import Log, run, silent

CHOICE = "KCI_COMPILER_CACHE"
"""The name or the path of a launcher, or `off`; it goes before `[build] launcher` of kci.toml."""

_CACHES = (LauncherTool.CCACHE, LauncherTool.SCCACHE)
"""They start any compiler. The others send what a preprocessor made of C++, of which nvcc can make nothing."""

_STATS = "ccache-stats.log"
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_MISS = "cache_miss"


class CacheUse(msgspec.Struct, frozen=True):
    """How often the cache had what was asked for."""

    tool: str
    hits: int
    misses: int
    elsewhere: int = 0
    """How many compilations its servers did. sccache takes nvcc apart: one source can be several."""
    servers: int = 0

    def __str__(self) -> str:
        done = f"; {self.elsewhere} were done by {count(self.servers, 'server')}" if self.elsewhere else ""
        return f"{self.tool}: {self.hits} of {self.hits + self.misses} compilations were in the cache{done}"


RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,64}\Z")]


class ObjectUse(msgspec.Struct, frozen=True):
    """How many objects a build found, by its own store or what it was given, and how many it compiled."""

    found: Annotated[int, Meta(ge=0)]
    made: Annotated[int, Meta(ge=0)]
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What it took to compile those that were found, as far as it is known."""
    alone: Annotated[int, Meta(ge=0)] = 0
    """How many were compiled again alone, because they were killed for want of memory."""
    runs: tuple[RunId, ...] = ()
    """The CI runs whose packs had some of them."""

    def __str__(self) -> str:
        took = f"{round(self.seconds / 60)} min" if self.seconds >= 120 else f"{round(self.seconds)} s"
        saved = f", which took {took} to compile" if self.seconds >= 1 else ""
        alone = f"; {self.alone} were killed for want of memory and compiled again alone" if self.alone else ""
        runs = f", of run {' and '.join(self.runs)}" if self.runs else ""
        return f"{self.found} of {count(self.found + self.made, 'object')} are as they were{runs}{saved}{alone}"

    def __add__(self, other: ObjectUse) -> ObjectUse:
        runs = tuple(sorted({*self.runs, *other.runs}))
        return ObjectUse(
            self.found + other.found, self.made + other.made, self.seconds + other.seconds,
            self.alone + other.alone, runs,
        )  # fmt: skip


class Launcher(msgspec.Struct, frozen=True):
    """A launcher on this machine."""

    tool: LauncherTool
    program: Path

    def takes(self, compiler: str) -> bool:
        """Whether a compiler is started through it: `c++`, `nvcc`, `hipcc` or `icpx`."""
        return compiler == "c++" or self.tool in _CACHES

    @property
    def is_remote(self) -> bool:
        """Whether other machines compile what it takes, in their memory."""
        return self.tool not in _CACHES

    def words(self) -> list[str]:
        """What the name of an object says of it: nothing where the object is the compiler's own, byte for byte.

        distcc and icecc run compilers of other machines, and so does a ccache that starts compilers by one of them.
        """
        if self.tool is not LauncherTool.CCACHE:
            return [self.tool.value]
        prefix = run([str(self.program), "--get-config", "prefix_command"]).output.strip()
        return [f"{self.tool} {prefix}"] if prefix else []

    def settings(self, work: Path, cache: Path) -> dict[str, str]:
        """Its variables, without those that the user has set, in the environment or in a file that a variable names.

        Args:
            work: the work directory; every path on a command line is relative to it.
            cache: kci's cache directory, of which it gets a folder.
        """
        if self.tool is LauncherTool.SCCACHE:
            return _unset({"SCCACHE_DIR": str(cache / "sccache")}, "SCCACHE_CONF")
        if self.tool is not LauncherTool.CCACHE:
            return {}
        made = {"CCACHE_BASEDIR": str(work), "CCACHE_NOHASHDIR": "1", "CCACHE_COMPILERCHECK": "content"}
        made = _unset(made) | _unset({"CCACHE_DIR": str(cache / "ccache")}, "CCACHE_CONFIGPATH")
        return _for_ccache(made | {"CCACHE_STATSLOG": str(work / _STATS)})

    def start(self, work: Path, environment: Mapping[str, str]) -> Mapping[str, int]:
        """Begin to count. sccache's server is started here, so that it is not ended together with a build."""
        if self.tool is not LauncherTool.SCCACHE:
            (work / _STATS).unlink(missing_ok=True)
            return {}
        run([str(self.program), "--start-server"], env=environment)
        return self._server_counts(environment)

    def about_to_run(self, environment: Mapping[str, str], others: Sequence[str]) -> str:
        """What a build says before it compiles: who compiles, and what cannot be sent.

        Args:
            environment: what it was started with.
            others: the compilers of the build that it does not take.
        """
        if self.is_remote:
            here = f"; {' and '.join(others)} cannot be sent and runs here" if others else ""
            return f"{self.tool} sends C++ to its hosts{here}"
        if self.tool is not LauncherTool.SCCACHE:
            return ""
        try:
            said = run([str(self.program), "--dist-status"], env=environment).output
            status = decode_json(said, _DistStatus)
        except ValueError:
            return ""
        if status.scheduler is not None and (found := status.scheduler[1]).servers:
            return f"sccache: {count(found.servers, 'server')} with {count(found.cores, 'core')} compile too"
        return "sccache: its scheduler has no server; all is compiled here" if status != _DistStatus() else ""

    def use(self, work: Path, environment: Mapping[str, str], before: Mapping[str, int]) -> CacheUse | None:
        """What was counted since then; None if it does not say."""
        if self.is_remote:
            return None
        if self.tool is LauncherTool.CCACHE:
            try:
                lines = (work / _STATS).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                return None
            return CacheUse(self.tool, sum(line in _HITS for line in lines), lines.count(_MISS))
        after = self._server_counts(environment)
        if not before or not after:
            return None
        grown = {name: number - before.get(name, 0) for name, number in after.items()}
        hits, misses = grown.pop(_HITS[0]), grown.pop(_MISS)
        return CacheUse(self.tool, hits, misses, sum(grown.values()), sum(number > 0 for number in grown.values()))

    def _server_counts(self, environment: Mapping[str, str]) -> Mapping[str, int]:
        # hits and misses, and what each server of a scheduler has compiled, by its address
        done = run([str(self.program), "--show-stats", "--stats-format", "json"], env=environment)
        try:
            stats = decode_json(done.output, _ServerStats).stats
        except ValueError:
            return {}
        hits, misses = sum(stats.cache_hits.counts.values()), sum(stats.cache_misses.counts.values())
        return {**stats.dist_compiles, _HITS[0]: hits, _MISS: misses}


class _Counts(msgspec.Struct, frozen=True):
    counts: dict[str, int]


class _Stats(msgspec.Struct, frozen=True):
    cache_hits: _Counts
    cache_misses: _Counts
    dist_compiles: dict[str, int] = {}


class _ServerStats(msgspec.Struct, frozen=True):
    stats: _Stats


class _Servers(msgspec.Struct, frozen=True):
    servers: int = field(name="num_servers")
    cores: int = field(name="num_cpus")


class _DistStatus(msgspec.Struct, frozen=True):
    scheduler: tuple[str, _Servers] | None = field(default=None, name="SchedulerStatus")
    unreachable: Any = field(default=None, name="NotConnected")


def find_launcher(cxx: Sequence[str] = (), wanted: LauncherTool | None = None, log: Log = silent) -> Launcher | None:
    """The launcher to use: that of the environment, that of kci.toml, else ccache or sccache if it is on the PATH.

    Args:
        cxx: the C++ compiler with its launcher; if `CXX` names a launcher, kci adds none.
        wanted: what kci.toml asks for.
        log: takes a line where that is not here.

    Raises:
        MissingToolError: `KCI_COMPILER_CACHE` names one that is not there, or none that kci knows.
    """
    choice = os.environ.get(CHOICE) or wanted or ""
    if choice == LauncherTool.OFF or (cxx and is_launcher(cxx[0])):
        return None
    for name in [choice] if choice else _CACHES:
        found = shutil.which(name)
        if found and is_launcher(name):
            return Launcher(LauncherTool(Path(name).stem), Path(found).absolute())
    if os.environ.get(CHOICE):
        hint = f"set {CHOICE} to {', '.join([*LauncherTool][:-1])}, the path of one of them, or off"
        raise MissingToolError(f"{CHOICE}={choice} names no launcher that is here", hint=hint)
    if choice:
        log(f"kci.toml starts compilers through {choice}, which is not on the PATH: they are started without it")
    return None


def is_launcher(program: str) -> bool:
    """Whether a program starts compilers and is none."""
    return Path(program).stem in [*LauncherTool][:-1]


def _unset(settings: Mapping[str, str], file: str = "") -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in os.environ and file not in os.environ}


def _for_ccache(settings: Mapping[str, str]) -> dict[str, str]:
    # it replaces `$NAME` in a value, once, and has no way to write a `$` itself
    inner = {f"KCI_{name}": value for name, value in settings.items() if "$" in value}
    return {name: f"${{KCI_{name}}}" if f"KCI_{name}" in inner else value for name, value in settings.items()} | inner
