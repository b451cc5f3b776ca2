"""Downloads with their progress, and files out of wheels by HTTP ranges."""

from __future__ import annotations

import bisect
import http.client
import os
import re
import struct
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import unescape
from pathlib import Path
from typing import IO, Self

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from kci.build.process.run import Finished, Log, output_of, run, run_in_group, shell_line, silent
from kci.build.toolchains.data import toolchains
from kci.errors import MissingToolError
from kci.utils.atomic import full_disk_hint, full_disk_program_hint, write_atomic
from kci.utils.bounded_json import read_json
from kci.utils.cache import CACHE_VARIABLE, LAST_TIMES, make_once

_SAYS_BYTES = (24, 1)
"""Since this version pip has the progress bar `raw`: a line with the bytes so far and in all, now and then."""

_VERSION = re.compile(r"pip (\d+)\.(\d+)")
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
"""That line, which pip writes for programs: `Progress 65536 of 193273528`."""


class FetchedTool(msgspec.Struct, frozen=True):
    """A part of a toolchain: this machine has it, or the cache has it once it was fetched."""

    @property
    def place(self) -> Path | None:
        """Where in the cache it lies; None where this machine has it."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """True if it is there."""
        return self.place is None or self.place.is_dir()

    @property
    def by_kci(self) -> str:
        """What kci itself does to get it, for a dry run; empty if commands do all."""
        return ""

    def setup(self, python: Path, target: Path | None = None, /) -> list[list[str]]:
        """The commands that get it, by a Python that has pip, to another place if that is given."""
        raise NotImplementedError

    def fetch(self, python: Path, place: Path, log: Log, /) -> None:
        """Get it, to the place that is given. MissingToolError if it cannot be had."""
        raise NotImplementedError

    def planned(self, python: Path) -> list[str]:
        """The shell lines that `ensure` would run."""
        if self.complete:
            return []
        return [*map(shell_line, self.setup(python)), *([f"# kci {self.by_kci}"] if self.by_kci else [])]

    def ensure(self, python: Path, log: Log) -> None:
        """Get it unless it is there; several processes may ask at once.

        Raises:
            MissingToolError: it cannot be had.
        """
        if self.place is not None:
            make_once(self.place, lambda: self.complete, lambda place: self._fetch_timed(python, place, log), log)

    def _fetch_timed(self, python: Path, place: Path, log: Log) -> None:
        assert self.place is not None  # noqa: S101  - `ensure` asked
        with timed(self.place, log):
            self.fetch(python, place, log)


def pip_install(python: Path) -> list[str]:
    """The start of every pip command. Only wheels: a build must not run the setup scripts of others."""
    return [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:"]


def run_pip(command: Sequence[str], what: str, log: Log, env: Mapping[str, str] | None = None) -> Finished:
    """Run a pip command, which ends with kci however that ends; what it downloads is told as `Transfer` does.

    Args:
        command: one that begins with `pip_install`.
        what: what it installs, for the lines about downloads.
        log: takes these lines, and no others.
        env: its environment, by default this one's.

    Raises:
        MissingToolError: there is no such Python.
    """
    raw = {"PIP_PROGRESS_BAR": "raw"} if _version(command[0]) >= _SAYS_BYTES else {}
    done = run_in_group(command, PipLines(what, log), env={**(os.environ if env is None else env), **raw})
    kept = [line for line in done.output.splitlines(keepends=True) if not _PROGRESS.fullmatch(line.strip())]
    return Finished(done.code, "".join(kept))


OTHER_INDEX = "check the network, or name an index or a folder of wheels with PIP_INDEX_URL or PIP_FIND_LINKS"


_PROBE_SECONDS = 5
_NO_WAY = ("Name or service not known", "name resolution", "nodename nor servname", "Connection refused", "unreachable")
"""What a system says where nothing is at an address. A time-out is none of these: that may be a slow network."""
_OTHER_PLACES = re.compile(r"^(?!:env:).*\.index-url=|\.(?:extra-index-url|find-links|no-index|proxy)=", re.M)


def _fault(url: str) -> Exception | None:
    """Why an index does not answer, asked once and briefly: pip itself would retry for minutes."""
    import http.client
    import urllib.error
    import urllib.request

    try:
        request = urllib.request.Request(url.rstrip("/") + "/", method="HEAD")  # noqa: S310  - our own data, or the user's word
        with urllib.request.urlopen(request, timeout=_PROBE_SECONDS):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 405 else error  # it is there, and does not like a HEAD
    except (OSError, http.client.HTTPException, ValueError) as error:
        return error


def is_reachable(url: str) -> bool:
    """True if a package index answers; never where pip is told to ask none."""
    return not os.environ.get("PIP_NO_INDEX") and _fault(url) is None


def require_index(python: str) -> None:
    """Before anything is made: see that there is a way to the index that pip asks, if it asks but one.

    Raises:
        MissingToolError: there is none. Where pip knows other places, or the index only takes its time, pip decides.
    """
    index = pip_index()
    fault = _said(_fault(index))
    if any(word in fault for word in _NO_WAY) and asks_one_index(python):
        raise MissingToolError(f"there is no way to the package index {index}: {fault}", hint=OTHER_INDEX)


def _said(fault: Exception | None) -> str:
    return str(fault or "").removeprefix("<urlopen error ").removesuffix(">")[:200]


def pip_index() -> str:
    """The index that pip asks where nothing but a variable names one."""
    return os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"


def asks_one_index(python: str) -> bool:
    """True if pip knows no other place than `pip_index`."""
    settings = output_of(python, "-m", "pip", "config", "list", "-v")
    return bool(settings) and not _OTHER_PLACES.search(settings)


def install(command: Sequence[str], what: str, log: Log, into: Path) -> None:
    """Run a pip command that has to succeed.

    Args:
        command: one that begins with `pip_install`.
        what: what it installs, for the message.
        log: is told how far downloads are.
        into: where it writes, for the hint.

    Raises:
        MissingToolError: pip failed.
    """
    done = run_pip(command, what, log)
    if done.code != 0:
        hint, away = full_disk_program_hint(done.output, into, CACHE_VARIABLE), ""
        if hint:
            away = "the disk is full"
        elif os.environ.get("PIP_NO_INDEX", "0") not in ("", "0", "false"):
            away = "PIP_NO_INDEX is set, so no index is asked"
        elif pip_index().startswith("http") and (fault := _fault(pip_index())) is not None:
            away = f"there is no way to the package index {pip_index()}: {_said(fault)}"
        none = "check that this Python has wheels for it" if "No matching distribution" in done.output else ""
        hint = hint or (OTHER_INDEX if away else none)
        why = f": {away}" if away else ""
        raise MissingToolError(f"cannot install {what}{why}\n{shell_line(command)}\n{done.tail()}", hint=hint)


def newer_pip(python: Path) -> None:
    """Let an environment have a pip that says bytes, where its Python brings an older one and the index has another.

    Without one nothing is said but names and sizes, so nothing is made of a failure.
    """
    if _version(str(python)) >= _SAYS_BYTES:
        return
    run([*pip_install(python), "--quiet", "--retries", "0", "--timeout", "5", "--upgrade", toolchains().tools["pip"]])


class PipLines:
    """Takes pip's lines, and tells how far its downloads are by those of the progress bar `raw`."""

    def __init__(self, what: str, log: Log) -> None:
        self._what, self._log = what, log
        self._transfer: Transfer | None = None
        self._done = self._total = 0

    def __call__(self, line: str) -> None:
        if found := _PROGRESS.fullmatch(line.strip()):
            done, total = int(found[1]), int(found[2])
            if self._transfer is None or total != self._total or done < self._done:  # another file
                self._transfer, self._done, self._total = Transfer(self._what, total, self._log), 0, total
            self._transfer.heard(done - self._done)
            self._done = done


