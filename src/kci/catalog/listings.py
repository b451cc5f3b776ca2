"""The pages from which the next edition is made, files or addresses that are asked now; the torch wheels they list."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    r"\btorch-(?P<minor>[0-9]{1,4}\.[0-9]{1,4})(?:\.[0-9]{1,4}){0,2}(?P<pre>(?:a|b|rc)[0-9]{1,4}|\.dev[0-9]{1,12})?"
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
    """None where the name does not say it: XPU wheels have no version."""
    system: str


def read_indexes(places: Iterable[str | Path], root: Path = Path()) -> set[Wheel]:
    """The wheels in some listings.

    Args:
        places: addresses, or files.
        root: what names of files are relative to.

    Raises:
        FindingsError: one cannot be read, or lists no wheel of torch.
    """
    found: set[Wheel] = set()
    for place in places:
        text = unquote(read_listing(str(place), root).decode("utf-8", "replace"))
        wheels = {wheel for match in _WHEEL.finditer(text) for wheel in _wheels(match)}
        if not wheels:
            hint = "name the index's page for torch, such as https://download.pytorch.org/whl/cu132/torch/"
            raise FindingsError(f"{place} lists no wheel of torch that kci knows", hint=hint)
        found |= wheels
    return found


def _wheels(found: re.Match[str]) -> Iterable[Wheel]:
    platform, flavour = found["platform"], found["flavour"] or ""
    system = next((name for os, cpu, name in _SYSTEMS if os in platform and platform.endswith(cpu)), None)
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
