"""kci's cache: its folders, and digests of unchanged files. kci removes only what it put there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from kci.errors import FindingsError, KciError
from kci.utils.atomic import Log, in_use, remove, replacing, sibling_path, write_atomic
from kci.utils.frozen import Frozen

CACHE_VARIABLE = "KCI_CACHE"


def default_cache() -> Path:
    """The cache directory: `KCI_CACHE`, else `kci` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification says to ignore a relative path.
    root = base if Path(base).is_absolute() else "~/.cache"
    # A settings file has no shell that expands a tilde; pathlib fails for a user without a home.
    return Path(os.path.expanduser(os.environ.get(CACHE_VARIABLE) or f"{root}/kci")).absolute()  # noqa: PTH111


def make_once(
    folder: Path,
    exists: Callable[[], bool],
    make: Callable[[Path], None],
    log: Log,
) -> None:
    """Make a folder of the cache atomically, unless it exists; `make` gets a staging path.

    FindingsError on failure.
    """
    if not exists():
        with replacing(folder, log) as replacement:
            if not exists():
                make(replacement.staging)
                replacement.commit()


def work_dir(cache: Path, kernel_dir: Path, variant: str) -> Path:
    """The folder for a variant's objects between builds; the kernel's directory may be
    read-only.
    """
    return cache / "work" / f"{kernel_dir.resolve().name}-{place_digest(kernel_dir)}" / variant


def place_digest(directory: Path) -> str:
    """A 12-digit hash of a directory's path."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]


PARTS = {
    "builds": ("run", "work", "trees", "inputs"),
    "toolchains": (
        "envs",
        "cuda",
        "headers",
        "wheels",
        "test-packages",
        "test-tools",
        "containers",
        "home",
        "uv",
    ),
    "compiler-caches": ("ccache",),
}


PART_DESCRIPTIONS = {
    "builds": "built variants and their objects",
    "toolchains": "torch, CUDA, headers, kci in images, and what tests need",
    "compiler-caches": "compiled objects, by ccache",
}


class CacheEntry(Frozen):
    """An entry of the cache that can be removed by itself."""

    part: str
    path: Path
    size: int
    used: float
    """The last change in it, in seconds since the epoch."""

    @property
    def days(self) -> int:
        return max(0, int((time.time() - self.used) // 86400))


def list_cache_entries(cache: Path, parts: tuple[str, ...] = ()) -> list[CacheEntry]:
    """The entries of the cache, largest first; `parts` are names of `PARTS`, all by default.

    Links are skipped.
    """
    entries = [
        CacheEntry(part, path, *_measure(path))
        for part, folders in PARTS.items()
        if not parts or part in parts
        for folder in (cache / name for name in folders)
        if folder.is_dir() and not folder.is_symlink()
        for path in folder.iterdir()
        if not path.is_symlink() and path.suffix != ".lock"
    ]
    return sorted(entries, key=lambda item: (-item.size, str(item.path)))


def remove_cache_entry(cache: Path, folder: CacheEntry) -> bool:
    """Remove an entry atomically; False if it is in use.

    FindingsError on failure and for a path outside.
    """
    inside = folder.path.parent.resolve().is_relative_to(cache.resolve())
    if (
        not inside
        or folder.path.is_symlink()
        or folder.path.parent.name not in sum(PARTS.values(), ())
    ):
        raise FindingsError(
            f"{folder.path} is not in the cache {cache}", "nothing of it was removed"
        )
    if in_use(folder.path):
        return False
    aside = sibling_path(folder.path, "removed")
    try:
        folder.path.rename(aside)
        remove(aside)
    except OSError as error:
        raise FindingsError(f"{folder.path} cannot be removed: {error.strerror}") from error
    return True


def _measure(path: Path) -> tuple[int, float]:
    stat = path.lstat()
    if not path.is_dir():
        return stat.st_size, stat.st_mtime
    size, used = 0, stat.st_mtime
    for place, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                inner = os.lstat(os.path.join(place, name))  # noqa: PTH118  - many thousand of them
                size += inner.st_size
                used = max(used, inner.st_mtime)
    return size, used


SCHEMA = 5
_TICK_NS = 3_000_000_000
"""FAT has a resolution of two seconds, and a file server's clock may differ."""
_FINE_TICK_NS = 20_000_000
"""On file systems with nanoseconds: Linux updates its clock 100 times a second or more."""
_COARSE_NS = 1_000_000
_MAX_BYTES = 256 * 1024 * 1024
"""A larger record is begun anew."""


