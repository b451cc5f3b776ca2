"""The objects of one build, by ccache: which of them it may take, and what it had.

ccache looks at what a compiler read the last time, and not at a header that would be found before one of those now. So
the names of the kernel's files, torch and the toolkit are a namespace: of other ones nothing is found.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from kci.builders.commands import Toolchain
from kci.builders.object_packs import PackHead, pack_objects, packs_in, unpack_objects
from kci.builders.recipe import Recipe
from kci.builders.request import Request
from kci.matrix.names import this_system
from kci.processes.process import Log, said
from kci.toolchains.compiler_cache import ObjectUse, is_cache
from kci.toolchains.compilers import environment_flags

OWN = "ccache"
"""The folder of ccache: in the cache, and in the work directory of a build that is given objects or hands them on."""

_PARTS_OF_CXX = ("cc1plus", "as")
_PARTS_OF_CUDA = (
    *("bin/nvcc.profile", "bin/cudafe++", "bin/fatbinary", "bin/nvlink", "bin/ptxas"),
    *("nvvm/bin/cicc", "nvvm/libdevice/*.bc"),
    *("include/crt/host_runtime.h", "include/fatbinary_section.h"),  # read by what nvcc generates, and not listed
)
_PARTS_OF_ROCM = (
    *("bin/hipcc*", "llvm/bin/clang*", "lib/llvm/bin/clang*"),
    *("amdgcn/bitcode/*", "lib/llvm/lib/clang/*/*/*/bitcode/*"),
)
_NAMES_FOLDER = re.compile(
    r"(?:.*,)?(?:-g(?!en|0)|--coverage|-f(?:profile-arcs|test-coverage|profile-generate|coverage-mapping))"
)
"""Flags with which the object names the directory that it was compiled in."""
_OUTSIDE = re.compile(r"(?:.*,)?(?:--?[a-z][a-z-]*=?)?/", re.IGNORECASE)
"""Flags that name a file or folder of this machine, as `-I/opt/include` does: all else lies in the work directory."""
_INCLUDE_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_STATS = "ccache-stats.log"
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")


class Objects:
    """The objects of one build."""

    def __init__(self, recipe: Recipe, request: Request, log: Log) -> None:
        """Begin the build: nothing that an earlier one made is left, and the objects that it is given are unpacked.

        Raises:
            OSError: the work directory cannot be written.
            KciError: a pack is none, or not safe.
        """
        self._request = request
        self._recipe = recipe
        self._work = recipe.work
        self._steps = [step for step in recipe.steps if step.depfile]
        options = request.options
        self._carried = bool(options.objects_from or options.objects_to)
        own = Path(os.environ.get("CCACHE_DIR") or options.cache / OWN)
        self._folder = recipe.work / OWN if self._carried else own
        self._cleared()
        for step in recipe.steps:
            (recipe.work / step.output).unlink(missing_ok=True)
        (recipe.work / _STATS).unlink(missing_ok=True)
        packs = packs_in(options.objects_from) if self._carried else []
        self.heads: list[PackHead] = [unpack_objects(pack, self._folder, log) for pack in packs]
        self._begun = time.time()

    @property
    def wanted(self) -> int:
        """How many there are to be."""
        return len(self._steps)

    def environment(self) -> dict[str, str]:
        """Ccache's variables. What somebody else sets of these would make it take another object, or none."""
        made = {
            "CCACHE_DIR": str(self._folder),
            "CCACHE_BASEDIR": str(self._work),
            "CCACHE_COMPILERCHECK": "content",
            "CCACHE_NAMESPACE": self._namespace(),
            "CCACHE_SLOPPINESS": "",
            "CCACHE_MAXSIZE": f"{self._request.options.objects_gb}G",
            "CCACHE_STATSLOG": str(self._work / _STATS),
        }
        words = (word for step in self._steps for word in step.command)
        made["CCACHE_HASHDIR" if any(map(_NAMES_FOLDER.match, words)) else "CCACHE_NOHASHDIR"] = "1"
        if any(map(_OUTSIDE.match, self._flags())) or any(map(os.environ.get, _INCLUDE_VARIABLES)):
            # The namespace does not have the names of those files, so a header may be found before one that was read.
            made["CCACHE_NODIRECT"] = "1"
        return _for_ccache(made)

    def _flags(self) -> Iterator[str]:
        return (flag for unit in self._recipe.sources.units for flag in unit.flags)

    def use(self) -> ObjectUse:
        """How many were found."""
        try:
            lines = (self._work / _STATS).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        found = min(sum(line in _HITS for line in lines), self.done())
        runs = tuple(sorted({head.run for head in self.heads if head.run})) if found else ()
        return ObjectUse(found, self.done() - found, runs)

    def done(self) -> int:
        """How many are there now, found or made."""
        return sum((self._work / step.output).is_file() for step in self._steps)

    def finish(self) -> None:
        """The build ends, however it does: its objects are packed, where that is asked for."""
        request = self._request
        if (out_file := request.options.objects_to) is not None and self._carried:
            head = PackHead(
                kernel=request.build.name,
                variant=request.variant.name,
                part=request.part,
                objects=self.done(),
                wanted=self.wanted,
                use=self.use(),
                run=request.options.run,
            )
            pack_objects(self._folder, self._begun, head, out_file)
        self._cleared()

    def _cleared(self) -> None:
        shutil.rmtree(self._work / OWN, ignore_errors=True)

    def _namespace(self) -> str:
        chain, inputs = self._recipe.chain, self._request.files()
        words = sorted(path for path, _ in inputs.compiled_from(self._request.variant))  # of a set, in any order
        words += ["", *chain.versions, *environment_flags()]
        words += sorted({f"{path.name} {_digest(path)}" for path in _programs(chain)})
        if any(word.endswith("=native") for step in self._steps for word in step.command):
            words += _this_processor()
        return hashlib.sha256(msgspec.json.encode(words)).hexdigest()


def _programs(chain: Toolchain) -> Iterator[Path]:
    """The programs that compilers run: ccache itself looks at the driver alone."""
    asked = (said(*chain.cxx, f"-print-prog-name={part}").strip() for part in _PARTS_OF_CXX)
    for name in (*(word for word in chain.cxx if not is_cache(word)), *asked):
        if found := shutil.which(name):
            yield Path(os.path.realpath(found))
    tools = ((chain.cuda, _PARTS_OF_CUDA), (chain.rocm, _PARTS_OF_ROCM))
    for root, parts in ((tool.root, parts) for tool, parts in tools if tool is not None):
        for part in parts:
            yield from (path for path in root.glob(part) if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _this_processor() -> Sequence[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    said_of_it = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return [this_system(), *sorted(said_of_it)]


def _for_ccache(settings: Mapping[str, str]) -> dict[str, str]:
    # it replaces `$NAME` in a value, once, and has no way to write a `$` itself
    inner = {f"KCI_{name}": value for name, value in settings.items() if "$" in value}
    return {name: f"${{KCI_{name}}}" if f"KCI_{name}" in inner else value for name, value in settings.items()} | inner
