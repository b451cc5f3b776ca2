"""Making the artifact of a variant directory, and reading one that somebody else made.

An artifact is one tar that is the same bytes whenever the files are. `tarfile` writes it, and does not read it: it acts
on extended headers (links, sparse maps, sizes) while it parses them, before a caller can judge a member, and some of
that never ends on hostile input. An artifact holds plain files and directories only, so the reader here knows those,
long names by way of a POSIX extended header, and refuses everything else by name.
"""

from __future__ import annotations

import io
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from kci.errors import MissingToolError, UnsafeError, UsageError, rule_error
from kci.files.full_disk import room_hint
from kci.files.portable_names import collision, unsafe_name
from kci.files.replace import replacing
from kci.files.walk import Entry, is_bytecode, is_executable, walk
from kci.plurals import count
from kci.tree.leg_record import LEG_NAME, LegRecord

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


def zstandard() -> Any:
    """The zstandard module."""
    try:
        import zstandard as module
    except ImportError as error:
        raise MissingToolError("the zstandard package is not installed", hint="pip install 'kci[zstd]'") from error
    return module


_ZSTD_LEVEL = 10
_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def pack(variant_dir: Path, out_file: Path, leg: LegRecord) -> Path:
    """Write the artifact of a sealed variant directory to `out_file`; `.tar.zst` compresses, `.tar` does not.

    Names are sorted, times and owners zero and modes 644 or 755, so the same files always give the same bytes.

    Raises:
        UsageError: the file name ends with neither suffix, or the leg is another variant's.
        UnsafeError: the directory holds a link, a device or a name that cannot travel.
        FindingsError: a file cannot be read, the archive cannot be written, or the variant is too large.
    """
    if not out_file.name.endswith(SUFFIXES):
        raise UsageError(f"{out_file} is not an artifact name", hint=f"end it with {' or '.join(SUFFIXES)}")
    if leg.variant != variant_dir.name:
        raise UsageError(f"the leg is about {leg.variant}, the directory is {variant_dir}")
    files = packable(variant_dir)
    with replacing(out_file) as made:
        try:
            with made.staging.open("wb") as raw:
                if out_file.name.endswith(".zst"):
                    compressor = zstandard().ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
                    with compressor.stream_writer(raw, closefd=False) as stream:
                        _write(stream, leg, files)
                else:
                    _write(raw, leg, files)
        except OSError as error:
            message = f"cannot write {out_file}: {error.strerror or error}"
            raise rule_error("KCI604", message, hint=room_hint(error), path=str(out_file)) from error
        made.commit()
    return out_file


def packable(variant_dir: Path) -> list[Entry]:
    """The files of a variant directory that an artifact can hold, after the same checks that unpacking makes.

    Raises:
        UnsafeError: there is a link, a device or a name that cannot travel.
        FindingsError: the variant is too large for an artifact.
    """
    found = [item for item in walk(variant_dir) if not is_bytecode(item.name)]
    for item, _, reason in untransportable(found):
        raise UnsafeError(f"{variant_dir}: {item.name!r} cannot be packed: {reason}")
    if size := too_large(found):
        raise rule_error(
            "KCI604",
            f"{variant_dir} is too large for an artifact: {size}",
            hint=f"an artifact holds up to {LIMITS.members} files and {LIMITS.size} bytes",
            path=str(variant_dir),
        )
    return found


def untransportable(entries: Iterable[Entry]) -> Iterator[tuple[Entry, str, str]]:
    """The entries of a variant that no artifact can hold, each with the rule that says so and the reason."""
    seen: dict[str, str] = {}
    for item in entries:
        if item.link:
            yield item, "KCI706", "it is a link; put the file itself there"
        elif not item.regular:
            yield item, "KCI706", "it is neither a file nor a directory"
        elif item.path.lstat().st_mode & _SPECIAL:
            yield item, "KCI727", "it has a setuid, setgid or sticky bit"
        elif reason := unsafe_name(item.name):
            yield item, "KCI708", reason
        elif other := collision(item.name, seen):
            yield item, "KCI708", f"it differs from {other!r} in case only"


def too_large(entries: Sequence[Entry]) -> str | None:
    """How much some files are, if that is more than an artifact can hold."""
    size = sum(item.path.stat().st_size for item in entries if item.regular and not item.link)
    if len(entries) > LIMITS.members or size > LIMITS.size:
        return f"{count(len(entries), 'file')}, {size} bytes"
    return None


def _write(stream: IO[bytes], leg: LegRecord, files: list[Entry]) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        text = msgspec.json.format(msgspec.json.encode(leg), indent=2) + b"\n"
        archive.addfile(_member(LEG_NAME, len(text)), io.BytesIO(text))
        for item in files:
            with item.path.open("rb") as file:
                member = _member(f"{leg.variant}/{item.name}", item.path.stat().st_size)
                member.mode = 0o755 if is_executable(item.path) else 0o644
                archive.addfile(member, file)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    return member
