"""Tar archives: a reproducible writer, and a strict reader of untrusted ones.

`tarfile` acts on extended headers while it parses them, and older ones loop on hostile input. So each header is judged
first, and `tarfile` sees plain files and directories only.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from kci.errors import MissingToolError

SUFFIXES = (".tar", ".tar.zst")

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1024 * 1024


class ArchiveLimits(msgspec.Struct, frozen=True):
    """The limits of an artifact; real variants stay far below."""

    members: int = 20_000
    size: int = 8 * 1024**3
    leg: int = 1024**2
    header: int = 16 * 1024
    window: int = 128 * 1024**2
    """Bytes of memory for a zstd frame."""


LIMITS = ArchiveLimits()


class RefusedError(Exception):
    """An archive member that must not be unpacked."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason


class DamagedError(Exception):
    """The archive is truncated or corrupt."""


_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a fifo",
    b"S": "a sparse file",
    b"g": "a global header",
    b"K": "a GNU long link",
    b"L": "a GNU long name",
}
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""The filter exists since Python 3.11.4; what it refuses is refused before."""


class _LookaheadStream:
    """A forward-only stream for `tarfile`, with a lookahead."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._ahead = b""
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> None:
        while self._at < place:
            if not self.read(min(place - self._at, _CHUNK)):
                raise DamagedError("it ends too early")

    def read(self, size: int) -> bytes:
        data = self.look(0, size)
        self._ahead = self._ahead[size:]
        self._at += len(data)
        return data

    def look(self, start: int, size: int) -> bytes:
        while len(self._ahead) < start + size and (data := self._stream.read(start + size - len(self._ahead))):
            self._ahead += data
        return self._ahead[start : start + size]


class TarStream:
    """A tar that is read once, front to back."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._front = _LookaheadStream(stream)
        self._archive: tarfile.TarFile | None = None
        self._end = 0

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield each file and directory; read its content before the next one. RefusedError or DamagedError."""
        count = total = 0
        while _check_next_header(self._front):
            member = self._next()
            count += 1
            total += member.size
            if count > LIMITS.members:
                raise RefusedError(member.name, f"there are more than {LIMITS.members} members")
            if total > LIMITS.size:
                raise RefusedError(member.name, f"the files are larger than {LIMITS.size} bytes together")
            self._end = member.offset_data + member.size
            yield member
            self._front.seek(self._end + -member.size % _BLOCK)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes of the current member, empty at its end; DamagedError for a truncated archive."""
        length = min(size, self._end - self._front.tell())
        data = self._front.read(length)
        if len(data) < length:
            raise DamagedError("it ends too early")
        return data

    def extract(self, member: tarfile.TarInfo, directory: Path) -> None:
        """Write the current member, a file, below a directory; OSError, or DamagedError for a truncated archive."""
        assert self._archive is not None  # noqa: S101  - it has a current member
        try:
            self._archive.extract(member, directory, set_attrs=False, **_FILTER)
        except tarfile.TarError as error:
            raise DamagedError(str(error)) from error

    def _next(self) -> tarfile.TarInfo:
        try:
            if self._archive is None:
                self._archive = tarfile.TarFile(
                    fileobj=cast("IO[bytes]", self._front), encoding="utf-8", errors="replace", copybufsize=_CHUNK
                )
            member = self._archive.next()
        except tarfile.TarError as error:
            raise DamagedError(str(error)) from error
        if member is None:
            raise DamagedError("a header makes no sense")
        return member


def _check_next_header(front: _LookaheadStream) -> bool:
    block = front.look(0, _BLOCK)
    if len(block) == _BLOCK and not any(block):
        return False
    header = _header(block)
    size = header.size
    if header.type == tarfile.XHDTYPE:
        if size > LIMITS.header:
            raise RefusedError(header.name, f"its extended header is larger than {LIMITS.header} bytes")
        records = _records(front.look(_BLOCK, size))
        header = _header(front.look(_BLOCK + size + -size % _BLOCK, _BLOCK))
        if header.type == tarfile.XHDTYPE:
            raise RefusedError(header.name, "it has more than one extended header")
        if sparse := [key for key in records if key.startswith("GNU.sparse")]:
            raise RefusedError(header.name, f"it is a sparse file ({sparse[0]})")
        number = records.get("size", str(header.size))
        if not re.fullmatch("[0-9]{1,19}", number):
            raise DamagedError(f"an extended header's number {number[:20]!r} is not a number")
        size = int(number)
    if header.type not in _PLAIN:
        raise RefusedError(header.name, f"it is {_KINDS.get(header.type, f'of the unknown kind {header.type!r}')}")
    if header.isdir() and size:
        raise RefusedError(header.name, "it is a directory with content")
    return True


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError as error:
        raise DamagedError(f"a header is damaged: {error}") from error
    if header.size < 0:
        raise DamagedError("a header's size is not a number")
    return header


def _records(data: bytes) -> dict[str, str]:
    records = {}
    while data:
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or len(length) > 6:
            raise DamagedError("an extended header is malformed")
        record, data = data[: int(length)], data[int(length) :]
        key, equals, value = record[len(length) + 1 :].partition(b"=")
        if len(record) != int(length) or not equals or not value.endswith(b"\n"):
            raise DamagedError("an extended header is malformed")
        records[key.decode(errors="replace")] = value[:-1].decode(errors="replace")
    return records


@contextmanager
def written_archive(path: Path, *, zstd: bool, level: int = 10) -> Iterator[tarfile.TarFile]:
    """A tar to fill with members of `plain_member`; OSError, or MissingToolError for zstd without its package."""
    with path.open("wb") as raw:
        if not zstd:
            with tarfile.open(fileobj=raw, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                yield archive
            return
        compressor = zstandard().ZstdCompressor(level=level, write_checksum=True)
        with (
            compressor.stream_writer(raw, closefd=False) as stream,
            tarfile.open(fileobj=cast("IO[bytes]", stream), mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            yield archive


def plain_member(name: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    """The header of a file without time and owner."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = mode
    return member


@contextmanager
def opened_archive(path: Path) -> Iterator[TarStream]:
    """An untrusted archive as a stream, decompressed if its name ends with `.zst`; RefusedError, DamagedError."""
    try:
        with path.open("rb") as raw:
            stream: IO[bytes] = raw
            if path.name.endswith(".zst"):
                reader: Any = zstandard().ZstdDecompressor(max_window_size=LIMITS.window)
                stream = reader.stream_reader(raw, read_across_frames=True, closefd=False)
            yield TarStream(stream)
    except Exception as error:
        # Without zstandard, its error type cannot be imported.
        if type(error).__name__ == "ZstdError":
            raise DamagedError(str(error)) from error
        raise


def zstandard() -> Any:
    """The zstandard module; MissingToolError without it."""
    try:
        import zstandard as module
    except ImportError as error:
        raise MissingToolError("the zstandard package is not installed", hint="pip install 'kci[zstd]'") from error
    return module
