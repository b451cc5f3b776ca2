"""Causes of errors, equal in each build, and outages; their patterns are TOML in `data/`."""

from __future__ import annotations

import hashlib
import re
from functools import cache, lru_cache
from typing import Literal

from kci.config.values import Backend, python_name
from kci.diagnostics import printable
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped

MAX_LENGTH = 1000

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A file and its line at the beginning of a word: `a/b.cu:3:7:` of gcc, `b.cu(3):` of nvcc.
_LOCATION = re.compile(r"(?<!\S)[\w./+\\-]+\.[A-Za-z]\w*(?::\d+(?::\d+)?|\(\d+(?:,\d+)?\)):?\s*")
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+)+")
# A library or namespace of a kernel: kernel, backend and source hash. A mangled name has the length
# before it.
_EXTENSION = re.compile(
    rf"\d*_[a-z][a-z0-9_]*?_(?:{'|'.join(Backend)})_[0-9a-z]{{7,40}}(?:_dirty)?(?:\.abi3\.so|\.pyd)?"
)
# An address, or a digest of a commit, wherever it stands: a word of seven letters has no digit.
_HEX = re.compile(
    r"(?<![A-Za-z0-9])(?:0x[0-9a-fA-F]+|(?=[a-f]*\d)[0-9a-f]{7,64}|(?=[A-F]*\d)[0-9A-F]{7,64})(?![A-Za-z0-9])"
)
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?:\d+(?:\.\d+)?e[+-]?\d+|0\.\d+|\d+\.\d{3,}|\d+)(?!\w|\.\d)"
    r"|\d+(?:\.\d+)?(?= ?(?:%|(?:[mnu]?s|sec|seconds|minutes|[KMGT]i?B|bytes)\b)))"
)
_ERROR_WORDS = re.compile(r"error|exception|fail|abort|undefined", re.IGNORECASE)
_LINE_LENGTH = 200
_READ, _LINES = 64 * MAX_LENGTH, 1000


class _Cause(Frozen, rename="kebab", forbid_unknown_fields=True):
    says: str
    patterns: tuple[str, ...]
    against_outages: Literal["wins", "stands", "loses"] = "stands"
    of_the_world: bool = False


class _Causes(Dated):
    of_compilers: tuple[str, ...]
    cause: tuple[_Cause, ...]


class _Class(Frozen, forbid_unknown_fields=True, rename={"kind": "class"}):
    kind: str
    patterns: tuple[str, ...]


class _Outages(Dated):
    outage: tuple[_Class, ...]


class _Volatile(Dated):
    prefixes: tuple[str, ...]
    word: tuple[_Class, ...]


_causes = shipped("watch/data/causes.toml", _Causes)
_outages = shipped("watch/data/outages.toml", _Outages)
_volatile = shipped("watch/data/volatile.toml", _Volatile)


@cache
def _any_of(*patterns: str, often: str = "") -> re.Pattern[str]:
    any_of = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(f"(?:{any_of}){often}", re.IGNORECASE)


class _Line(Frozen):
    outage: str = ""
    says: str = ""
    sure: bool = False
    """True if no outage on another line explains it."""
    of_the_world: bool = False


@lru_cache(maxsize=65536)  # a break says the same in thousands of legs
def _read(line: str) -> _Line:
    cut, causes = line[: 2 * MAX_LENGTH].strip(), _causes()
    outages = (item.kind for item in _outages().outage if _any_of(*item.patterns).search(cut))
    kind = "" if _any_of(*causes.of_compilers).search(cut) else next(outages, "")
    pairs = ((cause, pattern) for cause in causes.cause for pattern in cause.patterns)
    for cause, pattern in pairs:
        if (not kind or cause.against_outages == "wins") and (
            match := _any_of(pattern).search(cut)
        ):
            groups = {name: (text or "").strip() for name, text in match.groupdict().items()}
            says = cause.says.format_map(groups).strip(": ")
            return _Line("", says, cause.against_outages != "loses", cause.of_the_world)
    return _Line(outage=kind)


def _lines(text: str) -> list[str]:
    prefix = _any_of(*_volatile().prefixes, often="+")
    lines = [line.rstrip() for line in _ANSI.sub("", text[:_READ]).splitlines() if line.strip()][
        :_LINES
    ]
    return [line[match.end() :] if (match := prefix.match(line)) else line for line in lines]


def outage_class(error: str) -> str:
    """The class of the outage (a machine, a network or a service failed) that an error reports;
    empty for an error of the kernel or its toolchain.
    """
    lines = [_read(line) for line in _lines(error)]
    kinds = [line.outage for line in lines if line.outage]
    if any(line.sure for line in lines):
        return ""
    # Mostly another line says why something was not fetched.
    return next((kind for kind in kinds if kind != "index"), "".join(kinds[:1]))


def is_external(error: str) -> bool:
    """True if a skipped leg counts as failed: no machine can get what it lacks, such as a removed
    wheel.
    """
    return any(line.of_the_world for line in map(_read, _lines(error))) and not outage_class(error)


def _main_line(lines: list[str]) -> int:
    pairs = [(_read(line), line) for line in lines]
    ranks = [
        0 if item.sure else 1 if item.says else 2 if _ERROR_WORDS.search(line) else 3
        for item, line in pairs
    ]
    return ranks.index(min(ranks)) if ranks else 0


def error_line(text: str) -> str:
    """The most specific line of an error, printable, at most `MAX_LENGTH` characters."""
    lines = _lines(text)
    return printable(lines[_main_line(lines)].strip()[:MAX_LENGTH], "?") if lines else ""


def excerpt(text: str) -> str:
    """The lines around `error_line`; empty where there is only one."""
    lines = _lines(text)
    telling = _main_line(lines)
    shown = [
        printable(line, " ")[:_LINE_LENGTH] for line in lines[max(0, telling - 2) : telling + 8]
    ]
    return "\n".join(shown) if len(shown) > 1 else ""


@lru_cache(maxsize=65536)
def cause_of(error: str, kernel: str, variant: str) -> str:
    """The error line without kernel, variant, places, hashes and lone numbers, so that it is equal
    in each build.
    """
    line = error_line(error)
    text = _read(line).says or _LOCATION.sub("", line)
    text = _EXTENSION.sub("<extension>", text)
    text = _PATH.sub(lambda match: "/" + re.split(r"[/\\]", match[0])[-1], text)
    for word in _volatile().word:
        text = _any_of(*word.patterns).sub(word.kind, text)
    for name, stand_in in (
        (variant, "<variant>"),
        (kernel, "<kernel>"),
        (python_name(kernel), "<kernel>"),
    ):
        if name:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", stand_in, text)
    text = _NUMBER.sub("#", _HEX.sub("#", text))
    return " ".join(text.split())[:MAX_LENGTH] or "an error without a text"


def cause_id(cause: str) -> str:
    """The first 12 hexadecimal digits of a cause's sha256, which an issue names."""
    return hashlib.sha256(cause.encode()).hexdigest()[:12]
