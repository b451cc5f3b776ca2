"""Objects by their names: what a compiler made, kept beside the record of all that it was made from.

An object's name is the hash of its command, its compilers and the digest of every file that was read. A record names
itself, so that whoever reads it computes the name anew. What objects read of torch, of a toolkit and of the system is
thousands of files and the same for many, so it is a list of its own, named after its content.

A kill between any two steps leaves an object without a record, or nothing: each file gets its name when it is whole.
What a broken disk makes of one is seen by its digest. Nothing waits for the disk here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.errors import KciError
from kci.files.bounded_json import decode_json, read_json, require_schema
from kci.files.full_disk import write_all
from kci.inputs.stat_cache import StatCache

SCHEMA = 1
_OBJECTS = "kept"
_KEPT = 16
"""Objects of one command: branches and headers in turn; the oldest go."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Seconds = Annotated[float, Meta(ge=0)]
_Name = Annotated[str, Meta(min_length=1, max_length=4096)]
Reads = dict[_Name, Digest]
"""SHA-256 by the path of a file: relative to the work directory, or absolute where the system keeps it."""


class ObjectRecord(msgspec.Struct, frozen=True):
    """What one object was made from, and what it took to make it."""

    command: Digest
    compilers: Digest
    reads: Reads
    """What the compiler read of the kernel."""
    headers: Digest
    """The list of everything else that it read."""
    placed: Reads
    """Files that it did not read and that have the name of one that was wanted: one more would be found first."""
    digest: Digest
    size: Annotated[int, Meta(ge=0)]
    source: _Name
    """What was compiled, as in `reads`."""
    seconds: Seconds | None = None
    memory: Annotated[int, Meta(ge=0)] | None = None
    """The most bytes that the compiler and all that it started held at one time."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)

    @property
    def name(self) -> str:
        """The object's name, from what it was made from."""
        return object_name(self.command, self.compilers, self.reads, self.headers, self.placed)

    @property
    def asked(self) -> str:
        """What is looked for before anything is known of the files."""
        return asked_name(self.command, self.compilers)


def object_name(command: str, compilers: str, reads: Mapping[str, str], headers: str, placed: Mapping[str, str]) -> str:
    """The name of an object that was made from these."""
    parts = (SCHEMA, command, compilers, sorted(reads.items()), headers, sorted(placed.items()))
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def asked_name(command: str, compilers: str) -> str:
    """The name of what is known of a command before any file is read."""
    return hashlib.sha256(f"{SCHEMA} {command} {compilers}".encode()).hexdigest()


def header_list(reads: Mapping[str, str]) -> tuple[str, bytes]:
    """The name of a list of files, and its content."""
    text = msgspec.json.encode(sorted(reads.items()))
    return hashlib.sha256(text).hexdigest(), text


def read_header_list(name: str, text: bytes) -> Reads:
    """The files of a list.

    Raises:
        ValueError: this is no list, or one of another name.
    """
    if hashlib.sha256(text).hexdigest() != name:
        raise ValueError("the name is that of another list")
    return dict(decode_json(text, list[tuple[_Name, Digest]]))