def _version(python: str) -> tuple[int, int]:
    # (0, 0) if it has none, which the command itself will say better
    found = _VERSION.match(output_of(python, "-m", "pip", "--version"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


# torch-2.13.0-cpu-cp311-3dd896: a name, and which Python it is for
_FOR_PYTHON = re.compile(r"-cp\d.*")
_STEP = re.compile(r"(?:installing|getting|fetching|taking|translating|waiting|note:|warning:) ")


@contextmanager
def timed(place: Path, log: Log) -> Iterator[None]:
    """Around getting what will lie at a place of the cache: tell how long that took the last time, and takes now."""
    what = _FOR_PYTHON.sub("", place.name)
    kind = re.sub(r"\d[\d.]*", "", what)
    file = place.parent / LAST_TIMES
    times: dict[str, float] = {}
    with suppress(OSError, ValueError):
        times = read_json(file, dict[str, float])
    last = f", which took {duration(round(times[kind]))} the last time" if kind in times else ""
    log(f"note: {what} is not in the cache: getting it{last}")
    begun = time.monotonic()
    yield
    taken = time.monotonic() - begun
    log(f"note: got {what} in {duration(round(taken))}")
    with suppress(OSError):  # nothing depends on it
        write_atomic(file, msgspec.json.encode({**times, kind: round(taken, 1)}))


def is_step(line: str) -> bool:
    """True if a line says what a build waits for, so that it is shown where other lines are not."""
    return _STEP.match(line) is not None or isinstance(line, TransferLine)


_SECONDS = 0.5
"""How often it is said."""

_SELDOM = 10.0
"""How often it is shown where lines stay."""


class Transfer:
    """Counts what arrives of a number of bytes (0: not known), and says so in a line now and then."""

    def __init__(self, what: str, total: int, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._log, self._clock = what, total, log, clock
        self._begun = self._said = clock()
        self._done = 0
        self._told = False

    def heard(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._said >= _SECONDS or (self._told and self._done == self._total):
            self._said, self._told = now, True
            self._log(TransferLine(self._what, self._done, self._total, now - self._begun))


class TransferLine(str):
    """A line about a download, such as `torch: 6.1 of 13.2 MB, 2.1 MB/s, 4 s left`, and the words in it."""

    what: str
    amount: str
    rate: str
    left: str
    """The time that it will take; nothing at its end, and where its size is not known."""
    ended: bool

    def __new__(cls, what: str, done: int, total: int, seconds: float) -> Self:
        rate = done / seconds if seconds > 0 else 0.0
        amount = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
        left = duration(max(1, round((total - done) / rate))) if total > done and rate else ""
        line = super().__new__(cls, f"{what}: {amount}, {rate / 1e6:.1f} MB/s{f', {left} left' * bool(left)}")
        line.what, line.amount, line.rate, line.left = what, amount, f"{rate / 1e6:.1f} MB/s", left
        line.ended = bool(total) and done >= total
        return line


def duration(seconds: int) -> str:
    """A time to wait, in words."""
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"


class SeldomTransfers:
    """Passes lines on, and of those about one download only the first, one in ten seconds, and the last.

    For logs and pipes, where a line stays.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._said: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        if isinstance(line, TransferLine):
            now = self._clock()
            if now - self._said.get(line.what, -_SELDOM) < _SELDOM and not line.ended:
                return
            self._said[line.what] = now
        self._log(line)


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
        full = full_disk_hint(error, CACHE_VARIABLE) if isinstance(error, OSError) else ""
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
