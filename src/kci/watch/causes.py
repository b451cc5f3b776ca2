"""What an error is about, whatever kernel, machine, file and line it came up in; and whether it is an outage."""

from __future__ import annotations

import hashlib
import re
from functools import cache, lru_cache

from kci.config.values import python_name
from kci.diagnostics import printable
from kci.files.dated_data import Dated, shipped

MAX_LENGTH = 1000
"""Of an error, more says nothing more about its cause."""

# The color of a terminal.
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A file and its line at the beginning of a word: `a/b.cu:3:7:` of gcc, `b.cu(3):` of nvcc.
_LOCATION = re.compile(r"(?<!\S)[\w./+\\-]+\.\w+(?::\d+(?::\d+)?|\(\d+(?:,\d+)?\)):?\s*")
# An absolute path, of Windows too.
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+)+")
# An address, or a digest of a commit.
_HEX = re.compile(r"\b(?:0x[0-9a-fA-F]+|[0-9a-f]{7,64})\b")
# Whole numbers, and those with a fraction that cannot be a version.
_NUMBER = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?e[+-]?\d+|0\.\d+|\d+\.\d{3,}|\d+)(?![\w.]|\.\d)")
_SPACE = re.compile(r"\s+")
_TELLING = re.compile(r"error|exception|fail|abort|undefined", re.IGNORECASE)
_LINE_LENGTH = 200


def _lines(text: str) -> tuple[list[str], int]:
    """The lines of an error, and which of them says something."""
    lines = [line.rstrip() for line in _ANSI.sub("", text[: 64 * MAX_LENGTH]).splitlines() if line.strip()]
    return lines, next((number for number, line in enumerate(lines) if _TELLING.search(line)), 0)


def error_line(text: str) -> str:
    """The first line of an error that says something, printable and of a bounded length."""
    lines, telling = _lines(text)
    return printable(lines[telling].strip()[:MAX_LENGTH], "?") if lines else ""


def excerpt(text: str) -> str:
    """The lines of an error around the one that says something; empty where it is the only one."""
    lines, telling = _lines(text)
    shown = [printable(line, " ")[:_LINE_LENGTH] for line in lines[max(0, telling - 2) : telling + 8]]
    return "\n".join(shown) if len(shown) > 1 else ""


@lru_cache(maxsize=65536)  # a break says the same in thousands of legs
def cause_of(error: str, kernel: str, variant: str) -> str:
    """The error without what differs between legs: names, places, addresses, lone numbers."""
    text = _LOCATION.sub("", error_line(error))
    text = _PATH.sub(lambda found: "/" + re.split(r"[/\\]", found[0])[-1], text)
    for name, stand_in in ((variant, "<variant>"), (kernel, "<kernel>"), (python_name(kernel), "<kernel>")):
        if name:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", stand_in, text)
    text = _NUMBER.sub("#", _HEX.sub("#", text))
    return _SPACE.sub(" ", text).strip() or "an error without a text"


def cause_id(cause: str) -> str:
    """A short name of a cause, by which the issue that is about it is found again."""
    return hashlib.sha256(cause.encode()).hexdigest()[:12]


class _Outages(Dated, frozen=True):
    patterns: tuple[str, ...]


@cache
def _outages() -> re.Pattern[str]:
    table = shipped("watch/data/outages.toml", _Outages)()
    return re.compile("|".join(f"(?:{pattern})" for pattern in table.patterns), re.IGNORECASE)


def is_outage(error: str) -> bool:
    """Whether an error is about a machine, a network or a service, and not about the kernel."""
    return _outages().search(error[: 64 * MAX_LENGTH]) is not None
