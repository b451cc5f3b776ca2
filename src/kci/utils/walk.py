"""Directory walks in a fixed order, and the rules for file names."""

from __future__ import annotations

import os
import shutil
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kci.errors import FindingsError


class Entry(msgspec.Struct, frozen=True):
    """A file, link or special file below a directory."""

    name: str
    path: Path
    regular: bool
    link: bool


def walk(root: Path) -> list[Entry]:
    """Every entry below `root` but directories, sorted by name, without following links;
    FindingsError.
    """
    files = []
    pending = [(root, "")]
    while pending:
        directory, prefix = pending.pop()
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            raise FindingsError(f"cannot read {directory}: {error.strerror}") from error
        for entry in entries:
            name = prefix + entry.name
            _require_text(name, root)
            if entry.is_dir(follow_symlinks=False):
                pending.append((Path(entry.path), f"{name}/"))
                continue
            files.append(Entry(name, Path(entry.path), _is_file(entry), entry.is_symlink()))
    return sorted(files, key=lambda item: item.name)


def walk_packed(root: Path) -> list[Entry]:
    """As `walk`, without bytecode, which no artifact has."""
    return [entry for entry in walk(root) if not is_bytecode(entry.name)]


def is_lfs_pointer(path: str | Path) -> bool:
    """True for a Git LFS pointer, which stands in for content that was not fetched (git-lfs
    docs/spec.md).
    """
    try:
        if os.stat(path).st_size > _LARGEST_POINTER:  # noqa: PTH116  - a Path for each file costs more than reading it
            return False
        with open(path, "rb") as file:  # noqa: PTH123  - a Path for each file costs more than reading it
            return file.read(len(LFS_VERSION)) == LFS_VERSION
    except OSError:
        return False


LFS_VERSION = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024
"""Bytes, by the specification."""


def size_of(directory: Path) -> int:
    """The bytes of the files below a directory; 0 without it. FindingsError as `walk`."""
    return (
        sum(entry.path.stat().st_size for entry in walk(directory) if entry.regular)
        if directory.is_dir()
        else 0
    )


def _is_file(entry: os.DirEntry[str]) -> bool:
    # a circular link raises
    try:
        return entry.is_file()
    except OSError:
        return False


def _require_text(name: str, root: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="replace").decode()
        raise FindingsError(
            f"the name of {shown!r} in {root} is not UTF-8",
            "rename the file; metadata.json cannot name it",
        ) from None


OUTPUT_DIRECTORIES = ("build", "dist", "result")
_NOT_OWN = (".", *(f"{folder}/" for folder in OUTPUT_DIRECTORIES))


def is_own(name: str) -> bool:
    """True if a path relative to a kernel is a source: not hidden, no bytecode, no build output."""
    return not (name.startswith(_NOT_OWN) or "/." in name or is_bytecode(name))


def is_bytecode(name: str) -> bool:
    """True for `*.pyc`, `*.pyo` and everything below `__pycache__`."""
    return name.endswith((".pyc", ".pyo")) or "__pycache__" in name.split("/")


def remove_bytecode(root: Path) -> None:
    """Remove bytecode and its directories."""
    for entry in walk(root):
        if is_bytecode(entry.name):
            entry.path.unlink()
    for directory in sorted(root.rglob("__pycache__"), reverse=True):
        if directory.is_dir() and not directory.is_symlink():
            shutil.rmtree(directory)


def is_executable(path: Path) -> bool:
    """True if the owner may execute the file."""
    return bool(path.stat().st_mode & stat.S_IXUSR)


MAX_PATH = 1024
"""Bytes of a path inside a variant."""

MAX_COMPONENT = 255
"""Bytes of a file name; the limit of common file systems."""


_RESERVED_CHARACTERS = frozenset('<>"|?*')
_DEVICES = frozenset(
    ["aux", "con", "conin$", "conout$", "nul", "prn"]
    + [f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"]
)
"""Windows reserves these names in each directory, with each suffix."""


def unsafe_name(name: str) -> str | None:
    """The reason why a relative path may not be in an artifact, or None; it must be valid on every
    system.
    """
    for refused, reason in (
        (not name, "it is empty"),
        (
            any(unicodedata.category(char).startswith("C") for char in name),
            "it holds a control character",
        ),
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
    """A name as a file system without case and Unicode forms compares it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def collision(path: str, seen: dict[str, str]) -> str | None:
    """Add a path (a directory ends with `/`) to `seen`; returns the path that it collides with if
    case is ignored.
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
    """The names that are equal to another one but for case, sorted."""
    by_folded_name: dict[str, list[str]] = {}
    for name in names:
        by_folded_name.setdefault(case_folded(name), []).append(name)
    return sorted({name for same in by_folded_name.values() if len(same) > 1 for name in same})
