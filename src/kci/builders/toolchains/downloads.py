"""Packages by uv, from where pip's settings say, and files out of wheels by HTTP ranges."""

from __future__ import annotations

import base64
import bisect
import configparser
import http.client
import os
import re
import shutil
import struct
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from html import unescape
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from kci.builders.process.run import Log, ProgramResult, own_program, run_in_group, shell_line
from kci.builders.toolchains.data import toolchains
from kci.errors import MissingToolError
from kci.utils.atomic import full_disk_hint, full_disk_program_hint
from kci.utils.cache import CACHE_VARIABLE, default_cache, make_once
from kci.utils.frozen import Frozen


class FetchedTool(Frozen):
    """A part of a toolchain, on this machine or downloaded to the cache."""

    @property
    def place(self) -> Path | None:
        """Path in the cache; None if the machine has it."""
        return None

    @property
    def complete(self) -> bool:
        return not self.place or self.place.is_dir()

    @property
    def by_kci(self) -> str:
        """Description of kci's own steps, for a dry run; empty if `setup` lists all."""
        return ""

    def setup(self, _python: Path, _target: Path | None, /) -> list[list[str]]:
        """Commands that install it with a Python's pip, to a target."""
        return []

    def fetch(self, python: Path, place: Path, log: Log, /) -> None:
        """Download it to `place`. Raises MissingToolError."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Environment variables that compilers need with it."""
        return {}

    def planned(self, python: Path) -> list[str]:
        """The shell lines of `ensure`."""
        if self.complete:
            return []
        return [
            *map(shell_line, self.setup(python, self.place)),
            *([f"# kci {self.by_kci}"] if self.by_kci else []),
        ]

    def ensure(self, python: Path, log: Log) -> None:
        """Download it once, also with concurrent processes. Raises MissingToolError."""
        if self.place:
            make_once(
                self.place, lambda: self.complete, lambda place: self.fetch(python, place, log), log
            )


def library_folder(title: str, root: Path, library: str, *patterns: str) -> Path:
    """The first folder below `root` with a library. Raises MissingToolError."""
    for folder in (folder for pattern in patterns for folder in sorted(root.glob(pattern))):
        if (folder / library).exists():
            return folder
    raise MissingToolError(
        f"{library} is missing from the {title} at {root}", "install its development packages"
    )


def ensure_all(tools: Sequence[FetchedTool], python: Path, log: Log) -> None:
    """Download what is missing, side by side. Raises MissingToolError."""
    missing = [tool for tool in tools if not tool.complete]
    with ThreadPoolExecutor(max(1, len(missing))) as pool:
        # a copy of the context has the scope that stops programs
        made = [pool.submit(copy_context().run, tool.ensure, python, log) for tool in missing]
        for future in made:
            future.result()


_OFF = ("", "0", "false", "no", "off")


def pip_settings() -> dict[str, str]:
    """Read the settings that uv has too from pip's configuration files and `PIP_*` variables."""
    home, only = Path(os.path.expanduser("~")), os.environ.get("PIP_CONFIG_FILE", "")  # noqa: PTH111  - no home is fine
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    places = [*(Path(place, "pip") for place in shared.split(":")), Path("/etc"), home / ".pip"]
    places += [Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "pip"), Path(sys.prefix)]
    parser = configparser.RawConfigParser()
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        # as for pip, the null device stands for no file at all
        parser.read(
            [] if only == os.devnull else [*(place / "pip.conf" for place in places), only],
            encoding="utf-8",
        )
    found: dict[str, str] = {}
    for section in ("global", "install"):
        found |= dict(parser[section]) if parser.has_section(section) else {}
    found |= {
        name[4:].lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }
    if found.get("no-index", "").lower() in _OFF:
        found.pop("no-index", None)
    return {name: found[name] for name in sorted(toolchains().pip) if found.get(name)}