class ObjectStore:
    """The objects below one directory."""

    def __init__(self, place: Path) -> None:
        """Nothing is read or made yet."""
        self.place = place
        self._known = StatCache(place, place / "digests")
        self._names: dict[str, set[str]] | None = None
        self._received: dict[str, list[tuple[str, ObjectRecord]]] = defaultdict(list)
        self._settled: dict[str, str] = {}
        self._used: set[Path] = set()
        self._added = False

    def of(self, asked: str) -> Iterator[tuple[str, ObjectRecord]]:
        """The names and records of all objects that one command made, the newest first."""
        yield from self._received.get(asked, ())
        for path in self._newest(asked):
            with suppress(OSError, ValueError, KciError):
                yield path.stem.partition("-")[2], read_json(path, ObjectRecord)

    def latest(self, asked: str) -> ObjectRecord | None:
        """What the newest object of a command took, whatever it was made from."""
        return next((record for _, record in self.of(asked)), None)

    def lost(self, asked: str) -> float:
        """The seconds that a command's compiler had when its build was ended last, before it was done; else 0."""
        try:
            return decode_json(self._lost_path(asked).read_bytes(), Seconds)
        except (OSError, ValueError):
            return 0.0

    def add_lost(self, asked: str, seconds: float) -> None:
        """Note that a build was ended while a command's compiler ran.

        Raises:
            OSError: it cannot be noted.
        """
        _write(self._lost_path(asked), msgspec.json.encode(seconds))

    def headers(self, name: str) -> Reads | None:
        """The files of a list; None if it is not here."""
        path = self.list_path(name)
        try:
            found = read_header_list(name, path.read_bytes())
        except (OSError, ValueError):
            return None
        self._used.add(path)
        return found

    def take(self, name: str, record: ObjectRecord, into: Path) -> bool:
        """Put an object in its place; False if it is not here any more, or is not what its record says."""
        path = self.object_path(record.asked, name)
        try:
            if self._digest(path) != record.digest:
                path.with_suffix(".json").unlink(missing_ok=True)
                return False
            if not _is_same(path, into, record):
                into.parent.mkdir(parents=True, exist_ok=True)
                into.unlink(missing_ok=True)
                _link(path, into)
                self._settled[path.relative_to(self.place).as_posix()] = record.digest
        except OSError:
            return False
        self._used.add(path.with_suffix(".json"))
        return True

    def add_list(self, name: str, text: bytes) -> None:
        """Keep a list of files.

        Raises:
            OSError: it cannot be kept.
        """
        if self.headers(name) is None:
            _write(self.list_path(name), text)

    def add(self, record: ObjectRecord, made: Path) -> str:
        """Keep an object, whose list is here; one of the same name stays as it is. Its name is returned.

        Raises:
            OSError: it cannot be kept.
        """
        name = record.name
        path = self.object_path(record.asked, name)
        if self._is_whole(path, record):
            return name
        aside = _beside(path)
        _in_folder(path, lambda: _link(made, aside))
        aside.replace(path)
        aside.unlink(missing_ok=True)  # a rename does nothing where both are one file
        _write(path.with_suffix(".json"), msgspec.json.encode(record))
        self._lost_path(record.asked).unlink(missing_ok=True)
        self._settled[path.relative_to(self.place).as_posix()] = record.digest
        self._added = True
        if self._names is not None:
            self._names[record.asked].add(str(path.with_suffix(".json")))
            for old in self._newest(record.asked)[_KEPT:]:
                _remove(old)
        return name

    def receive(self, record: ObjectRecord, chunks: Iterable[bytes]) -> bool:
        """Take an object that comes in, for this store only and not for one that is made of the same place later.

        False if its bytes are not those of its record. The first of a name is taken.

        Raises:
            OSError: it cannot be written.
        """
        path, total, size = self.object_path(record.asked, record.name), hashlib.sha256(), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb", buffering=0) as file:
                for data in chunks:
                    total.update(data)
                    size += len(data)
                    write_all(file.fileno(), data)
        except FileExistsError:
            return True
        if (total.hexdigest(), size) != (record.digest, record.size):
            path.unlink()
            return False
        self._settled[path.relative_to(self.place).as_posix()] = record.digest
        self._received[record.asked].append((record.name, record))
        return True

    def finish(self, limit: int) -> None:
        """Note what was used, and let the oldest go beyond so many bytes; what cannot be done is left to the next."""
        with suppress(OSError):
            self._known.put_written(self._settled)
            self._known.save()
        for path in sorted(self._used, key=lambda path: path.suffix == ".list"):
            with suppress(OSError):
                os.utime(path)
        if self._added:
            with suppress(OSError):
                self._prune(limit)
        self._settled, self._used, self._added = {}, set(), False

    def object_path(self, asked: str, name: str) -> Path:
        """Where an object lies; its record is beside it, as `.json`."""
        return self.place / _OBJECTS / f"{asked}-{name}.o"

    def list_path(self, name: str) -> Path:
        """Where a list of files lies."""
        return self.place / "lists" / f"{name}.list"

    def _lost_path(self, asked: str) -> Path:
        return self.place / "lost" / asked

    def _newest(self, asked: str) -> Sequence[Path]:
        """The records of a command. All names are read once: what others add meanwhile is for the next build."""
        if self._names is None:
            self._names = defaultdict(set)
            with suppress(OSError), os.scandir(self.place / _OBJECTS) as entries:
                for entry in entries:
                    if entry.name.endswith(".json"):
                        self._names[entry.name.partition("-")[0]].add(entry.path)
        found = []
        for path in self._names[asked]:
            with suppress(OSError):
                found.append((os.stat(path).st_mtime_ns, path))  # noqa: PTH116
        return [Path(path) for _, path in sorted(found, reverse=True)]

    def _is_whole(self, path: Path, record: ObjectRecord) -> bool:
        try:
            kept = read_json(path.with_suffix(".json"), ObjectRecord)
            return (kept.name, kept.digest, self._digest(path)) == (record.name, record.digest, record.digest)
        except (OSError, ValueError, KciError):
            return False

    def _digest(self, path: Path) -> str:
        inside = path.relative_to(self.place).as_posix()
        if inside in self._settled:
            return self._settled[inside]
        now = path.stat()
        if (known := self._known.get(inside, now)) is not None:
            return known
        digest = file_digest(path)
        self._known.put(inside, now, path.stat(), digest)
        return digest

    def _prune(self, limit: int) -> None:
        found, total = [], 0
        for folder, _, names in os.walk(self.place):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    status = path.stat()
                    total += status.st_size
                    found.append((status.st_mtime_ns, status.st_size, path))
        if total <= limit:
            return
        ages = {path: age for age, _, path in found}
        # An object is as old as its record, which says when it was used.
        for _, size, path in sorted(
            (ages.get(path.with_suffix(".json"), age), size, path) for age, size, path in found
        ):
            if total <= limit * 9 // 10:
                return
            path.unlink(missing_ok=True)
            total -= size


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_same(path: Path, into: Path, record: ObjectRecord) -> bool:
    try:
        there = into.stat()
    except OSError:
        return False
    if os.path.samestat(path.stat(), there):
        return True
    return there.st_size == record.size and file_digest(into) == record.digest


def _link(one: Path, other: Path) -> None:
    # a second name costs nothing; where there can be none, a copy
    try:
        other.hardlink_to(one)
    except OSError:
        shutil.copyfile(one, other)


def _write(path: Path, data: bytes) -> None:
    aside = _beside(path)
    _in_folder(path, lambda: aside.write_bytes(data))
    aside.replace(path)


def _in_folder(path: Path, write: Callable[[], object]) -> None:
    # most folders are there
    try:
        write()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()


def _beside(path: Path) -> Path:
    return path.with_name(f".{os.getpid()}-{path.name}")


def _remove(record: Path) -> None:
    record.unlink(missing_ok=True)
    record.with_suffix(".o").unlink(missing_ok=True)
