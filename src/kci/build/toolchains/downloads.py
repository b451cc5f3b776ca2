"""Downloads with progress, and files out of wheels by HTTP ranges."""

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

from kci.build.process.run import Log, ProgramResult, program_output, run, run_in_group, shell_line, silent
from kci.build.toolchains.data import toolchains
from kci.errors import MissingToolError
from kci.utils.atomic import full_disk_hint, full_disk_program_hint, write_atomic
from kci.utils.bounded_json import read_json
from kci.utils.cache import CACHE_VARIABLE, LAST_TIMES, make_once

_SAYS_BYTES = (24, 1)
"""First pip with the progress bar `raw`."""

_VERSION = re.compile(r"pip (\d+)\.(\d+)")
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
"""A line of that progress bar."""


class FetchedTool(msgspec.Struct, frozen=True):
    """A part of a toolchain, on this machine or downloaded to the cache."""

    @property
    def place(self) -> Path | None:
        """Path in the cache; None if the machine has it."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        return self.place is None or self.place.is_dir()

    @property
    def by_kci(self) -> str:
        """Description of kci's own steps, for a dry run; empty if `setup` lists all."""
        return ""

    def setup(self, python: Path, target: Path | None = None, /) -> list[list[str]]:
        """Commands that install it with a Python's pip, to `target` if given."""
        raise NotImplementedError

    def fetch(self, python: Path, place: Path, log: Log, /) -> None:
        """Download it to `place`. Raises MissingToolError."""
        raise NotImplementedError

    def planned(self, python: Path) -> list[str]:
        """The shell lines of `ensure`."""
        if self.complete:
            return []
        return [*map(shell_line, self.setup(python)), *([f"# kci {self.by_kci}"] if self.by_kci else [])]

    def ensure(self, python: Path, log: Log) -> None:
        """Download it once, also with concurrent processes. Raises MissingToolError."""
        if self.place is not None:
            make_once(self.place, lambda: self.complete, lambda place: self._fetch_timed(python, place, log), log)

    def _fetch_timed(self, python: Path, place: Path, log: Log) -> None:
        assert self.place is not None  # noqa: S101  - `ensure` asked
        with timed(self.place, log):
            self.fetch(python, place, log)