def _uv_environment() -> dict[str, str]:
    # uv's own variables come first; its files are not read, for a kernel may have one
    settings = {
        toolchains().pip[name]: " ".join(value.split()) for name, value in pip_settings().items()
    }
    if links := settings.get("UV_FIND_LINKS"):
        settings["UV_FIND_LINKS"] = links.replace(" ", ",")
    settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip: all indexes count alike
    settings["UV_CACHE_DIR"] = str(default_cache() / "uv")
    return {**settings, **os.environ, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}


def uv(*arguments: str) -> list[str]:
    """A command of uv. Raises MissingToolError without it."""
    own = own_program("uv")
    if not own:
        raise MissingToolError(
            "uv is not installed, and kci makes Python environments with it", "pip install uv"
        )
    return [own, *arguments]


def pip_install(python: Path) -> list[str]:
    """Start of a command that installs: wheels only, because setup scripts must not run."""
    none = ["--no-index"] if "no-index" in pip_settings() else []
    return uv("pip", "install", "--python", str(python), "--only-binary", ":all:", *none)


def run_uv(command: Sequence[str], log: Log) -> ProgramResult:
    """Run a command of uv with pip's settings; its `Downloading` lines go to `log`."""

    def downloads(line: str) -> None:
        if line.lstrip().startswith("Downloading "):
            log(line.strip())

    return run_in_group(command, downloads, env=_uv_environment())


OTHER_INDEX = (
    "check the network, or name an index or a folder of wheels with PIP_INDEX_URL or PIP_FIND_LINKS"
)


_PROBE_SECONDS = 5


def _fault(url: str) -> Exception | None:
    # asked briefly: a client would retry for minutes
    try:
        with _opened(url.rstrip("/") + "/", _PROBE_SECONDS, method="HEAD"):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 405 else error  # the server only rejects HEAD
    except (OSError, http.client.HTTPException, ValueError) as error:
        return error


def _opened(url: str, seconds: int, **about: Any) -> Any:
    # a login in an address is for its host alone, not for another one that it leads to
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), **about)  # noqa: S310  - https or the user's own
    if parts.username is not None:
        login = ":".join(unquote(part or "") for part in (parts.username, parts.password))
        request.add_unredirected_header(
            "Authorization", f"Basic {base64.b64encode(login.encode()).decode()}"
        )
    return urllib.request.urlopen(request, timeout=seconds)  # noqa: S310


def is_reachable(url: str) -> bool:
    """True if a package index answers; False if pip is told to use none."""
    return "no-index" not in pip_settings() and _fault(url) is None


def pip_index() -> str:
    """The index of pip, by its variables and configuration files."""
    return pip_settings().get("index-url", "https://pypi.org/simple")


def install(command: Sequence[str], package: str, log: Log, into: Path) -> None:
    """Run a command of uv.

    Raises MissingToolError if it fails; `package` and `into` are for the message.
    """
    done = run_uv(command, log)
    if done.code != 0:
        hint, away = full_disk_program_hint(done.output, into, CACHE_VARIABLE), ""
        if hint:
            away = "the disk is full"
        elif "no-index" in pip_settings():
            away = "PIP_NO_INDEX is set, so no index is asked"
        elif pip_index().startswith("http") and (fault := _fault(pip_index())):
            reason = str(fault).removeprefix("<urlopen error ").removesuffix(">")[:200]
            away = f"the package index {pip_index()} cannot be reached: {reason}"
        none = (
            "check that this Python has wheels for it" if "No solution found" in done.output else ""
        )
        hint = hint or (OTHER_INDEX if away else none)
        why = f": {away}" if away else ""
        raise MissingToolError(
            f"cannot install {package}{why}\n{shell_line(command)}\n{done.tail()}", hint
        )


_STEP = re.compile(
    r"(?:installing|getting|fetching|taking|translating|waiting|Downloading|note:|warning:) "
)


def explains_wait(line: str) -> bool:
    """True for lines that explain a wait, which are always shown."""
    return _STEP.match(line) is not None


