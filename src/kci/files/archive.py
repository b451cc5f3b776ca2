"""Archives: one tar that is the same bytes whenever its files are, and a strict reader of those that others made.

`tarfile` writes, and does not read: it acts on extended headers (links, sparse maps, sizes) while it parses them,
before a caller can judge a member, and some of that never ends on hostile input. kci's archives hold plain files and
directories only, so the reader here knows those, long names by way of a POSIX extended header, and refuses everything
else by name.
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

_BLOCK = 512


class ArchiveLimits(msgspec.Struct, frozen=True):
    """How much an artifact may hold. Real variants stay far below."""

    members: int = 20_000
    size: int = 8 * 1024**3
    """Bytes of all files together, unpacked."""
    leg: int = 1024**2
    """Bytes of `leg.json`."""
    header: int = 16 * 1024
    """Bytes of one extended header."""
    window: int = 128 * 1024**2
    """Memory that a zstd frame may ask for."""


LIMITS = ArchiveLimits()


class RefusedError(Exception):
    """Something in the archive that must not be unpacked."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason


class DamagedError(Exception):
    """The archive is cut short or its bytes make no sense."""


class Member(msgspec.Struct, frozen=True):
    """A file or directory of the archive. Read a file's content before going on to the next member."""

    name: str
    size: int
    directory: bool
    executable: bool


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
_FILES = (b"0", b"\0")
_DIRECTORY = b"5"
_EXTENDED = b"x"


class TarStream:
    """A tar read front to back, once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Each file and directory in turn.

        Raises:
            RefusedError: a member is of another kind, or the limits are passed.
            DamagedError: the archive is cut short or corrupt.
        """
        count = total = 0
        while (member := self._next()) is not None:
            count += 1
            total += member.size
            if count > LIMITS.members:
                raise RefusedError(member.name, f"there are more than {LIMITS.members} members")
            if total > LIMITS.size:
                raise RefusedError(member.name, f"the files are larger than {LIMITS.size} bytes together")
            yield member
            self._skip()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes of the current member; empty at its end.

        Raises DamagedError: the archive ends before the member does.
        """
        data = self._exactly(min(size, self._left))
        self._left -= len(data)
        return data

    def _skip(self) -> None:
        while self.read(1024 * 1024):
            pass
        self._exactly(self._padding)
        self._padding = 0

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            data = self._stream.read(size)
            if not data:
                raise DamagedError("it ends too early")
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _next(self) -> Member | None:
        extended: dict[str, str] | None = None
        while True:
            block = self._exactly(_BLOCK)
            if not any(block):
                return None
            kind, name, size, mode = _header(block)
            if kind != _EXTENDED:
                break
            if extended is not None:
                raise RefusedError(name, "it has more than one extended header")
            if size > LIMITS.header:
                raise RefusedError(name, f"its extended header is larger than {LIMITS.header} bytes")
            extended = _records(self._exactly(size))
            self._exactly(-size % _BLOCK)
        extended = extended or {}
        name = extended.get("path", name)
        if kind not in (*_FILES, _DIRECTORY):
            raise RefusedError(name, f"it is {_KINDS.get(kind, f'of the unknown kind {kind!r}')}")
        if sparse := [key for key in extended if key.startswith("GNU.sparse")]:
            raise RefusedError(name, f"it is a sparse file ({sparse[0]})")
        if "size" in extended:
            if not re.fullmatch("[0-9]{1,19}", extended["size"]):
                raise DamagedError(f"an extended header's number {extended['size'][:20]!r} is not a number")
            size = int(extended["size"])
        directory = kind == _DIRECTORY
        if directory and size:
            raise RefusedError(name, "it is a directory with content")
        self._left, self._padding = size, -size % _BLOCK
        return Member(name.removesuffix("/") if directory else name, size, directory, bool(mode & 0o100))


def _header(block: bytes) -> tuple[bytes, str, int, int]:
    """Kind, name, size and mode of a header block."""
    checksum = _octal(block[148:156], "checksum")
    if checksum != sum(block[:148]) + sum(block[156:]) + 8 * ord(" "):
        raise DamagedError("a header's checksum is wrong")
    if block[257:262] != b"ustar":
        raise DamagedError("a header is not a POSIX one")
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    text = (prefix + b"/" + name if prefix else name).decode(errors="replace")
    return block[156:157], text, _octal(block[124:136], "size"), _octal(block[100:108], "mode")


def _octal(field: bytes, what: str) -> int:
    text = field.strip(b" \0")
    if not text:
        return 0
    if any(char not in b"01234567" for char in text):
        raise DamagedError(f"a header's {what} is not a number")
    return int(text, 8)


def _records(data: bytes) -> dict[str, str]:
    # Each is `length key=value` and a newline; the length counts all of it.
    found = {}
    while data:
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or len(length) > 6:
            raise DamagedError("an extended header is malformed")
        record, data = data[: int(length)], data[int(length) :]
        key, equals, value = record[len(length) + 1 :].partition(b"=")
        if len(record) != int(length) or not equals or not value.endswith(b"\n"):
            raise DamagedError("an extended header is malformed")
        found[key.decode(errors="replace")] = value[:-1].decode(errors="replace")
    return found


@contextmanager
def written_archive(path: Path, *, zstd: bool, level: int = 10) -> Iterator[tarfile.TarFile]:
    """A tar to be filled with members of `plain_member`.

    Raises:
        OSError: it cannot be written.
        MissingToolError: zstd without the zstandard package.
    """
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
    """A file as archives have it: no time, no owner."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = mode
    return member


@contextmanager
def opened_archive(path: Path) -> Iterator[TarStream]:
    """An archive of somebody else as a stream; one whose name ends with `.zst` is decompressed.

    Raises:
        OSError: it cannot be read.
        RefusedError, DamagedError: as `TarStream`, or its compression is broken.
        MissingToolError: `.zst` without the zstandard package.
    """
    try:
        with path.open("rb") as raw:
            stream: IO[bytes] = raw
            if path.name.endswith(".zst"):
                reader: Any = zstandard().ZstdDecompressor(max_window_size=LIMITS.window)
                stream = reader.stream_reader(raw, read_across_frames=True, closefd=False)
            yield TarStream(stream)
    except Exception as error:
        # zstandard's own error type is only at hand where that package is.
        if type(error).__name__ == "ZstdError":
            raise DamagedError(str(error)) from error
        raise


def zstandard() -> Any:
    """The zstandard module."""
    try:
        import zstandard as module
    except ImportError as error:
        raise MissingToolError("the zstandard package is not installed", hint="pip install 'kci[zstd]'") from error
    return module
