"""ccache's objects of a build, and packs that carry them between machines.

ccache runs in its depend mode: a key is the whole source and each header that the compiler's `-MD`
names. Preprocessing would not do, since `nvcc -E` sees only the first arch. A namespace has what
`-MD` does not name.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kci.builders.native.recipe import Recipe
from kci.builders.process.run import Log
from kci.builders.request import BuildPart
from kci.builders.toolchains.compilers import outside_files
from kci.config.facts import BACKENDS
from kci.config.values import C_ENDINGS, CXX_ENDINGS, HEADER_ENDINGS
from kci.errors import FindingsError, UsageError
from kci.matrix.variants import ObjectUse, Word, objects_name, this_system
from kci.plan.inputs.source_lints import included
from kci.utils.archive import (
    SUFFIXES,
    DamagedError,
    RefusedError,
    TarStream,
    opened_archive,
    plain_member,
    written_archive,
)
from kci.utils.atomic import replacing
from kci.utils.bounded_json import MAX_BYTES, VersionedRecord, decode_json
from kci.utils.suggest import count

HEAD = "objects.json"
_LEVEL = 3
"""A zstd level: higher ones take ten times as long for little."""
_LARGEST = 1024**3
"""Bytes of an object; those of all archs of the largest kernels are a tenth of it."""
_MEMBER = re.compile(r"(?:[0-9a-v]/){1,4}[0-9a-v]{16,64}[RM]?")
"""A result or manifest of ccache."""


class PackHead(VersionedRecord, kw_only=True):
    """The first member of a pack."""

    kernel: str
    variant: str
    part: BuildPart | None = None
    """None for the whole variant."""
    objects: int
    wanted: int
    """Number of objects of the finished build."""
    use: ObjectUse | None = None
    run: Word = ""
    """CI run; empty outside CI."""


def pack_name(kernel: str, variant: str, part: BuildPart | None) -> str:
    """File name of a pack in a folder."""
    share = f".part{part.number}of{part.of}" if part else ""
    return f"{objects_name(kernel, variant + share)}.tar.zst"


def pack_objects(folder: Path, since: float, head: PackHead, out_file: Path) -> Path:
    """Pack ccache entries that were written or read since a time.

    Raises UsageError, ClientError, MissingToolError.
    """
    if not out_file.name.endswith(SUFFIXES):
        raise UsageError(
            f"{out_file} is not the name of a pack", f"end it with {' or '.join(SUFFIXES)}"
        )
    with replacing(out_file) as replacement:
        zstd = out_file.name.endswith(".zst")
        with written_archive(replacement.staging, zstd=zstd, level=_LEVEL) as archive:
            text = msgspec.json.encode(head)
            archive.addfile(plain_member(HEAD, len(text)), io.BytesIO(text))
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(folder).as_posix()
                if _MEMBER.fullmatch(name) and path.stat().st_mtime >= since:
                    with path.open("rb") as file:
                        archive.addfile(plain_member(name, os.fstat(file.fileno()).st_size), file)
        replacement.commit()
    return out_file


def missing_parts(heads: Sequence[PackHead], variant: str) -> list[str]:
    """Describe the missing and the unfinished parts of a variant."""
    parts = [head for head in heads if head.variant == variant and head.part]
    messages = []
    for of in sorted({head.part.of for head in parts if head.part}):
        for part in (BuildPart(number, of) for number in range(1, of + 1)):
            found = [head for head in parts if head.part == part]
            best = max(found, key=lambda head: head.objects, default=None)
            if not best:
                messages.append(f"part {part} was not given")
            elif best.objects < best.wanted:
                messages.append(f"part {part} has {best.objects} of {count(best.wanted, 'object')}")
    return messages


def packs_in(places: Sequence[Path]) -> list[Path]:
    """List packs: files, and those in folders by name. Raises UsageError without any."""
    packs: list[Path] = []
    for place in places:
        if not place.exists():
            raise UsageError(f"--objects-from {place}: there is no such file or folder")
        inside = sorted(place.iterdir()) if place.is_dir() else [place]
        packs += (path for path in inside if path == place or path.name.endswith(SUFFIXES))
    return packs


def read_head(pack: Path) -> PackHead:
    """Read a pack's head. Raises FindingsError or UnsafeError."""
    with _opened(pack) as (head, _, _):
        return head