def duration(seconds: int) -> str:
    """Format a duration."""
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"


_RANGE_SECONDS = 60
_PART = 1 << 16
_GAP = 1 << 18  # bytes: closer files are read in one request
_MOST = 1 << 30  # bytes of headers; more is an error or an attack
_LINK = re.compile(rb"""<a\s[^>]*?href\s*=\s*["']([^"'>]+)["']""", re.IGNORECASE)
_AWAY = (OSError, http.client.HTTPException, ValueError)
_BROKEN = (
    *_AWAY,
    TypeError,
    EOFError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class WheelFile(Frozen):
    """A wheel on an index."""

    name: str
    url: str


def extract(wheel: WheelFile, target_of: Callable[[str], str | None], into: Path) -> None:
    """Extract files from a remote wheel to below `into`; None leaves a file out.

    Raises MissingToolError.
    """
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
                for start, end in _stretches(archive, picked):
                    _copy(wheel.url, f"bytes={start}-{end - 1}", file)
                for info, name in picked.items():
                    info.filename = name
                    archive.extract(info, into)
    except _BROKEN as error:
        full = full_disk_hint(error, CACHE_VARIABLE) if isinstance(error, OSError) else ""
        hint = full or "check the network, and that it serves byte ranges"
        raise MissingToolError(f"cannot take files out of {wheel.name}: {error}", hint) from error


def find_wheel(package: str, version: str, platform: str, index: str | None = None) -> WheelFile:
    """Find a Linux wheel of a package for any Python, by default on pip's index.

    Raises MissingToolError.
    """
    page, wheels = _wheels(package, index or pip_index())
    wanted = Version(version)
    for name, link, found, tags in wheels:
        same = found == wanted if wanted.local else found.public == wanted.public
        if same and any(
            tag.platform.endswith(f"_{platform}") and "linux" in tag.platform for tag in tags
        ):
            return WheelFile(name, urldefrag(urljoin(page, link))[0])
    raise MissingToolError(
        f"{page} has no wheel of {package} {version} for Linux on {platform}", "name a mirror"
    )


def _wheels(package: str, index: str) -> tuple[str, list[tuple[str, str, Version, frozenset[Tag]]]]:
    page = f"{index.rstrip('/')}/{canonicalize_name(package)}/"
    try:
        with _opened(page, _RANGE_SECONDS) as answer:
            links = sorted(unescape(link.decode()) for link in _LINK.findall(answer.read()))
    except _AWAY as error:
        raise MissingToolError(
            f"the index {page} does not answer: {error}", "check the network"
        ) from error
    wheels = []
    for link in links:
        name = unquote(urlsplit(link).path.rpartition("/")[2])
        with suppress(InvalidWheelFilename):
            _, version, _, tags = parse_wheel_filename(name)
            wheels.append((name, link, version, tags))
    return page, wheels


def _copy(url: str, stretch: str, file: IO[bytes]) -> int:
    # returns the start of the stretch
    with _opened(url, _RANGE_SECONDS, headers={"Range": stretch}) as answer:
        if answer.status != 206:
            raise OSError(f"{url} cannot be read in parts")
        start, _, size = map(int, re.findall(r"\d+", answer.headers["Content-Range"]))
        file.truncate(size)
        file.seek(start)
        shutil.copyfileobj(answer, file)
        return start


def _stretches(
    archive: zipfile.ZipFile, picked: Iterable[zipfile.ZipInfo]
) -> list[tuple[int, int]]:
    # adjacent files together
    starts = [*sorted(info.header_offset for info in archive.infolist()), archive.start_dir]
    stretches: list[tuple[int, int]] = []
    for start in sorted(info.header_offset for info in picked):
        joined = stretches and start - stretches[-1][1] < _GAP
        stretches.append(
            (stretches.pop()[0] if joined else start, starts[bisect.bisect_right(starts, start)])
        )
    return stretches
