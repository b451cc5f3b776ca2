"""Where builders keep what they can use again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from kci.files.replace import replacing

CACHE_OPTION = "--cache or KCI_CACHE"
"""What names another place, for hints."""


def default_cache() -> Path:
    """The cache directory: `KCI_CACHE` if it is set, else `kci` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification says that a relative path is to be ignored.
    root = base if Path(base).is_absolute() else "~/.cache"
    # A settings file has no shell that replaces a tilde; pathlib fails for a user who has no home.
    return Path(os.path.expanduser(os.environ.get("KCI_CACHE") or f"{root}/kci")).absolute()  # noqa: PTH111


def made_once(
    folder: Path, is_there: Callable[[], bool], make: Callable[[Path], None], log: Callable[[str], None]
) -> None:
    """Make a folder of the cache unless it is there; it appears only when it is whole, and several may ask at once.

    Args:
        folder: which one.
        is_there: whether it is there and usable.
        make: makes it at the path that it is given.
        log: takes a line if another process is waited for.

    Raises:
        FindingsError: nothing can be written there.
    """
    if not is_there():
        with replacing(folder, log) as replacement:
            if not is_there():
                make(replacement.staging)
                replacement.commit()


def work_dir(cache: Path, kernel_dir: Path, variant: str) -> Path:
    """Where the objects of one variant of one kernel stay between builds, so that a rebuild compiles what changed.

    It is outside of the kernel's directory, which may be read-only and is nobody's place for objects.
    """
    return cache / "work" / f"{kernel_dir.resolve().name}-{place_digest(kernel_dir)}" / variant


def place_digest(directory: Path) -> str:
    """What tells directories of one name apart."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]
