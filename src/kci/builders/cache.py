"""Where builders keep what they can use again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def default_cache() -> Path:
    """The cache directory: `KCI_CACHE` if it is set, else `kci` in the user's cache directory."""
    if explicit := os.environ.get("KCI_CACHE"):
        return Path(explicit).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification says that a relative path is to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "kci"


def work_dir(cache: Path, kernel_dir: Path, variant: str) -> Path:
    """Where the objects of one variant of one kernel stay between builds, so that a rebuild compiles what changed.

    It is outside of the kernel's directory, which may be read-only and is nobody's place for objects.
    """
    place = hashlib.sha256(str(kernel_dir.resolve()).encode()).hexdigest()[:12]
    return cache / "work" / f"{kernel_dir.resolve().name}-{place}" / variant
