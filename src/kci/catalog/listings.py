"""The pages from which the next edition is made, files or addresses that are asked now; the torch wheels they list.

Most have the flavour in the names of wheels, `+cu132`. PyPI has one build of a release for each system, and only its
metadata say for which CUDA; about other flavours such an index says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from kci.config.values import Backend, Version
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.files.dated_data import Dated, shipped
from kci.files.small_fetch import MAX_BYTES, fetch

_OK = 200


class Listings(Dated, frozen=True):
    """`data/indexes.toml`: where the wheels of torch are listed, and the reference's table."""

    indexes: tuple[str, ...]
    table: str


usual_listings = shipped("catalog/data/indexes.toml", Listings)
"""The data that kci ships."""


def read_listing(place: str, root: Path = Path()) -> bytes:
    """A page.

    Args:
        place: an address, or a file.
        root: what a file's name is relative to.

    Raises:
        FindingsError: it cannot be read, so that nothing is known about what it lists.
    """
    if "://" in place:
        answer = fetch(place)
        if answer.status != _OK:
            raise FindingsError(
                f"{place}: the server says {answer.status}", hint="nothing is known about what it lists"
            )
        return answer.body
    try:
        return read_bounded(root / place, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise FindingsError(f"{root / place} cannot be read: {getattr(error, 'strerror', None) or error}") from None


_WHEEL = re.compile(
    r"\btorch-(?P<release>(?P<minor>[0-9]{1,4}\.[0-9]{1,4})(?:\.[0-9]{1,4}){0,2})(?P<pre>(?:a|b|rc)[0-9]{1,4}|\.dev[0-9]{1,12})?"
    r"(?:\+(?P<flavour>[a-z0-9.]{1,30}))?-cp[0-9]{2,4}-[a-z0-9]{2,20}-(?P<platform>[a-z0-9_.]{3,80})\.whl"
)
_SYSTEMS = (
    ("linux", "x86_64", "x86_64-linux"),
    ("linux", "aarch64", "aarch64-linux"),
    ("macosx", "arm64", "aarch64-darwin"),
    ("win", "amd64", "x86_64-windows"),
    ("win", "arm64", "aarch64-windows"),
)


class Wheel(NamedTuple):
    """A kind of torch wheel: all patch releases and Pythons are one."""

    torch: Version
    """Major and minor."""
    final: bool
    """Whether it is a release, and no nightly or release candidate."""
    backend: Backend
    compute: Version | None
    """None where nothing says it: XPU wheels have no version."""
    system: str
    named: bool = True
    """Whether the name says what it is for; False for an index's own build of a release, of which the metadata may."""


RELEASES = 2
"""How many releases of torch users get."""

OwnBuild = Callable[[str, str, str], tuple[Backend, Version | None]]
"""What an index's own build of a release is for: of the index's page, the release and the system."""


def not_asked(_place: str, _release: str, _system: str) -> tuple[Backend, Version | None]:
    """Some CUDA: what is known before the metadata are read."""
    return Backend.CUDA, None


def read_indexes(places: Iterable[str | Path], root: Path = Path(), own_build: OwnBuild = not_asked) -> set[Wheel]:
    """The wheels in some listings.

    Args:
        places: addresses, or files.
        root: what names of files are relative to.
        own_build: is asked about the newest releases on Linux.

    Raises:
        FindingsError: one cannot be read, or lists no wheel of torch.
    """
    found: set[Wheel] = set()
    for place in places:
        text = unquote(read_listing(str(place), root).decode("utf-8", "replace"))
        matches = list(_WHEEL.finditer(text))
        wheels = {wheel for match in matches for wheel in _wheels(match)}
        wheels |= {
            Wheel(torch, True, *own_build(str(place), release, system), system, named=False)
            for torch, release, system in _own_builds(matches)
        }
        if not wheels:
            hint = "name the index's page for torch, such as https://download.pytorch.org/whl/cu132/torch/"
            raise FindingsError(f"{place} lists no wheel of torch that kci knows", hint=hint)
        found |= wheels
    return found


def _system(platform: str) -> str | None:
    return next((name for os, cpu, name in _SYSTEMS if os in platform and platform.endswith(cpu)), None)


def _own_builds(found: Sequence[re.Match[str]]) -> Iterator[tuple[Version, str, str]]:
    """The newest patch release of each of the newest minor versions that have a build without a flavour for Linux."""
    finals = [match for match in found if match["pre"] is None]
    offered = sorted({Version.parse(match["minor"]) for match in finals})[-RELEASES:]
    newest: dict[tuple[Version, str], Version] = {}
    for match in finals:
        system, torch = _system(match["platform"]), Version.parse(match["minor"])
        if match["flavour"] is None and torch in offered and system is not None and system.endswith("-linux"):
            release = Version.parse(match["release"])
            newest[torch, system] = max(release, newest.get((torch, system), release))
    for (torch, system), release in sorted(newest.items()):
        yield torch, release.text, system


def _wheels(found: re.Match[str]) -> Iterable[Wheel]:
    flavour, system = found["flavour"] or "", _system(found["platform"])
    if system is None:
        return
    torch, final = Version.parse(found["minor"]), found["pre"] is None
    if system.endswith("darwin") and flavour in ("", "cpu"):
        yield Wheel(torch, final, Backend.CPU, None, system)
        yield Wheel(torch, final, Backend.METAL, None, system)
    elif flavour == "cpu":
        yield Wheel(torch, final, Backend.CPU, None, system)
    elif flavour == "xpu":
        yield Wheel(torch, final, Backend.XPU, None, system)
    elif toolkit := re.fullmatch(r"cu([0-9]{1,3})([0-9])", flavour):
        yield Wheel(torch, final, Backend.CUDA, Version.parse(f"{toolkit[1]}.{toolkit[2]}"), system)
    elif toolkit := re.fullmatch(r"rocm([0-9]{1,3}\.[0-9]{1,3})(?:\.[0-9]{1,3})?", flavour):
        yield Wheel(torch, final, Backend.ROCM, Version.parse(toolkit[1]), system)