_T = TypeVar("_T")


class _CachedDigest(Frozen, array_like=True):
    seen: tuple[int, int, int, int, int]
    digest: str


class _CacheFile(Frozen, array_like=True):
    schema: int
    root: str
    entries: dict[str, _CachedDigest]
    answers: dict[str, tuple[str, msgspec.Raw]]


class StatCache:
    """Digests of the files below a root and answers that depend on such files, kept in a file below
    `place`.
    """

    def __init__(self, root: Path, place: Path) -> None:
        self._root = os.path.realpath(root)
        name = hashlib.sha256(self._root.encode(errors="surrogateescape")).hexdigest()[:16]
        self._path = place / f"{name}.msgpack"
        self._changed = False

    def digest(self, place: str) -> str:
        """The SHA-256 of a file by its real path, in hex; OSError if it is unreadable."""
        path, before = place.removeprefix(f"{self._root}/"), os.stat(place)  # noqa: PTH116
        digest = self.get(path, before)
        if digest is None:
            digest = file_digest(place)
            self.put(path, before, os.stat(place), digest)  # noqa: PTH116
        return digest

    def answer(
        self, question: str, inputs: Callable[[], object], kind: type[_T], find: Callable[[], _T]
    ) -> _T:
        """The cached answer to a question, else that of `find`; it is valid while `inputs` returns
        an equal value.
        """
        result = None
        with suppress(OSError, ValueError):  # `find` reports an unreadable file
            key = _key(inputs())
            cached_key, answer = self._kept.answers.get(question, ("", msgspec.Raw()))
            if cached_key == key:
                return msgspec.msgpack.decode(answer, type=kind)
            result = find()
            if _key(inputs()) == key:
                self._kept.answers[question] = key, msgspec.Raw(msgspec.msgpack.encode(result))
                self._changed = True
        return find() if result is None else result

    def get(self, path: str, now: os.stat_result) -> str | None:
        entry = self._kept.entries.get(path)
        return entry.digest if entry is not None and entry.seen == _stat_key(now) else None

    def put(self, path: str, before: os.stat_result, after: os.stat_result, digest: str) -> None:
        """Remember a digest, unless the file changed during or just before the reading."""
        if _stat_key(before) == _stat_key(after) and _at_rest_ns(before) < time.time_ns():
            self._kept.entries[path] = _CachedDigest(_stat_key(before), digest)
            self._changed = True

    def put_written(self, digests: Mapping[str, str]) -> None:
        """Remember files that were written just now (hex SHA-256 by path below the root); OSError
        for a missing one.
        """
        before = {path: Path(self._root, path).lstat() for path in digests}
        wait_ns = max(map(_at_rest_ns, before.values()), default=0) - time.time_ns() + 1
        if 0 < wait_ns <= _FINE_TICK_NS:
            time.sleep(wait_ns / 1e9)
        for path, status in before.items():
            self.put(path, status, Path(self._root, path).lstat(), digests[path])

    @cached_property
    def _kept(self) -> _CacheFile:
        # a file that cannot be read, or is of another root or schema, says nothing
        with suppress(OSError, ValueError, RecursionError), self._path.open("rb") as file:
            read = msgspec.msgpack.decode(file.read(_MAX_BYTES), type=_CacheFile)
            if read.schema == SCHEMA and read.root == self._root:
                return read
        return _CacheFile(SCHEMA, self._root, {}, {})

    def save(self) -> None:
        """Write the record; a failure only costs time in the next run."""
        if self._changed:
            with suppress(OSError, ValueError, KciError):
                write_atomic(self._path, msgspec.msgpack.encode(self._kept))
                self._changed = False


def _key(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def _at_rest_ns(status: os.stat_result) -> int:
    # The time after which a further change gets another timestamp
    tick = _TICK_NS if status.st_ctime_ns % _COARSE_NS == 0 else min(_TICK_NS, _FINE_TICK_NS)
    return max(status.st_mtime_ns, status.st_ctime_ns) + tick


def _stat_key(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def file_digest(place: str | Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with open(place, "rb", buffering=0) as file:  # noqa: PTH123  - a Path for each file costs more than reading
        digest = hashlib.sha256()  # `hashlib.file_digest` allocates 256 KiB for each file
        while part := file.read(1 << 20):
            digest.update(part)
        return digest.hexdigest()
