"""Objects in an archive, to be carried to another machine: what one build used or made, for another to look in.

A pack is a tar of records and lists in front of the objects that they are about. Everything in it is hostile until it
was looked at: a record has to compute to its name, a list and an object to the digest that names them. What nothing can
show is that an object was made from what its record says; so who gives a build a pack is trusted as a compiler is.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from kci.builders.object_store import Digest, ObjectRecord, ObjectStore, Seconds, read_header_list
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
from kci.toolchains.launcher import ObjectUse, RunId

SCHEMA = 1
HEAD = "objects.json"
_LEVEL = 3
"""Of zstd: machine code does not get much smaller with more, and takes ten times as long."""
_CHUNK = 1024 * 1024
_IN_MEMORY, _AT_ONCE, _WRITERS = 16 * 1024 * 1024, 8, 2
"""Objects up to this size are hashed and written by so many threads, while others are read."""
_MEMBER = re.compile(r"([0-9a-f]{64})\.(json|list|o)")


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
    lost: dict[Digest, Seconds] = {}
    """By command, how long those had that still ran when the build was ended."""
    run: RunId = ""
    """The CI run that packed them, empty outside of one."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


def pack_name(kernel: str, variant: str, part: PartOf | None) -> str:
    """The name of a pack in a folder of them."""
    return f"{objects_name(kernel, f'{variant}.part{part.number}of{part.of}' if part else variant)}.tar.zst"


class PackedObject(msgspec.Struct, frozen=True):
    """One object of a store, for a pack."""

    store: ObjectStore
    name: str
    record: ObjectRecord


def pack_objects(items: Iterable[PackedObject], head: PackHead, out_file: Path) -> Path:
    """Write a pack; the same objects always give the same bytes. `.tar.zst` compresses, `.tar` does not.

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

                def add(name: str, data: bytes) -> None:
                    archive.addfile(plain_member(name, len(data)), io.BytesIO(data))

                add(HEAD, msgspec.json.encode(head))
                listed = set()
                for item in sorted(items, key=lambda item: item.name):
                    if item.record.headers not in listed:
                        listed.add(item.record.headers)
                        add(f"{item.record.headers}.list", item.store.list_path(item.record.headers).read_bytes())
                    add(f"{item.name}.json", msgspec.json.encode(item.record))
                    add(f"{item.name}.o", item.store.object_path(item.record.asked, item.name).read_bytes())
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
            member = next(archive.members(), None)
            if member is not None and member.name == HEAD and member.size <= MAX_BYTES:
                return decode_json(b"".join(iter(lambda: archive.read(_CHUNK), b"")), PackHead)
    except (OSError, RefusedError, DamagedError, ValueError) as error:
        raise FindingsError(f"cannot read {pack}: {error}") from error
    raise FindingsError(f"{pack} holds no objects: it does not start with {HEAD}")


def unpack_objects(pack: Path, store: ObjectStore, log: Log) -> PackHead:
    """Put the objects of a pack into a store. What is damaged or wrong is left out, and said; the rest is taken.

    Raises:
        FindingsError: the file is no pack.
        UnsafeError: it holds something that no pack has.
    """
    broken = ""
    store.place.mkdir(parents=True, exist_ok=True)
    try:
        with ThreadPoolExecutor(_WRITERS) as pool, opened_archive(pack) as archive:
            taken = _Taken(store, pool)
            try:
                for member in archive.members():
                    taken.member(archive, member)
            except DamagedError as error:
                broken = str(error)
            taken.wait()
    except RefusedError as error:
        raise UnsafeError(f"{pack} is not safe to unpack: the member {error.member!r}: {error.reason}") from error
    except (OSError, DamagedError) as error:
        raise FindingsError(f"cannot read {pack}: {error}") from error
    head = taken.head
    if head is None:
        raise FindingsError(f"{pack} holds no objects: it does not start with {HEAD}")
    if broken:
        log(f"{pack} is cut short or damaged ({broken}): {taken.objects} of {count(head.objects, 'object')} are whole")
    if taken.refused:
        log(f"{pack}: {count(taken.refused, 'object')} refused, not what the record says")
    return head


class _Taken:
    """The members of a pack, one after the other."""

    def __init__(self, store: ObjectStore, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting: deque[Future[bool]] = deque()
        self.head: PackHead | None = None
        self.objects = self.refused = 0
        self._store = store
        self._lists: set[str] = set()
        self._names: set[str] = set()
        self._next: tuple[str, ObjectRecord] | None = None

    def member(self, archive: TarStream, member: tarfile.TarInfo) -> None:
        found = _MEMBER.fullmatch(member.name)
        if member.isdir() or (found is None and member.name != HEAD):
            raise RefusedError(member.name, "no pack has one of this name")
        if (found is None) is not (self.head is None):
            raise RefusedError(member.name, f"{HEAD} is the first, and there is one")
        if found is not None and found[2] == "o":
            self._object(archive, member, found[1])
            return
        if member.size > MAX_BYTES:
            raise RefusedError(member.name, f"it is larger than {MAX_BYTES} bytes")
        text = b"".join(iter(lambda: archive.read(_CHUNK), b""))
        try:
            if found is None:
                self.head = decode_json(text, PackHead)
                for asked, seconds in self.head.lost.items():
                    self._store.add_lost(asked, seconds)
            elif found[2] == "list":
                read_header_list(found[1], text)
                self._store.add_list(found[1], text)
                self._lists.add(found[1])
            else:
                record = decode_json(text, ObjectRecord)
                self._next = (found[1], record) if record.name == found[1] else None
        except ValueError as error:
            if found is None:
                raise RefusedError(member.name, str(error)) from error
            self._next = None

    def _object(self, archive: TarStream, member: tarfile.TarInfo, name: str) -> None:
        following, self._next = self._next, None
        # Of two with one name the first is taken: side by side it would be a matter of luck which.
        if following is None or following[0] != name or following[1].headers not in self._lists or name in self._names:
            self.refused += 1
            return
        self._names.add(name)
        chunks = iter(lambda: archive.read(_CHUNK), b"")
        if member.size > _IN_MEMORY:
            self._count(self._store.receive(following[1], chunks))
            return
        self._waiting.append(self._pool.submit(self._store.receive, following[1], list(chunks)))
        if len(self._waiting) > _AT_ONCE:
            self._count(self._waiting.popleft().result())

    def wait(self) -> None:
        """Until all objects are kept."""
        while self._waiting:
            self._count(self._waiting.popleft().result())

    def _count(self, kept: bool) -> None:
        self.objects += kept
        self.refused += not kept
