"""Objects in an archive, to be carried to another machine: what ccache used or made in one build, for another.

Nothing can show that an object was made from what its name says; so who gives a build a pack is trusted as a compiler
is. All else in a pack is hostile until it was looked at.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kci.builders.request import PartOf
from kci.errors import ClientError, FindingsError, UnsafeError, UsageError
from kci.files.archive import (
    SUFFIXES,
    DamagedError,
    RefusedError,
    TarStream,
    opened_archive,
    plain_member,
    written_archive,
)
from kci.files.bounded_json import MAX_BYTES, decode_json, require_schema
from kci.files.replace import replacing
from kci.matrix.names import objects_name
from kci.plurals import count
from kci.processes.process import Log
from kci.toolchains.compiler_cache import ObjectUse, RunId

SCHEMA = 1
HEAD = "objects.json"
_LEVEL = 3
"""Of zstd: machine code does not get much smaller with more, and takes ten times as long."""
_CHUNK = 1024 * 1024
_MEMBER = re.compile(r"(?:[0-9a-v]/){1,4}[0-9a-v]{16,64}[RM]?")
"""A result or a manifest of ccache."""


class PackHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack says of itself, in front."""

    kernel: str
    variant: str
    part: PartOf | None = None
    """The share whose objects these are; None for those of the whole variant."""
    objects: int
    """How many there are."""
    wanted: int
    """How many it would have if all compilers had ended."""
    use: ObjectUse | None = None
    """How many of them the build found."""
    run: RunId = ""
    """The CI run that packed them, empty outside of one."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


def pack_name(kernel: str, variant: str, part: PartOf | None) -> str:
    """The name of a pack in a folder of them."""
    return f"{objects_name(kernel, f'{variant}.part{part.number}of{part.of}' if part else variant)}.tar.zst"


def pack_objects(folder: Path, since: float, head: PackHead, out_file: Path) -> Path:
    """Write a pack of what a folder of ccache has that was made or found since a time (`time.time`).

    Raises:
        UsageError: the file name ends with neither suffix.
        ClientError: it cannot be written.
        MissingToolError: `.tar.zst` without the zstandard package.
    """
    if not out_file.name.endswith(SUFFIXES):
        raise UsageError(f"{out_file} is not the name of a pack", hint=f"end it with {' or '.join(SUFFIXES)}")
    out_file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out_file) as made:
        try:
            with written_archive(made.staging, zstd=out_file.name.endswith(".zst"), level=_LEVEL) as archive:
                text = msgspec.json.encode(head)
                archive.addfile(plain_member(HEAD, len(text)), io.BytesIO(text))
                for path in sorted(folder.rglob("*")):
                    name = path.relative_to(folder).as_posix()
                    if _MEMBER.fullmatch(name) and path.stat().st_mtime >= since:
                        data = path.read_bytes()
                        archive.addfile(plain_member(name, len(data)), io.BytesIO(data))
        except OSError as error:
            raise ClientError(f"cannot write {out_file}: {error.strerror or error}") from error
        made.commit()
    return out_file


def missing_parts(heads: Sequence[PackHead], variant: str) -> list[str]:
    """What was not given of a variant's parts, and which of those that were given are not finished; for a person."""
    given = [head for head in heads if head.variant == variant and head.part is not None]
    whole = {head.part for head in given if head.objects == head.wanted}
    found = []
    for of in sorted({head.part.of for head in given if head.part}):
        for part in (PartOf(number, of) for number in range(1, of + 1)):
            short = max((head for head in given if head.part == part), key=lambda head: head.objects, default=None)
            if short is None:
                found.append(f"part {part} was not given")
            elif part not in whole:
                found.append(f"part {part} has {short.objects} of {count(short.wanted, 'object')}")
    return found


def packs_in(places: Sequence[Path]) -> list[Path]:
    """The packs that some paths name: files, and those in folders, by name.

    Raises:
        UsageError: nothing is there.
    """
    found: list[Path] = []
    for place in places:
        inside = sorted(path for path in place.iterdir() if path.name.endswith(SUFFIXES)) if place.is_dir() else [place]
        if not place.exists():
            raise UsageError(f"--objects-from {place}: there is no such file or folder")
        found += inside
    return found


def read_head(pack: Path) -> PackHead:
    """What a pack says of itself.

    Raises:
        FindingsError: it does not say it.
    """
    try:
        with opened_archive(pack) as archive:
            for member in archive.members():
                return _head(archive, member)
    except (OSError, RefusedError, DamagedError, ValueError) as error:
        raise FindingsError(f"cannot read {pack}: {error}") from error
    raise FindingsError(f"{pack} holds no objects: it does not start with {HEAD}")


def unpack_objects(pack: Path, folder: Path, log: Log) -> PackHead:
    """Put the objects of a pack into a folder of ccache. Of a pack that is cut short what is whole is taken.

    ccache compares the checksum of an object as it takes it, and goes on without one that is damaged.

    Raises:
        FindingsError: the file is no pack.
        UnsafeError: it holds something that no pack has.
    """
    head: PackHead | None = None
    try:
        with opened_archive(pack) as archive:
            try:
                for member in archive.members():
                    if head is None:
                        head = _head(archive, member)
                    elif not member.isfile() or not _MEMBER.fullmatch(member.name):
                        raise RefusedError(member.name, "no pack has one of this name")
                    else:
                        _take(archive, folder / member.name)
            except DamagedError as error:
                if head is None:
                    raise
                log(f"{pack} is cut short or damaged ({error}): what is whole is taken")
    except RefusedError as error:
        raise UnsafeError(f"{pack} is not safe to unpack: the member {error.member!r}: {error.reason}") from error
    except (OSError, DamagedError, ValueError) as error:
        raise FindingsError(f"cannot read {pack}: {error}") from error
    if head is None:
        raise FindingsError(f"{pack} holds no objects: it does not start with {HEAD}")
    return head


def _head(archive: TarStream, member: tarfile.TarInfo) -> PackHead:
    if member.name != HEAD or member.size > MAX_BYTES:
        raise RefusedError(member.name, f"{HEAD} is the first")
    return decode_json(_content(archive), PackHead)


def _take(archive: TarStream, place: Path) -> None:
    data = _content(archive)
    if not place.exists():  # of two with one name the first is taken
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        os.utime(place, (0, 0))


def _content(archive: TarStream) -> bytes:
    return b"".join(iter(lambda: archive.read(_CHUNK), b""))