def unpack_objects(pack: Path, folder: Path, log: Log) -> PackHead:
    """Unpack objects into a ccache folder; ccache verifies them.

    Raises FindingsError or UnsafeError.
    """
    with _opened(pack) as (head, archive, members):
        try:
            for member in members:
                if not member.isfile() or not _MEMBER.fullmatch(member.name):
                    raise RefusedError(member.name, "no pack has one of this name")
                if member.size > _LARGEST:
                    raise RefusedError(member.name, f"it is larger than {_LARGEST} bytes")
                place = folder / member.name
                if not place.exists():  # the first of a name wins
                    archive.extract(place)
                    os.utime(place, (0, 0))
        except DamagedError as error:
            log(f"{pack} is cut short or damaged ({error}): kci takes what is whole")
    return head


@contextmanager
def _opened(pack: Path) -> Iterator[tuple[PackHead, TarStream, Iterator[tarfile.TarInfo]]]:
    with opened_archive(pack) as archive:
        members = archive.members()
        first = next(members, None)
        if not first:
            raise FindingsError(f"{pack} holds no objects: it does not start with {HEAD}")
        if first.name != HEAD or first.size > MAX_BYTES:
            raise RefusedError(first.name, f"{HEAD} is the first")
        try:
            head = decode_json(archive.read(first.size), PackHead)
        except ValueError as error:
            raise FindingsError(f"cannot read {pack}: {error}") from error
        yield head, archive, members


CCACHE_FOLDER = "ccache"
"""Folder of ccache, in the cache or in the work directory of a build with packs."""

_HOST_HEADERS_ONLY = ("Clang", "IntelLLVM")
"""Compilers of device code whose `-MD` names what the host's pass reads, and not what a device's
pass reads."""
_NAMES_FOLDER = re.compile(
    r"(?:.*,)?(?:-g(?!en|0)|--coverage|-f(?:profile-arcs|test-coverage|profile-generate|coverage-mapping))"
)
"""Flags that put the working directory into objects."""
_READ_LATER = re.compile(rb"\.inc|#embed|has_embed")
"""Words that make an assembler or compiler read any file; in a text without quotes and spaces:
names can be split."""
_QUOTES_AND_SPACES = re.compile(rb'[\s"\\]+')
_C_FAMILY = (
    *CXX_ENDINGS,
    *C_ENDINGS,
    *HEADER_ENDINGS,
    *(end for facts in BACKENDS.values() for end in facts.endings),
)
_STATS = "ccache-stats.log"
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")


