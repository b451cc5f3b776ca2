"""Where builders keep what they can use again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kci.files.cache_place import cache_place


def default_cache() -> Path:
    """The cache directory: `KCI_CACHE` if it is set, else `kci` in the user's cache directory."""
    return Path(cache_place())


def work_dir(cache: Path, kernel_dir: Path, variant: str) -> Path:
    """Where the objects of one variant of one kernel stay between builds, so that a rebuild compiles what changed.

    It is outside of the kernel's directory, which may be read-only and is nobody's place for objects.
    """
    return cache / "work" / f"{kernel_dir.resolve().name}-{place_digest(kernel_dir)}" / variant


def place_digest(directory: Path) -> str:
    """What tells directories of one name apart."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]
