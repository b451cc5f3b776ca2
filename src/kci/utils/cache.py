"""The cache: where what can be used again lies, making it once, and removing it. kci removes only what it put there."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kci.errors import FindingsError
from kci.utils.atomic import replacing
from kci.utils.locks import in_use

CACHE_VARIABLE = "KCI_CACHE"
"""What names another place, for hints."""


LAST_TIMES = ".kci-seconds.json"
"""How long getting what lies beside it took."""


def default_cache() -> Path:
    """The cache directory: `KCI_CACHE` if it is set, else `kci` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification: ignore a relative path.
    root = base if Path(base).is_absolute() else "~/.cache"
    # A settings file has no shell that replaces a tilde; pathlib fails for a user who has no home.
    return Path(os.path.expanduser(os.environ.get(CACHE_VARIABLE) or f"{root}/kci")).absolute()  # noqa: PTH111


def make_once(
    folder: Path, is_there: Callable[[], bool], make: Callable[[Path], None], log: Callable[[str], None]
) -> None:
    """Make a folder of the cache unless it is there; it appears only when it is whole, and several may ask at once.

    `make` makes it at the path that it is given; `log` takes a line if another process is waited for.

    Raises:
        FindingsError: nothing can be written there.
    """
    if not is_there():
        with replacing(folder, log) as replacement:
            if not is_there():
                make(replacement.staging)
                replacement.commit()


def work_dir(cache: Path, kernel_dir: Path, variant: str) -> Path:
    """Where the objects of a variant stay between builds: outside of the kernel's directory, which may be read-only."""
    return cache / "work" / f"{kernel_dir.resolve().name}-{place_digest(kernel_dir)}" / variant


def place_digest(directory: Path) -> str:
    """What tells directories of one name apart."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]


PARTS = {
    "builds": ("run", "work", "trees", "inputs"),
    "toolchains": ("envs", "cuda", "headers", "wheels", "test-packages", "test-tools"),
    "compiler-caches": ("ccache",),
}
"""Folders of the cache by what they are for: builds, what builds are made with, and objects."""


WHAT_PARTS_ARE = {
    "builds": "built variants and their objects",
    "toolchains": "torch, CUDA, headers and what tests need",
    "compiler-caches": "compiled objects, by ccache",
}
"""The same for people."""


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
    """Remove one; False if it is in use. It is moved aside first, so that no process finds half of it.

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
    yield from sorted(path for path in folder.iterdir() if not path.is_symlink() and _counts(path.name))


def _counts(name: str) -> bool:
    return not name.endswith(".lock") and name != LAST_TIMES


def _measured(path: Path) -> tuple[int, float]:
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
