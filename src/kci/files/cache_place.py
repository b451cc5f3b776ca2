"""Where kci's cache is. It imports nothing heavy: a build with nothing to do asks for it as well."""

from __future__ import annotations

import os


def cache_place() -> str:
    """The cache directory: `KCI_CACHE` if it is set, else `kci` in the user's cache directory."""
    if explicit := os.environ.get("KCI_CACHE"):
        return os.path.abspath(os.path.expanduser(explicit))  # a settings file has no shell that replaces a tilde
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification says that a relative path is to be ignored.
    root = base if os.path.isabs(base) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "kci")
