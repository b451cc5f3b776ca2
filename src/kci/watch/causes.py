"""What an error is about, whatever kernel, machine, file and line it came up in; and whether it is an outage.

What errors look like is data: `data/causes.toml` has what names a cause, `data/outages.toml` what says that a machine,
a network or a service failed, `data/volatile.toml` what is otherwise each night. A cause is a text that is the same in
every build: symbols stay as the linker has them, because a name that depends on the machine that reads it would be
another one tomorrow. `demangle_cause` is for people.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from functools import cache, lru_cache
from typing import Literal

import msgspec

from kci.config.values import Backend, python_name
from kci.diagnostics import printable
from kci.utils.shipped import Dated, shipped

MAX_LENGTH = 1000
"""Of an error, more says nothing more about its cause."""

# The color of a terminal.
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A file and its line at the beginning of a word: `a/b.cu:3:7:` of gcc, `b.cu(3):` of nvcc.
_LOCATION = re.compile(r"(?<!\S)[\w./+\\-]+\.[A-Za-z]\w*(?::\d+(?::\d+)?|\(\d+(?:,\d+)?\)):?\s*")
# An absolute path, of Windows too.
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+)+")
# What kci calls a kernel's library and namespace: the kernel, the backend and the sources' hash. In a mangled name the
# length stands before it.
_EXTENSION = re.compile(
    rf"\d*_[a-z][a-z0-9_]*?_(?:{'|'.join(Backend)})_[0-9a-z]{{7,40}}(?:_dirty)?(?:\.abi3\.so|\.pyd)?"
)
# An address, or a digest of a commit, wherever it stands: a word of seven letters has no digit.
_HEX = re.compile(
    r"(?<![A-Za-z0-9])(?:0x[0-9a-fA-F]+|(?=[a-f]*\d)[0-9a-f]{7,64}|(?=[A-F]*\d)[0-9A-F]{7,64})(?![A-Za-z0-9])"
)
# Whole numbers, those with a fraction that cannot be a version, and those that count a unit.
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?:\d+(?:\.\d+)?e[+-]?\d+|0\.\d+|\d+\.\d{3,}|\d+)(?!\w|\.\d)"
    r"|\d+(?:\.\d+)?(?= ?(?:%|(?:[mnu]?s|sec|seconds|minutes|[KMGT]i?B|bytes)\b)))"
)
_SPACE = re.compile(r"\s+")
_TELLING = re.compile(r"error|exception|fail|abort|undefined", re.IGNORECASE)
_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_$.]{2,900}")
_LINE_LENGTH = 200
_READ, _LINES = 64 * MAX_LENGTH, 1000


class _Cause(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    says: str
    patterns: tuple[str, ...]
    against_outages: Literal["wins", "stands", "loses"] = "stands"
    of_the_world: bool = False

    def found(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.IGNORECASE) for pattern in self.patterns)


class _Causes(Dated, frozen=True):
    of_compilers: tuple[str, ...]
    cause: tuple[_Cause, ...]


class _Outage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    kind: str
    patterns: tuple[str, ...]


class _Outages(Dated, frozen=True):
    outage: tuple[_Outage, ...]


class _Volatile(Dated, frozen=True):
    prefixes: tuple[str, ...]
    word: tuple[_Outage, ...]


def _any_of(patterns: tuple[str, ...]) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


_cause_table = shipped("watch/data/causes.toml", _Causes)
_volatile = shipped("watch/data/volatile.toml", _Volatile)


@cache
def _prefix() -> re.Pattern[str]:
    return re.compile(rf"(?:{_any_of(_volatile().prefixes)})+", re.IGNORECASE)


@cache
def _words() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return _compiled(_volatile().word)


def _compiled(table: tuple[_Outage, ...]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((item.kind, re.compile(_any_of(item.patterns), re.IGNORECASE)) for item in table)


@cache
def _causes() -> tuple[tuple[_Cause, tuple[re.Pattern[str], ...]], ...]:
    return tuple((item, item.found()) for item in _cause_table().cause)


@cache
def _of_compilers() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in _cause_table().of_compilers)


@cache
def _outages() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return _compiled(shipped("watch/data/outages.toml", _Outages)().outage)


# --- lines ------------------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, frozen=True):
    """What one line says."""

    outage: str = ""
    says: str = ""
    sure: bool = False
    """True if no outage elsewhere explains it."""
    of_the_world: bool = False


@lru_cache(maxsize=65536)  # a break says the same in thousands of legs
def _read(line: str) -> _Line:
    cut = line[: 2 * MAX_LENGTH].strip()
    compiler = any(pattern.search(cut) for pattern in _of_compilers())
    kind = "" if compiler else next((kind for kind, pattern in _outages() if pattern.search(cut)), "")
    for cause, patterns in _causes():
        if kind and cause.against_outages != "wins":
            continue
        for pattern in patterns:
            if found := pattern.search(cut):
                told = {name: (text or "").strip() for name, text in found.groupdict().items()}
                says = cause.says.format_map(told).strip(": ")
                return _Line("", says, cause.against_outages != "loses", cause.of_the_world)
    return _Line(outage=kind)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in _ANSI.sub("", text[:_READ]).splitlines() if line.strip()][:_LINES]
    return [line[found.end() :] if (found := _prefix().match(line)) else line for line in lines]


def outage_of(error: str) -> str:
    """The class of the outage that an error is about; empty if it is about the kernel or its toolchain."""
    kinds = []
    for line in map(_read, _lines(error)):
        if line.sure:
            return ""
        if line.outage:
            kinds.append(line.outage)
    # That something was not fetched is the least that can be said: mostly another line says why.
    return next((kind for kind in kinds if kind != "index"), kinds[0] if kinds else "")


def is_outage(error: str) -> bool:
    """True if an error is about a machine, a network or a service, and not about the kernel."""
    return bool(outage_of(error))


def is_external(error: str) -> bool:
    """True if a leg that a machine had to skip has failed all the same: a wheel is missing for every machine."""
    return any(line.of_the_world for line in map(_read, _lines(error))) and not is_outage(error)


def _telling(lines: list[str]) -> int:
    """Which line says most: one that surely names a cause, else one that may, else one that speaks of an error."""
    pairs = [(_read(line), line) for line in lines]
    ranks = [0 if item.sure else 1 if item.says else 2 if _TELLING.search(line) else 3 for item, line in pairs]
    return ranks.index(min(ranks)) if ranks else 0


def error_line(text: str) -> str:
    """The line of an error that says most, printable and of a bounded length."""
    lines = _lines(text)
    return printable(lines[_telling(lines)].strip()[:MAX_LENGTH], "?") if lines else ""


def excerpt(text: str) -> str:
    """The lines of an error around the one that says most; empty where it is the only one."""
    lines = _lines(text)
    telling = _telling(lines)
    shown = [printable(line, " ")[:_LINE_LENGTH] for line in lines[max(0, telling - 2) : telling + 8]]
    return "\n".join(shown) if len(shown) > 1 else ""


# --- causes -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def cause_of(error: str, kernel: str, variant: str) -> str:
    """What is the same about an error in every kernel, backend and build: no names, places, hashes, lone numbers."""
    line = error_line(error)
    text = _read(line).says or _LOCATION.sub("", line)
    text = _EXTENSION.sub("<extension>", text)
    text = _PATH.sub(lambda found: "/" + re.split(r"[/\\]", found[0])[-1], text)
    for says, pattern in _words():
        text = pattern.sub(says, text)
    for name, stand_in in ((variant, "<variant>"), (kernel, "<kernel>"), (python_name(kernel), "<kernel>")):
        if name:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", stand_in, text)
    text = _NUMBER.sub("#", _HEX.sub("#", text))
    return _SPACE.sub(" ", text).strip()[:MAX_LENGTH] or "an error without a text"


def cause_id(cause: str) -> str:
    """A short name of a cause, by which the issue that is about it is found again."""
    return hashlib.sha256(cause.encode()).hexdigest()[:12]


def demangle_cause(cause: str) -> str:
    """A cause for people: names of C++ as they are written there, where this machine can tell."""
    return _MANGLED.sub(lambda found: _demangled(found[0]), cause)


@lru_cache(maxsize=1024)
def _demangled(symbol: str) -> str:
    # In a separate process: what a log says is hostile, and demanglers have crashed on less.
    try:
        done = subprocess.run(["c++filt", symbol], capture_output=True, check=False, timeout=5, text=True)
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return symbol
    told = done.stdout.strip()
    return told if done.returncode == 0 and told and len(told.splitlines()) == 1 else symbol