def pip_install(python: Path) -> list[str]:
    """Start of a pip command: wheels only, because setup scripts must not run."""
    return [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:"]


def run_pip(command: Sequence[str], what: str, log: Log, env: Mapping[str, str] | None = None) -> ProgramResult:
    """Run a pip command, whose downloads `log` reports for `what`. Raises MissingToolError without that Python."""
    raw = {"PIP_PROGRESS_BAR": "raw"} if _version(command[0]) >= _SAYS_BYTES else {}
    done = run_in_group(command, PipLines(what, log), env={**(os.environ if env is None else env), **raw})
    kept = [line for line in done.output.splitlines(keepends=True) if not _PROGRESS.fullmatch(line.strip())]
    return ProgramResult(done.code, "".join(kept))


OTHER_INDEX = "check the network, or name an index or a folder of wheels with PIP_INDEX_URL or PIP_FIND_LINKS"


_PROBE_SECONDS = 5
_UNREACHABLE = (
    "Name or service not known",
    "name resolution",
    "nodename nor servname",
    "Connection refused",
    "unreachable",
)
"""Errors of an address without a server. Time-outs are left out: the network may be slow."""
_OTHER_PLACES = re.compile(r"^(?!:env:).*\.index-url=|\.(?:extra-index-url|find-links|no-index|proxy)=", re.M)


def _fault(url: str) -> Exception | None:
    # asked briefly: pip would retry for minutes
    import http.client
    import urllib.error
    import urllib.request

    try:
        request = urllib.request.Request(url.rstrip("/") + "/", method="HEAD")  # noqa: S310  - our own data, or the user's word
        with urllib.request.urlopen(request, timeout=_PROBE_SECONDS):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 405 else error  # the server only rejects HEAD
    except (OSError, http.client.HTTPException, ValueError) as error:
        return error


def is_reachable(url: str) -> bool:
    """True if a package index answers; False if pip is told to use none."""
    return not os.environ.get("PIP_NO_INDEX") and _fault(url) is None


def require_index(python: str) -> None:
    """Raise MissingToolError if pip has a single index and it is unreachable."""
    index = pip_index()
    fault = _fault_text(_fault(index))
    if any(word in fault for word in _UNREACHABLE) and asks_one_index(python):
        raise MissingToolError(f"there is no way to the package index {index}: {fault}", hint=OTHER_INDEX)


def _fault_text(fault: Exception | None) -> str:
    return str(fault or "").removeprefix("<urlopen error ").removesuffix(">")[:200]


def pip_index() -> str:
    """The index of pip by environment variables."""
    return os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"


def asks_one_index(python: str) -> bool:
    """True if pip uses no other source than `pip_index`."""
    settings = program_output(python, "-m", "pip", "config", "list", "-v")
    return bool(settings) and not _OTHER_PLACES.search(settings)


def install(command: Sequence[str], what: str, log: Log, into: Path) -> None:
    """Run a pip command. Raises MissingToolError if it fails; `what` and `into` are for the message."""
    done = run_pip(command, what, log)
    if done.code != 0:
        hint, away = full_disk_program_hint(done.output, into, CACHE_VARIABLE), ""
        if hint:
            away = "the disk is full"
        elif os.environ.get("PIP_NO_INDEX", "0") not in ("", "0", "false"):
            away = "PIP_NO_INDEX is set, so no index is asked"
        elif pip_index().startswith("http") and (fault := _fault(pip_index())) is not None:
            away = f"there is no way to the package index {pip_index()}: {_fault_text(fault)}"
        none = "check that this Python has wheels for it" if "No matching distribution" in done.output else ""
        hint = hint or (OTHER_INDEX if away else none)
        why = f": {away}" if away else ""
        raise MissingToolError(f"cannot install {what}{why}\n{shell_line(command)}\n{done.tail()}", hint=hint)


def newer_pip(python: Path) -> None:
    """Upgrade an environment's pip to one with progress, if possible; failures do not matter."""
    if _version(str(python)) >= _SAYS_BYTES:
        return
    run([*pip_install(python), "--quiet", "--retries", "0", "--timeout", "5", "--upgrade", toolchains().tools["pip"]])


class PipLines:
    """Turns pip's progress lines into `TransferLine`s."""

    def __init__(self, what: str, log: Log) -> None:
        self._what, self._log = what, log
        self._transfer: Transfer | None = None
        self._done = self._total = 0

    def __call__(self, line: str) -> None:
        if match := _PROGRESS.fullmatch(line.strip()):
            done, total = int(match[1]), int(match[2])
            if self._transfer is None or total != self._total or done < self._done:  # another file
                self._transfer, self._done, self._total = Transfer(self._what, total, self._log), 0, total
            self._transfer.heard(done - self._done)
            self._done = done


def _version(python: str) -> tuple[int, int]:
    # (0, 0) without pip, which the command itself reports better
    match = _VERSION.match(program_output(python, "-m", "pip", "--version"))
    return (int(match[1]), int(match[2])) if match else (0, 0)


# torch-2.13.0-cpu-cp311-3dd896
_FOR_PYTHON = re.compile(r"-cp\d.*")
_STEP = re.compile(r"(?:installing|getting|fetching|taking|translating|waiting|note:|warning:) ")


@contextmanager
def timed(place: Path, log: Log) -> Iterator[None]:
    """Log the duration of a download, and the last duration of the same one."""
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
    """True for lines that explain a wait, which are always shown."""
    return _STEP.match(line) is not None or isinstance(line, TransferLine)


_SECONDS = 0.5
"""Interval of progress lines."""

_SELDOM = 10.0
"""Interval in logs that are not overwritten."""


class Transfer:
    """Logs the progress of a transfer; `total` is in bytes, 0 if unknown."""

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
    """A progress line such as `torch: 6.1 of 13.2 MB, 2.1 MB/s, 4 s left`, with its parts."""

    what: str
    amount: str
    rate: str
    left: str
    """Remaining time; empty at the end and without a total."""
    ended: bool

    def __new__(cls, what: str, done: int, total: int, seconds: float) -> Self:
        rate = done / seconds if seconds > 0 else 0.0
        amount = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
        remaining = duration(max(1, round((total - done) / rate))) if total > done and rate else ""
        line = super().__new__(cls, f"{what}: {amount}, {rate / 1e6:.1f} MB/s{f', {remaining} left' * bool(remaining)}")
        line.what, line.amount, line.rate, line.left = what, amount, f"{rate / 1e6:.1f} MB/s", remaining
        line.ended = bool(total) and done >= total
        return line


def duration(seconds: int) -> str:
    """Format a duration."""
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"


class SeldomTransfers:
    """Passes lines on, but per download only the first, one in ten seconds, and the last."""

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
_GAP = 1 << 18  # bytes: closer files are read in one request
_MOST = 1 << 30  # bytes of headers; more is an error or an attack
_LINK = re.compile(rb"""<a\s[^>]*?href\s*=\s*["']([^"'>]+)["']""", re.IGNORECASE)
_AWAY = (OSError, http.client.HTTPException, ValueError)
_BROKEN = (*_AWAY, TypeError, EOFError, NotImplementedError, struct.error, zipfile.BadZipFile, zlib.error)


class WheelFile(msgspec.Struct, frozen=True):
    """A wheel on an index."""

    name: str
    url: str


def extract(wheel: WheelFile, target_of: Callable[[str], str | None], into: Path, log: Log = silent) -> None:
    """Extract files from a remote wheel; `wanted` maps a path to one below `into`, or None. Raises MissingToolError."""
    try:
        with tempfile.TemporaryFile() as file:
            start = _copy(wheel.url, f"bytes=-{_PART}", file)
            file.seek(start)
            (place,) = struct.unpack("<L", file.read().rpartition(b"PK\5\6")[2][12:16])
            if place < start:  # the central directory is longer than the tail
                _copy(wheel.url, f"bytes={place}-{start - 1}", file)
            with zipfile.ZipFile(file) as archive:
                files = [info for info in archive.infolist() if not info.is_dir()]
                picked = {info: name for info in files if (name := target_of(info.filename))}
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
    """Find a Linux wheel of a package for any Python, by default on pip's index. Raises MissingToolError."""
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


def _is_for(name: str, version: Version, platform: str) -> bool:
    try:
        _, wheel_version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    same = wheel_version == version if version.local else wheel_version.public == version.public
    return same and any(tag.platform.endswith(f"_{platform}") and "linux" in tag.platform for tag in tags)


def _copy(url: str, stretch: str, file: IO[bytes], heard: Callable[[int], None] = lambda _: None) -> int:
    # returns the start of the stretch
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
    # adjacent files together
    starts = [*sorted(info.header_offset for info in archive.infolist()), archive.start_dir]
    stretches: list[tuple[int, int]] = []
    for start in sorted(info.header_offset for info in picked):
        joined = stretches and start - stretches[-1][1] < _GAP
        stretches.append((stretches.pop()[0] if joined else start, starts[bisect.bisect_right(starts, start)]))
    return stretches
