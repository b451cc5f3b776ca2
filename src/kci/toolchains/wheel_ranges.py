"""Takes some files out of a wheel without downloading the whole of it, by HTTP range requests.

NVIDIA's library wheels hold a few hundred kilobytes of headers beside hundreds of megabytes of libraries, and torch's
own ten in five hundred. A wheel is a zip archive: its list of files stands at the end, and those of one folder lie
together. remotezip does this too, but asks once for each file, and torch has ten thousand headers.
"""

from __future__ import annotations

import bisect
import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from kci.errors import MissingToolError
from kci.files.bounded_json import decode_json
from kci.files.cache import CACHE_OPTION
from kci.files.full_disk import room_hint
from kci.processes.process import Log, silent
from kci.toolchains.downloads import Transfer, pip_index

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_SECONDS = 60
_BLOCK = 1 << 16
_PART = 1 << 18
_GAP = 1 << 18
"""Files that lie closer together are read in one request, with what is between them."""

_UNREADABLE = (
    OSError,
    http.client.HTTPException,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
)
"""How an index or a wheel shows that it is not what it should be."""

_MOST = 1 << 30
"""No wheel has more bytes of headers; this many are a mistake or an attack."""


class WheelFile(msgspec.Struct, frozen=True):
    """A wheel on an index."""

    name: str
    url: str


class RangeFile(io.RawIOBase):
    """A file behind a URL, of which only what is asked for is read."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self.downloaded = 0
        self.heard: Callable[[int], None] = lambda _count: None
        """Is told of the bytes as they come."""
        tail, self.size = self._request(f"bytes=-{_BLOCK}")
        self._blocks[self.size - len(tail)] = tail

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = max(0, min(size if size >= 0 else self.size, self.size - self._at))
        if size == 0:
            return b""
        if (found := self._held(self._at, size)) is None:
            self.prefetch(self._at, self._at + max(size, _BLOCK))
            found = self._held(self._at, size) or b""
        self._at += len(found)
        return found

    def prefetch(self, start: int, end: int) -> None:
        """Read a stretch that will be wanted."""
        end = min(end, self.size)
        if start < end and self._held(start, end - start) is None:
            self._blocks[start] = self._request(f"bytes={start}-{end - 1}")[0]

    def _held(self, start: int, size: int) -> bytes | None:
        starts = sorted(self._blocks)
        for begin in reversed(starts[: bisect.bisect_right(starts, start)]):
            block = self._blocks[begin]
            if start + size <= begin + len(block):
                return block[start - begin : start - begin + size]
        return None

    def _request(self, wanted: str) -> tuple[bytes, int]:
        request = urllib.request.Request(self._url, headers={"Range": wanted})  # noqa: S310  - https or the user's own
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            if answer.status != 206:
                raise OSError(f"{self._url} cannot be read in parts")
            parts = []
            while part := answer.read(_PART):
                parts.append(part)
                self.heard(len(part))
            data = b"".join(parts)
            self.downloaded += len(data)
            return data, int(answer.headers["Content-Range"].rpartition("/")[2])


def extract(wheel: WheelFile, wanted: Callable[[str], str | None], into: Path, log: Log = silent) -> int:
    """Take files out of a wheel.

    Args:
        wheel: which one.
        wanted: for a path in the wheel, the path below `into` to write it to, or None to leave it.
        into: a directory.
        log: is told how far the download is.

    Returns:
        How many bytes were downloaded.

    Raises:
        MissingToolError: the wheel cannot be read in parts, or is no wheel.
    """
    try:
        file = RangeFile(wheel.url)
        with zipfile.ZipFile(file) as archive:
            chosen = {info.filename: wanted(info.filename) for info in archive.infolist() if not info.is_dir()}
            picked = [info for info in archive.infolist() if chosen.get(info.filename)]
            if sum(info.file_size for info in picked) > _MOST:
                raise OSError("it claims to hold more than a gigabyte of headers")
            stretches = _stretches(archive, picked)
            total = sum(end - start for start, end in stretches)
            file.heard = Transfer(f"files of {wheel.name}", total, log).heard
            for start, end in stretches:
                file.prefetch(start, end)
            for info in picked:
                _write(into, str(chosen[info.filename]), archive.read(info))
        return file.downloaded
    except _UNREADABLE as error:
        message = f"cannot take files out of {wheel.name}: {error}"
        full = room_hint(error, CACHE_OPTION) if isinstance(error, OSError) else ""
        raise MissingToolError(message, hint=full or "check the network, and that it serves byte ranges") from error


def find_wheel(package: str, version: str, platform: str, index: str | None = None) -> WheelFile:
    """A wheel of a package for Linux of one machine; whatever Python it is for, its headers are the same.

    Args:
        package: its name.
        version: its version; a local part (`+cu130`) is only asked for if it is given.
        platform: `x86_64` or `aarch64`.
        index: the index, by default the one of pip's `PIP_INDEX_URL`, else PyPI.

    Raises:
        MissingToolError: the index does not answer, or has no such wheel.
    """
    base = (index or pip_index()).rstrip("/")
    page = f"{base}/{canonicalize_name(package)}/"
    try:
        request = urllib.request.Request(page, headers={"Accept": _ACCEPT})  # noqa: S310  - https or the user's own
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            listed = _listed(answer.read(), answer.headers.get_content_type())
    except _UNREADABLE as error:
        raise MissingToolError(f"the index {page} does not answer: {error}", hint="check the network") from error
    for name, address in sorted(listed.items()):
        if _is_for(name, version, platform):
            return WheelFile(name, urllib.parse.urldefrag(urllib.parse.urljoin(page, address))[0])
    raise MissingToolError(f"{page} has no wheel of {package} {version} for Linux on {platform}", hint="name a mirror")


class _ListedFile(msgspec.Struct, frozen=True):
    filename: str
    url: str


class _ListedPage(msgspec.Struct, frozen=True):
    files: tuple[_ListedFile, ...]


class _Links(HTMLParser):
    """The links of an index page in the older form, by their last part."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href") if tag == "a" else None
        if address:
            name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
            self.found[name] = address


def _listed(page: bytes, kind: str) -> dict[str, str]:
    if kind.endswith("json"):
        return {file.filename: file.url for file in decode_json(page, _ListedPage).files}
    links = _Links()
    links.feed(page.decode("utf-8", "replace"))
    return links.found


def _is_for(name: str, version: str, platform: str) -> bool:
    try:
        _, found, _, tags = parse_wheel_filename(name)
        wanted = Version(version)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    same = found == wanted if wanted.local else found.public == wanted.public
    return same and any(tag.platform.endswith(f"_{platform}") and "linux" in tag.platform for tag in tags)


def _stretches(archive: zipfile.ZipFile, picked: list[zipfile.ZipInfo]) -> list[tuple[int, int]]:
    """The parts of the archive that hold these files, adjacent ones together."""
    starts = [*sorted(info.header_offset for info in archive.infolist()), archive.start_dir]
    made: list[tuple[int, int]] = []
    for info in sorted(picked, key=lambda item: item.header_offset):
        start, end = info.header_offset, starts[bisect.bisect_right(starts, info.header_offset)]
        if made and start - made[-1][1] < _GAP:
            made[-1] = (made[-1][0], end)
        else:
            made.append((start, end))
    return made


def _write(into: Path, name: str, data: bytes) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"it holds the path {name!r}")
    target = into / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
