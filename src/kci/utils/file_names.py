"""Names that mean the same thing on every system that a tree can reach."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_PATH = 1024
"""Longest path inside a variant, in bytes."""

MAX_COMPONENT = 255
"""Longest file name, in bytes; the limit of common file systems."""


_RESERVED_CHARACTERS = frozenset('<>"|?*')
_DEVICES = frozenset(
    ["aux", "con", "conin$", "conout$", "nul", "prn"]
    + [f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"]
)
"""Names that are devices on Windows, in every directory and with every ending."""


def unsafe_name(name: str) -> str | None:
    """Say why a relative path may not travel in an artifact, or None if it may.

    The names have to mean the same thing on every system that a tree can reach, so what only Windows would take amiss
    is refused everywhere.
    """
    for refused, reason in (
        (not name, "it is empty"),
        (any(unicodedata.category(char).startswith("C") for char in name), "it holds a control character"),
        ("\\" in name, "it holds a backslash"),
        (name.startswith("/"), "it is absolute"),
        (":" in name, "it holds a colon (a drive or stream on Windows)"),
        (len(name.encode(errors="replace")) > MAX_PATH, f"it is longer than {MAX_PATH} bytes"),
    ):
        if refused:
            return reason
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"it holds the part {part!r}"
        if part.endswith((".", " ")):
            return f"the part {part!r} ends with a dot or a space"
        if reserved := sorted(_RESERVED_CHARACTERS & set(part)):
            return f"it holds {reserved[0]!r}, which Windows does not allow"
        if part.partition(".")[0].rstrip(" ").lower() in _DEVICES:
            return f"the part {part!r} is a device on Windows"
        if len(part.encode(errors="replace")) > MAX_COMPONENT:
            return f"a part is longer than {MAX_COMPONENT} bytes"
    return None


def case_folded(name: str) -> str:
    """The name as a file system that ignores case and Unicode forms sees it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def collision(path: str, seen: dict[str, str]) -> str | None:
    """Take a path and the directories above it; the path that is in the way on a file system without case, if any.

    Args:
        path: a relative path, with a `/` at its end if it is a directory's.
        seen: what was taken so far, by folded path; a directory may be taken again in the same spelling.
    """
    parts = path.removesuffix("/").split("/")
    for depth in range(1, len(parts) + 1):
        directory = depth < len(parts) or path.endswith("/")
        claimed = "/".join(parts[:depth]) + ("/" if directory else "")
        key = case_folded(claimed.removesuffix("/"))
        other = seen.get(key)
        if other is not None and not (directory and other == claimed):
            return other
        seen[key] = claimed
    return None


def duplicate_names(names: Iterable[str]) -> list[str]:
    """The names that occur more than once when case is ignored, sorted."""
    seen: dict[str, list[str]] = {}
    for name in names:
        seen.setdefault(case_folded(name), []).append(name)
    return sorted({name for same in seen.values() if len(same) > 1 for name in same})
