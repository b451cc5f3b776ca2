"""A compiler cache, ccache or sccache: found, set up so that it hits across checkouts, and asked how often it did.

ccache comes first: what it gives back are the very bytes of the compiler. sccache takes nvcc apart, and the object that
it puts together differs from nvcc's own.
"""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.errors import MissingToolError
from kci.files.bounded_json import decode_json
from kci.plurals import count
from kci.processes.process import run

CHOICE = "KCI_COMPILER_CACHE"
"""`ccache`, `sccache`, the path of one of them, or `off`; without it the first of the two that is on the PATH."""

_STATS = "ccache-stats.log"
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_MISS = "cache_miss"


class CacheUse(msgspec.Struct, frozen=True):
    """How often the cache had what was asked for."""

    tool: str
    hits: int
    misses: int

    def __str__(self) -> str:
        return f"{self.tool}: {self.hits} of {self.hits + self.misses} compilations were in the cache"


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


class CacheTool(enum.StrEnum):
    """The programs that kci knows."""

    CCACHE = "ccache"
    SCCACHE = "sccache"


class CompilerCache(msgspec.Struct, frozen=True):
    """A compiler cache on this machine."""

    tool: CacheTool
    program: Path

    def settings(self, work: Path, cache: Path) -> dict[str, str]:
        """Its variables, without those that the user has set.

        Args:
            work: the work directory; every path on a command line is relative to it.
            cache: kci's cache directory, of which it gets a folder.
        """
        if self.tool is CacheTool.SCCACHE:
            made = {"SCCACHE_DIR": str(cache / "sccache")}
        else:
            made = {
                "CCACHE_DIR": str(cache / "ccache"),
                "CCACHE_BASEDIR": str(work),
                "CCACHE_NOHASHDIR": "1",
                "CCACHE_COMPILERCHECK": "content",
            }
        made = {name: value for name, value in made.items() if name not in os.environ}
        return made if self.tool is CacheTool.SCCACHE else _for_ccache(made | {"CCACHE_STATSLOG": str(work / _STATS)})

    def start(self, work: Path, environment: Mapping[str, str]) -> Sequence[int]:
        """Begin to count. sccache's server is started here, so that it is not ended together with a build."""
        if self.tool is CacheTool.CCACHE:
            (work / _STATS).unlink(missing_ok=True)
            return ()
        run([str(self.program), "--start-server"], env=environment)
        return self._server_counts(environment)

    def use(self, work: Path, environment: Mapping[str, str], before: Sequence[int]) -> CacheUse | None:
        """What was counted since then; None if it does not say."""
        if self.tool is CacheTool.CCACHE:
            try:
                lines = (work / _STATS).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                return None
            return CacheUse(self.tool, sum(line in _HITS for line in lines), lines.count(_MISS))
        after = self._server_counts(environment)
        if not before or not after:
            return None
        return CacheUse(self.tool, after[0] - before[0], after[1] - before[1])

    def _server_counts(self, environment: Mapping[str, str]) -> Sequence[int]:
        done = run([str(self.program), "--show-stats", "--stats-format", "json"], env=environment)
        try:
            stats = decode_json(done.output, _ServerStats).stats
        except ValueError:
            return ()
        return sum(stats.cache_hits.counts.values()), sum(stats.cache_misses.counts.values())


class _Counts(msgspec.Struct, frozen=True):
    counts: dict[str, int]


class _Stats(msgspec.Struct, frozen=True):
    cache_hits: _Counts
    cache_misses: _Counts


class _ServerStats(msgspec.Struct, frozen=True):
    stats: _Stats


def find_compiler_cache(cxx: Sequence[str]) -> CompilerCache | None:
    """The compiler cache to use.

    Args:
        cxx: the C++ compiler with its launcher; if `CXX` names a launcher, kci adds none.

    Raises:
        MissingToolError: `KCI_COMPILER_CACHE` names one that is not there, or none that kci knows.
    """
    choice = os.environ.get(CHOICE, "")
    if choice == "off" or (not choice and Path(cxx[0]).stem in (*CacheTool,)):
        return None
    for name in [choice] if choice else [*CacheTool]:
        found = shutil.which(name)
        tool = next((tool for tool in CacheTool if Path(name).stem == tool), None)
        if found and tool:
            return CompilerCache(tool, Path(found).absolute())
    if choice:
        hint = f"set {CHOICE} to ccache, sccache, the path of one of them, or off"
        raise MissingToolError(f"{CHOICE}={choice} names no compiler cache that is here", hint=hint)
    return None


def _for_ccache(settings: Mapping[str, str]) -> dict[str, str]:
    # it replaces `$NAME` in a value, once, and has no way to write a `$` itself
    inner = {f"KCI_{name}": value for name, value in settings.items() if "$" in value}
    return {name: f"${{KCI_{name}}}" if f"KCI_{name}" in inner else value for name, value in settings.items()} | inner
