"""What kci keeps in its cache, and removing it: never anything that kci did not put there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kci.errors import FindingsError
from kci.files.lock import in_use

PARTS = {
    "builds": ("run", "work", "trees", "inputs"),
    "runs": ("runs",),
    "toolchains": ("envs", "cuda", "headers", "wheels", "test-packages", "test-tools"),
    "compiler-caches": ("ccache", "sccache"),
}
"""Folders of the cache by what they are for: builds, runs on engines, what builds are made with, and objects."""


class KeptFolder(msgspec.Struct, frozen=True):
    """One thing in the cache that can be removed by itself."""

    part: str
    path: Path
    size: int
    used: float
    """When something in it last changed, in seconds since the epoch."""

    @property
    def days(self) -> int:
        """How many days ago that was."""
        return max(0, int((time.time() - self.used) // 86400))


def kept_folders(cache: Path, parts: tuple[str, ...] = ()) -> list[KeptFolder]:
    """What is in the cache, the largest first. Folders that kci does not know and links are not listed.

    Args:
        cache: the cache directory.
        parts: names of `PARTS`; all of them by default.
    """
    found = []
    for part, folders in PARTS.items():
        if parts and part not in parts:
            continue
        for folder in folders:
            for path in _entries(cache / folder):
                size, used = _measured(path)
                found.append(KeptFolder(part, path, size, used))
    return sorted(found, key=lambda item: (-item.size, str(item.path)))


def remove_kept(cache: Path, folder: KeptFolder) -> bool:
    """Remove one; False if it is in use. It is moved aside first, so that nobody finds a half of it.

    Raises:
        FindingsError: it lies outside of the cache, or cannot be removed.
    """
    inside = folder.path.parent.resolve().is_relative_to(cache.resolve())
    if not inside or folder.path.is_symlink() or folder.path.parent.name not in sum(PARTS.values(), ()):
        raise FindingsError(f"{folder.path} is not in the cache {cache}", hint="nothing of it was removed")
    if in_use(folder.path):
        return False
    aside = folder.path.with_name(f".kci-{folder.path.name}.removed")
    try:
        folder.path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
    except OSError as error:
        raise FindingsError(f"{folder.path} cannot be removed: {error.strerror}") from error
    return True


def _entries(folder: Path) -> Iterator[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return
    yield from sorted(path for path in folder.iterdir() if not path.is_symlink() and not path.name.endswith(".lock"))


def _measured(path: Path) -> tuple[int, float]:
    """How large something is, and when it last changed; links are not followed."""
    stat = path.lstat()
    if not path.is_dir():
        return stat.st_size, stat.st_mtime
    size, used = 0, stat.st_mtime
    for place, _, names in os.walk(path):
        for name in names:
            try:
                inner = os.lstat(os.path.join(place, name))  # noqa: PTH118  - many thousand of them
            except OSError:
                continue
            size += inner.st_size
            used = max(used, inner.st_mtime)
    return size, used
