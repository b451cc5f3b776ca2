"""Takes some files out of a wheel without downloading the whole of it, by HTTP range requests.

NVIDIA's library wheels are 100 KB of headers beside hundreds of MB; torch's headers are 10 of 500 MB. What is wanted
goes to its place in an otherwise empty file, which `zipfile` reads. remotezip asks once a file: 9,300 times for torch.
"""

from __future__ import annotations

import bisect
import http.client
import re
import struct
import tempfile
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from html import unescape
from pathlib import Path
from typing import IO

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from kci.errors import MissingToolError
from kci.files.cache import CACHE_OPTION
from kci.files.full_disk import room_hint
from kci.processes.process import Log, silent
from kci.toolchains.downloads import Transfer, pip_index

_RANGE_SECONDS = 60
_PART = 1 << 16
_GAP = 1 << 18  # files that lie closer together are read in one request
_MOST = 1 << 30  # bytes of headers: more are a mistake or an attack
_LINK = re.compile(rb"""<a\s[^>]*?href\s*=\s*["']([^"'>]+)["']""", re.IGNORECASE)
_AWAY = (OSError, http.client.HTTPException, ValueError)
_BROKEN = (*_AWAY, TypeError, EOFError, NotImplementedError, struct.error, zipfile.BadZipFile, zlib.error)


class WheelFile(msgspec.Struct, frozen=True):
    """A wheel on an index."""

    name: str
    url: str


def extract(wheel: WheelFile, wanted: Callable[[str], str | None], into: Path, log: Log = silent) -> None:
    """Take files out of a wheel.

    `wanted` is asked about each path in the wheel: it returns the path below `into` to write to, or None to leave it.
    Raises MissingToolError: the wheel cannot be read in parts, or is no wheel.
    """
    try:
        with tempfile.TemporaryFile() as file:
            start = _copy(wheel.url, f"bytes=-{_PART}", file)
            file.seek(start)
            (place,) = struct.unpack("<L", file.read().rpartition(b"PK\5\6")[2][12:16])
            if place < start:  # the list of files is longer than the tail
                _copy(wheel.url, f"bytes={place}-{start - 1}", file)
            with zipfile.ZipFile(file) as archive:
                files = [info for info in archive.infolist() if not info.is_dir()]
                picked = {info: name for info in files if (name := wanted(info.filename))}
                if sum(info.file_size for info in picked) > _MOST:
                    raise OSError("it claims to hold more than a gigabyte of headers")
                stretches = _stretches(archive, picked)
                transfer = Transfer(f"files of {wheel.name}", sum(end - start for start, end in stretches), log)
                for start, end in stretches:
                    _copy(wheel.url, f"bytes={start}-{end - 1}", file, transfer.heard)
                for info, name in picked.items():
                    info.filename = name
                    archive.extract(info, into)
    except _BROKEN as error:
        full = room_hint(error, CACHE_OPTION) if isinstance(error, OSError) else ""
        hint = full or "check the network, and that it serves byte ranges"
        raise MissingToolError(f"cannot take files out of {wheel.name}: {error}", hint=hint) from error


def find_wheel(package: str, version: str, platform: str, index: str | None = None) -> WheelFile:
    """A wheel of a package for Linux of one machine; whatever Python it is for, its headers are the same.

    The version's local part (`+cu130`) is only asked for if it is given. The index is by default the one of pip.
    Raises MissingToolError: the index does not answer, or has no such wheel.
    """
    page = f"{(index or pip_index()).rstrip('/')}/{canonicalize_name(package)}/"
    try:
        with urllib.request.urlopen(page, timeout=_RANGE_SECONDS) as answer:  # noqa: S310  - https or the user's own
            links = sorted(unescape(link.decode()) for link in _LINK.findall(answer.read()))
    except _AWAY as error:
        raise MissingToolError(f"the index {page} does not answer: {error}", hint="check the network") from error
    for link in links:
        name = urllib.parse.unquote(urllib.parse.urlsplit(link).path.rpartition("/")[2])
        if _is_for(name, Version(version), platform):
            return WheelFile(name, urllib.parse.urldefrag(urllib.parse.urljoin(page, link))[0])
    raise MissingToolError(f"{page} has no wheel of {package} {version} for Linux on {platform}", hint="name a mirror")


def _is_for(name: str, wanted: Version, platform: str) -> bool:
    try:
        _, found, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    same = found == wanted if wanted.local else found.public == wanted.public
    return same and any(tag.platform.endswith(f"_{platform}") and "linux" in tag.platform for tag in tags)


def _copy(url: str, stretch: str, file: IO[bytes], heard: Callable[[int], None] = lambda _: None) -> int:
    """Copy a stretch of what is at a URL to the same place in a file, which gets the same size; where it begins."""
    request = urllib.request.Request(url, headers={"Range": stretch})  # noqa: S310  - https or the user's own
    with urllib.request.urlopen(request, timeout=_RANGE_SECONDS) as answer:  # noqa: S310
        if answer.status != 206:
            raise OSError(f"{url} cannot be read in parts")
        start, _, size = map(int, re.findall(r"\d+", answer.headers["Content-Range"]))
        file.truncate(size)
        file.seek(start)
        while part := answer.read(_PART):
            file.write(part)
            heard(len(part))
        return start


def _stretches(archive: zipfile.ZipFile, picked: Iterable[zipfile.ZipInfo]) -> list[tuple[int, int]]:
    """The parts of the archive that hold these files, adjacent ones together."""
    starts = [*sorted(info.header_offset for info in archive.infolist()), archive.start_dir]
    made: list[tuple[int, int]] = []
    for start in sorted(info.header_offset for info in picked):
        joined = made and start - made[-1][1] < _GAP
        made.append((made.pop()[0] if joined else start, starts[bisect.bisect_right(starts, start)]))
    return made
