"""A build's receipt: the state of everything that decided about it and of what it made, to see that nothing changed.

`kci build` asks for it before it imports anything else, so this module imports next to nothing. A receipt is only
believed as a whole: the same words in the same directory and environment, and every path in the same state. The state
is what the file system says of a file or directory (size, times, inode: the way of git's index), and of what had been
changed shortly before the content as well, because it could be written again within the same tick of the clock.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from kci.files.cache_place import cache_place

FOLDER = "receipts"
SCHEMA = "kci receipt 1"
TICK_NS = 3_000_000_000
"""FAT counts in steps of two seconds; the clocks of a file server and of this machine may differ by a little."""
KEPT = 200
"""Receipts in the cache; the oldest go."""

_PASSING = ("_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL")
"""Variables that differ from one command to the next and say nothing to a compiler."""
_GONE = "none"


class ChangedMeanwhileError(Exception):
    """Something was changed while the build ran, so no receipt can say what it was made from."""


def recall(arguments: Sequence[str]) -> bool:
    """Answer a `kci build` whose receipt still holds.

    Args:
        arguments: the words after `kci`.

    Returns:
        whether it was answered; if not, everything is to be done as if there were no receipts.
    """
    try:
        path = _place(arguments)
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        settled = _settled(text, arguments)
        if settled is None:
            return False
        told = [line.partition(" ")[2] for line in text.split("\n") if line.startswith("made ")]
        if not {"-q", "--quiet"} & set(arguments):
            sys.stderr.write("nothing has changed since it was built\n")
        sys.stdout.write("".join(f"{line}\n" for line in told))
        sys.stdout.flush()
        if settled != text:
            _write(path, settled)
    except (OSError, ValueError):
        return False
    return True


def keep(
    arguments: Sequence[str],
    decided: Iterable[str],
    made: Sequence[str],
    began_ns: int,
    listed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Write the receipt of a build that has just ended.

    Args:
        arguments: the words after `kci`.
        decided: the absolute path of every file and directory that decided about it; of those that were looked for and
            are not there as well.
        made: the directories that it made.
        began_ns: the time before it read the first of them.
        listed: directories of which only the names decide, each with names that do not.

    Raises:
        ChangedMeanwhileError: one of them was changed since then.
        OSError: it cannot be written.
        ValueError: a path has a line break.
    """
    lines = [SCHEMA, _surroundings(arguments), *(f"made {directory}" for directory in made)]
    lines += [f"n {'/'.join(others) or '/'} {_names(path, others)} {path}" for path, others in sorted(listed.items())]
    for path in sorted(set(decided)):
        lines += _lines(path, began_ns)
    for directory in made:
        for folder, _, names in os.walk(directory):
            for path in (folder, *(f"{folder}/{name}" for name in names)):
                lines += _lines(path, None)
    if any("\n" in line for line in lines):
        raise ValueError("a path with a line break")
    path = _place(arguments)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _write(path, "\n".join([*lines, ""]))
    _forget_old(os.path.dirname(path))


def _place(arguments: Sequence[str]) -> str:
    """The receipt's file: in the cache that the words name, after the words and the directory they were said in."""
    cache = cache_place()
    for number, word in enumerate(arguments):
        if word == "--cache" and number + 1 < len(arguments):
            cache = arguments[number + 1]
        elif word.startswith("--cache="):
            cache = word.partition("=")[2]
    said = "\0".join([os.getcwd(), *arguments])
    name = hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:32]
    return os.path.join(os.path.abspath(cache), FOLDER, name)


def _surroundings(arguments: Sequence[str]) -> str:
    """One line for what is no file: the words, the directory, the environment and the interpreter."""
    environment = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name not in _PASSING]
    said = [sys.executable, sys.version, *sys.path, os.getcwd(), *arguments, "", *environment]
    return hashlib.sha256("\0".join(said).encode(errors="surrogateescape")).hexdigest()


def _settled(text: str, arguments: Sequence[str]) -> str | None:
    """The receipt as it is to be kept, if everything in it still holds; None if not."""
    lines = text.split("\n")
    if lines[0] != SCHEMA or lines[-1] or lines[1] != _surroundings(arguments):
        return None
    at_rest = time.time_ns() - TICK_NS
    for number, line in enumerate(lines[2:-1], 2):
        kind, state, digest, path = line.split(" ", 3) if not line.startswith("made ") else ("made", "", "", "")
        if kind == "made":
            continue
        if kind == "n":
            if _names(path, state.split("/")) != digest:
                return None
            continue
        if _state(path, follow=kind == "f") != state:
            return None
        if digest != "-":
            if _content(path, follow=kind == "f") != digest or _state(path, follow=kind == "f") != state:
                return None
            if _changed_ns(state) < at_rest:
                lines[number] = f"{kind} {state} - {path}"
    return "\n".join(lines)


def _lines(path: str, began_ns: int | None) -> list[str]:
    """The state of a path and, for a link, of the link itself."""
    found = []
    for kind in "fl" if os.path.islink(path) else "f":
        state = _state(path, follow=kind == "f")
        changed = _changed_ns(state)
        if began_ns is not None and changed >= began_ns - (TICK_NS if changed % 1_000_000_000 == 0 else TICK_NS // 50):
            raise ChangedMeanwhileError(path)
        digest = _content(path, follow=kind == "f") if changed > time.time_ns() - TICK_NS else "-"
        found.append(f"{kind} {state} {digest} {path}")
    return found


def _state(path: str, *, follow: bool) -> str:
    try:
        now = os.stat(path) if follow else os.lstat(path)
    except OSError:
        return _GONE
    return f"{now.st_mode},{now.st_size},{now.st_mtime_ns},{now.st_ctime_ns},{now.st_ino},{now.st_dev}"


def _changed_ns(state: str) -> int:
    if state == _GONE:
        return 0
    parts = state.split(",")
    return max(int(parts[2]), int(parts[3]))


def _content(path: str, *, follow: bool) -> str:
    """A digest of what a file says, of the names in a directory, or of where a link leads."""
    if not follow:
        return hashlib.sha256(os.readlink(path).encode(errors="surrogateescape")).hexdigest()
    if os.path.isdir(path):
        return _names(path, ())
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            total.update(part)
    return total.hexdigest()


def _names(directory: str, others: Sequence[str]) -> str:
    """A digest of the names in a directory without some others."""
    names = "\0".join(sorted(set(os.listdir(directory)).difference(others)))
    return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()


def _write(path: str, text: str) -> None:
    """A reader sees the old receipt or the new one. It is not flushed: what is lost is only made again."""
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(partial, path)


def _forget_old(folder: str) -> None:
    with os.scandir(folder) as found:
        oldest = sorted(found, key=lambda entry: entry.stat().st_mtime_ns, reverse=True)[KEPT:]
    for entry in oldest:
        os.unlink(entry.path)