class Objects:
    """The objects of one build."""

    def __init__(self, recipe: Recipe, log: Log) -> None:
        """Clear earlier objects and unpack given ones. Raises OSError or KciError."""
        self._recipe, self._work, self._steps = recipe, recipe.work, recipe.compiled
        self._request, options = recipe.request, recipe.request.options
        self._folder = Path(os.environ.get("CCACHE_DIR") or options.cache / CCACHE_FOLDER)
        if options.objects_from or options.objects_to:
            self._folder = recipe.work / CCACHE_FOLDER
        self._cleared()
        for step in recipe.steps:
            (recipe.work / step.output).unlink(missing_ok=True)
        (recipe.work / _STATS).unlink(missing_ok=True)
        self.heads = [
            unpack_objects(pack, self._folder, log) for pack in packs_in(options.objects_from)
        ]
        self._begun = time.time()

    def environment(self) -> dict[str, str]:
        """Variables for ccache, which replace the user's."""
        namespace = self._namespace()
        words = (word for step in self._steps for word in step.command)
        in_objects = any(map(_NAMES_FOLDER.match, words))
        settings = {
            "CCACHE_DIR": str(self._folder),
            "CCACHE_BASEDIR": str(self._work),
            "CCACHE_COMPILERCHECK": "content",
            "CCACHE_DEPEND": "1",
            "CCACHE_DIRECT": "1",
            "CCACHE_NAMESPACE": namespace,
            "SCCACHE_C_CUSTOM_CACHE_BUSTER": namespace,
            "CCACHE_SLOPPINESS": "",
            "CCACHE_MAXSIZE": os.environ.get("CCACHE_MAXSIZE") or "20G",
            "CCACHE_STATSLOG": str(self._work / _STATS),
            "CCACHE_HASHDIR" if in_objects else "CCACHE_NOHASHDIR": "1",
        }
        # ccache expands `$NAME` once, and has no escape for `$`
        inner = {f"KCI_{name}": value for name, value in settings.items() if "$" in value}
        named = {name: f"${{KCI_{name}}}" for name in settings if f"KCI_{name}" in inner}
        return settings | named | inner

    def use(self) -> ObjectUse:
        hits = min(sum(line in _HITS for line in _lines_of(self._work / _STATS)), self.count())
        runs = tuple(sorted({head.run for head in self.heads if head.run})) if hits else ()
        return ObjectUse(hits, self.count() - hits, runs)

    def count(self) -> int:
        """Number of objects so far."""
        return sum((self._work / step.output).is_file() for step in self._steps)

    def finish(self) -> None:
        """Pack the objects, if requested, however the build ends."""
        request = self._request
        if out_file := request.options.objects_to:
            head = PackHead(
                kernel=request.build.name,
                variant=request.variant.name,
                part=request.part,
                objects=self.count(),
                wanted=len(self._steps),
                use=self.use(),
                run=request.options.run,
            )
            pack_objects(self._folder, self._begun, head, out_file)
        self._cleared()

    def _cleared(self) -> None:
        shutil.rmtree(self._work / CCACHE_FOLDER, ignore_errors=True)

    def _namespace(self) -> str:
        chain, inputs = self._recipe.chain, self._request.files()
        files = sorted(inputs.compiled_from(self._request.variant))
        words = [*(path for path, _ in files), "", *self._unnamed(files)]
        words += chain.versions
        flags = {flag for unit in self._recipe.sources.units for flag in unit.flags}
        words += outside_files(chain.cxx, chain.device, sorted(flags), contents=False)
        if any(word.endswith("=native") for step in self._steps for word in step.command):
            told = ("model name", "flags", "Features", "CPU part")
            said = {line for line in _lines_of(Path("/proc/cpuinfo")) if line.startswith(told)}
            words += [this_system(), *sorted(said)]
        return hashlib.sha256(msgspec.json.encode(words)).hexdigest()

    def _unnamed(self, files: Sequence[tuple[str, str]]) -> list[str]:
        # digests of the files that a compiler may read without naming them in `-MD`
        inputs, variant = self._request.files(), self._request.variant
        texts = {path: inputs.tree.content(real) for path, real in files if real}
        named = {path for path in texts if path.lower().endswith(_C_FAMILY)}
        if any(_READ_LATER.search(_QUOTES_AND_SPACES.sub(b"", text)) for text in texts.values()):
            named.clear()
        elif BACKENDS[variant.backend].compiler_id[1] in _HOST_HEADERS_ONLY:
            shared = {
                posixpath.basename(name) for text in texts.values() for name in included(text)
            }
            own = {
                inputs.inside(posixpath.normpath(unit.shown)) for unit in self._recipe.sources.units
            }
            named &= {path for path in own if posixpath.basename(path) not in shared}
        return [
            f"{path} {hashlib.sha256(text).hexdigest()}"
            for path, text in texts.items()
            if path not in named
        ]


def _lines_of(path: Path) -> list[str]:
    # none of a file that is not there
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
