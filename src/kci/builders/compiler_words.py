"""What compilers said of a build that failed: the first error, and where in the kernel it is."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kci.builders.commands import KERNEL
from kci.builders.hipify import FOLDER
from kci.processes.job_budget import read_progress

_FAILED = re.compile(r"FAILED: (?:\[code=-?\d+\] )?(?P<made>.+?) *")
_PLACED = (
    # g++, clang++ and what stands on clang
    re.compile(r"(?P<path>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.+)"),
    # nvcc's front end
    re.compile(r"(?P<path>\S.*?)\((?P<line>\d+)\): (?:catastrophic |fatal )?error(?: #[\w-]+)?: (?P<text>.+)"),
)
_UNPLACED = re.compile(
    r"(?:.*: )?(?P<linker>(?:undefined reference to|multiple definition of) .+)|(?P<other>.*\b(?:error|fatal) *: .+)"
)
_THROUGH = (
    re.compile(r"(?P<path>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): +required (?:from|by).*"),
    re.compile(r".* at line (?P<line>\d+) of (?P<path>\S+)"),
    re.compile(r"(?:In file included from| +from) (?P<path>[^:]+):(?P<line>\d+)(?::(?P<column>\d+))?[:,]"),
)
"""How compilers name what led to an error: an instantiation says more than an include."""
_OWN = rf"(?:{KERNEL}|{FOLDER})/"
_WRITTEN = re.compile(rf'(?P<before>^|\bfrom |\bof |")(?:{KERNEL})/')
_BEFORE, _BEHIND, _SHOWN = 12, 20, 30


class FailedCommand(msgspec.Struct, frozen=True):
    """The first command of a build that failed."""

    made: str
    """What it was to make, relative to the work directory."""
    command: str
    said: tuple[str, ...]
    others: int
    """How many more failed."""


class ErrorSpot(msgspec.Struct, frozen=True):
    """An error, and where it is."""

    text: str
    path: str = ""
    """Relative to the kernel's directory; empty if it is in no file of the kernel."""
    line: int = 0
    column: int = 0
    at: int = 0
    """The number of its line in what the compiler said."""


def first_failed(output: str) -> FailedCommand | None:
    """The first failed command in what ninja said, with that command's own output.

    Args:
        output: of ninja; what other commands say while it waits for their end stands in between.
    """
    lines = output.splitlines()
    starts = [number for number, line in enumerate(lines) if _FAILED.fullmatch(line)]
    if not starts:
        return None
    found = _FAILED.fullmatch(lines[starts[0]])
    assert found is not None  # noqa: S101  - it is how the start was found
    said = []
    for line in lines[starts[0] + 2 :]:
        if read_progress(line) or line.startswith("ninja: ") or _FAILED.fullmatch(line):
            break
        said.append(line)
    command = lines[starts[0] + 1] if starts[0] + 1 < len(lines) else ""
    return FailedCommand(found["made"], command, tuple(said), len(starts) - 1)


def named_error(said: Sequence[str], renamed: Mapping[str, str] | None = None) -> ErrorSpot | None:
    """The first error in what a compiler said; None if it named none.

    An error in a header of torch or CUTLASS is one of the kernel's line that includes or instantiates it, where the
    compiler names that.

    Args:
        said: lines.
        renamed: each translated source with the name that it has in the kernel, both without the folder.
    """
    names = renamed or {}
    for number, line in enumerate(said):
        for pattern in _PLACED:
            if found := pattern.fullmatch(line):
                if place := _own(found["path"], names):
                    return ErrorSpot(found["text"], place, int(found["line"]), _column(found), number)
                text = f"{found['text']} ({found['path']}:{found['line']})"
                through = _through(said[max(0, number - _BEFORE) : number + _BEHIND], names)
                return ErrorSpot(text, *through, at=number)
    for number, line in enumerate(said):
        if found := _UNPLACED.fullmatch(line):
            return ErrorSpot(found["linker"] or found["other"], at=number)
    return None


def excerpt(said: Sequence[str], at: int) -> list[str]:
    """The lines around the first error, as many as a person reads; what was left out is counted."""
    start = max(0, at - _BEFORE)
    shown = list(said[start : start + _SHOWN])
    left = len(said) - start - len(shown)
    before = [f"... ({start} lines before it)"] if start else []
    return [*before, *shown, *([f"... ({left} lines behind it)"] if left else [])]


def as_written(line: str, kernel_dir: Path) -> str:
    """A compiler's line with the kernel's files named as the user names them, so that a click opens them."""
    folder = kernel_dir.as_posix()
    prefix = "" if folder == "." else f"{folder.rstrip('/')}/"
    return _WRITTEN.sub(lambda found: f"{found['before']}{prefix}", line)


def _through(said: Sequence[str], names: Mapping[str, str]) -> tuple[str, int, int]:
    """The kernel's own line that led to an error elsewhere."""
    for pattern in _THROUGH:
        for line in said:
            found = pattern.fullmatch(line)
            if found and (place := _own(found["path"], names)):
                return place, int(found["line"]), _column(found)
    return "", 0, 0


def _own(path: str, names: Mapping[str, str]) -> str:
    """A path of the work directory relative to the kernel's directory; empty for a file that is not the kernel's."""
    if not re.match(_OWN, path):
        return ""
    inside = posixpath.normpath(path.partition("/")[2])
    return names.get(inside, inside)


def _column(found: re.Match[str]) -> int:
    return int(found.groupdict().get("column") or 0)
