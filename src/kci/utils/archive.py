"""Tar archives: a reproducible writer, and a strict reader of untrusted ones.

`tarfile` acts on extended headers while it parses them, and older ones loop on hostile input. So it
decodes single headers only.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from kci.diagnostics import finding
from kci.errors import MissingToolError, UnsafeError, rule_error
from kci.utils.atomic import start_writing
from kci.utils.frozen import Frozen
from kci.utils.walk import is_executable

SUFFIXES = (".tar", ".tar.zst")

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1024 * 1024


class ArchiveLimits(Frozen):
    """The limits of an artifact, in bytes but for `members`; real variants stay far below."""

    members: int = 20_000
    size: int = 8 * 1024**3
    leg: int = 1024**2
    header: int = 16 * 1024
    window: int = 128 * 1024**2
    """Bytes of memory for a zstd frame."""


LIMITS = ArchiveLimits()


class RefusedError(Exception):
    """The name of an archive member that must not be unpacked, and the reason."""


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


class TarStream:
    """A tar that is read once, front to back."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = 0

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield each file and directory; read its content before the next one.

        RefusedError or DamagedError.
        """
        count = total = 0
        while member := self._next():
            count += 1
            total += member.size
            if count > LIMITS.members:
                raise RefusedError(member.name, f"there are more than {LIMITS.members} members")
            if total > LIMITS.size:
                raise RefusedError(
                    member.name, f"the files are larger than {LIMITS.size} bytes together"
                )
            self._left = member.size
            yield member
            while self.read(_CHUNK):
                pass
            self._take(-member.size % _BLOCK)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes of the current member, empty at its end; DamagedError for a truncated
        archive.
        """
        data = self._take(min(size, self._left))
        self._left -= len(data)
        return data

    def extract(self, place: Path) -> str:
        """Write the current member to a new file, and return its SHA-256 in hex; OSError, or raises
        as `read`.
        """
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with place.open("xb") as file:
            try:
                while data := self.read(_CHUNK):
                    digest.update(data)
                    file.write(data)
            except BaseException:
                place.unlink()
                raise
            start_writing(file)
        return digest.hexdigest()

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self._stream.read(size - len(data))):
            data += more
        if len(data) < size:
            raise DamagedError("it ends too early")
        return data

    def _next(self) -> tarfile.TarInfo | None:
        block = self._take(_BLOCK)
        if not any(block):
            return None
        member = _header(block)
        if member.type == tarfile.XHDTYPE:
            member = self._extended(member)
        if member.type not in _PLAIN:
            raise RefusedError(
                member.name,
                f"it is {_KINDS.get(member.type, f'of the unknown kind {member.type!r}')}",
            )
        if member.isdir() and member.size:
            raise RefusedError(member.name, "it is a directory with content")
        return member

    def _extended(self, head: tarfile.TarInfo) -> tarfile.TarInfo:
        if head.size > LIMITS.header:
            raise RefusedError(
                head.name, f"its extended header is larger than {LIMITS.header} bytes"
            )
        records = _records(self._take(head.size))
        self._take(-head.size % _BLOCK)
        member = _header(self._take(_BLOCK))
        if member.type == tarfile.XHDTYPE:
            raise RefusedError(member.name, "it has more than one extended header")
        if sparse := [key for key in records if key.startswith("GNU.sparse")]:
            raise RefusedError(member.name, f"it is a sparse file ({sparse[0]})")
        number = records.get("size", str(member.size))
        if not re.fullmatch("[0-9]{1,19}", number):
            raise DamagedError(f"an extended header's number {number[:20]!r} is not a number")
        member.size = int(number)
        member.name = records.get("path", member.name).rstrip("/")
        return member


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError as error:
        raise DamagedError(f"a header is damaged: {error}") from error
    if header.size < 0:
        raise DamagedError("a header's size is not a number")
    return header


_RECORD = re.compile(rb"([0-9]{1,6}) ([^=\n]*)=")


def _records(data: bytes) -> dict[str, str]:
    records = {}
    while data:
        head = _RECORD.match(data)
        record = data[: int(head[1])] if head else b""
        if head is None or len(record) < int(head[1]) or not record.endswith(b"\n"):
            raise DamagedError("an extended header is malformed")
        records[head[2].decode(errors="replace")] = record[head.end() : -1].decode(errors="replace")
        data = data[len(record) :]
    return records


@contextmanager
def written_archive(path: Path, *, zstd: bool, level: int = 10) -> Iterator[tarfile.TarFile]:
    """A tar to fill with members of `plain_member`; OSError, or MissingToolError for zstd without
    its package.
    """
    with ExitStack() as stack:
        stream: Any = stack.enter_context(path.open("wb"))
        if zstd:
            compressor = zstandard().ZstdCompressor(level=level, write_checksum=True)
            stream = stack.enter_context(compressor.stream_writer(stream, closefd=False))
        yield stack.enter_context(
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT)
        )


def plain_member(name: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    """The header of a file without time and owner."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = mode
    return member


def add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file as a member of this name; OSError."""
    mode = 0o755 if is_executable(path) else 0o644
    with path.open("rb") as file:
        archive.addfile(plain_member(name, path.stat().st_size, mode), file)


@contextmanager
def opened_archive(path: Path) -> Iterator[TarStream]:
    """An untrusted archive as a stream, decompressed if its name ends with `.zst`; UnsafeError or
    FindingsError.
    """
    try:
        with path.open("rb") as raw:
            stream: IO[bytes] = raw
            if path.name.endswith(".zst"):
                reader: Any = zstandard().ZstdDecompressor(max_window_size=LIMITS.window)
                stream = reader.stream_reader(raw, read_across_frames=True, closefd=False)
            yield TarStream(stream)
    except RefusedError as error:
        member, reason = error.args
        message = f"{path} is not safe to unpack: the member {member!r}: {reason}"
        hint = "kci never creates such an archive; find out where it comes from"
        raise UnsafeError(message, hint, diagnostics=[finding("KCI605", message, path)]) from error
    except OSError as error:
        raise rule_error("KCI604", f"cannot read {path}: {error.strerror}", path) from error
    except Exception as error:
        # Without zstandard, its error type cannot be imported.
        if not isinstance(error, DamagedError) and type(error).__name__ != "ZstdError":
            raise
        message = f"{path} is truncated or corrupt: {error}"
        raise rule_error(
            "KCI604", message, path, hint="download it again, or rerun its leg"
        ) from error


def zstandard() -> Any:
    """The zstandard module; MissingToolError without it."""
    try:
        import zstandard as module
    except ImportError as error:
        raise MissingToolError(
            "the zstandard package is not installed", "pip install 'kci[zstd]'"
        ) from error
    return module
