"""What the files of a merged tree looked like when they were last hashed, so that they need not be hashed again.

The record lies in kci's cache, because a tree holds nothing of the machine that merged it. It is believed only as
long as every file has the same size, inode and times of change. Writing to a file changes its time of inode change,
which no user can set.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from kci.errors import FindingsError
from kci.files.bounded_json import read_json
from kci.files.cache import default_cache
from kci.files.replace import write_atomic
from kci.files.walk import walk

_MAX_RECORDS = 64
_TICK = 20_000_000
"""Nanoseconds: longer than the steps in which file systems count time."""

_COARSE = 1_000_000

Stamp = tuple[int, int, int, int]
"""Size, time of content and of inode change in nanoseconds, inode."""


class StampedVariant(msgspec.Struct, frozen=True):
    """A variant directory at the time when it was hashed."""

    digest: str
    files: dict[str, Stamp]


class StampRecord(msgspec.Struct, frozen=True):
    """The variants of one tree."""

    schema: int
    tree: str
    variants: dict[str, StampedVariant]


_SCHEMA = 1


def known_digest(record: Mapping[str, StampedVariant], directory: Path) -> str | None:
    """The digest of a variant directory, if nothing in it has changed since it was hashed."""
    known = record.get(directory.name)
    if known is None:
        return None
    try:
        return known.digest if _stamps(directory) == known.files else None
    except (OSError, FindingsError):
        return None


def read_stamps(tree: Path) -> dict[str, StampedVariant]:
    """The record of a tree; empty where there is none that can be read."""
    with suppress(OSError, ValueError):
        record = read_json(_place(tree), StampRecord)
        if record.schema == _SCHEMA and record.tree == str(tree):
            return record.variants
    return {}


def write_stamps(tree: Path, digests: Mapping[str, str]) -> None:
    """Record a tree whose variants have these digests. A record that cannot be written is done without."""
    try:
        before = {name: _stamps(tree / name) for name in digests}
        changed = [stamp[2] for files in before.values() for stamp in files.values()]
        if all(moment % _COARSE == 0 for moment in changed):
            return  # a file system that counts in large steps: two writes in one of them look the same
        newest = max(changed)
        # A write in the same tick as the last change would leave no trace, so that tick has to be over.
        time.sleep(min(max(newest + _TICK - time.time_ns(), 0), _TICK) / 1e9)
        if any(_stamps(tree / name) != files for name, files in before.items()):
            return
        variants = {name: StampedVariant(digests[name], files) for name, files in before.items()}
        place = _place(tree)
        write_atomic(place, msgspec.json.encode(StampRecord(_SCHEMA, str(tree), variants)))
        _forget_oldest(place.parent)
    except (OSError, FindingsError):
        return


def _stamps(directory: Path) -> dict[str, Stamp]:
    found = {}
    for item in walk(directory):
        there = item.path.stat(follow_symlinks=False)
        found[item.name] = (there.st_size, there.st_mtime_ns, there.st_ctime_ns, there.st_ino)
    return found


def _place(tree: Path) -> Path:
    return default_cache() / "trees" / f"{hashlib.sha256(os.fsencode(tree)).hexdigest()[:24]}.json"


def _forget_oldest(folder: Path) -> None:
    records = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in records[:-_MAX_RECORDS]:
        path.unlink(missing_ok=True)
