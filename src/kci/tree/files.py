"""Files of a variant directory: walking them, writing them, and the names that may travel in an artifact."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kci.diagnostics import finding
from kci.errors import FindingsError

MAX_PATH = 1024
"""Longest path inside a variant, in bytes."""

MAX_COMPONENT = 255
"""Longest file name, in bytes; the limit of common file systems."""


class Found(msgspec.Struct, frozen=True):
    """One entry below a directory that is no directory itself."""

    name: str
    """Path relative to the directory, with `/`."""
    path: Path
    regular: bool
    link: bool


def walk(root: Path) -> list[Found]:
    """Every entry below `root` that is not a directory, sorted by name. Links to directories are not followed.

    Raises:
        FindingsError: a directory cannot be read, or a name is not UTF-8.
    """
    found = []
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
            found.append(Found(name, Path(entry.path), entry.is_file(follow_symlinks=True), entry.is_symlink()))
    return sorted(found, key=lambda item: item.name)


def _require_text(name: str, root: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="replace").decode()
        raise FindingsError(
            f"the name of {shown!r} in {root} is not UTF-8", hint="rename the file; metadata.json cannot name it"
        ) from None


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
        if len(part.encode()) > MAX_COMPONENT:
            return f"a part is longer than {MAX_COMPONENT} bytes"
    return None


def folded(name: str) -> str:
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
        key = folded(claimed.removesuffix("/"))
        other = seen.get(key)
        if other is not None and not (directory and other == claimed):
            return other
        seen[key] = claimed
    return None


def is_bytecode(name: str) -> bool:
    """Whether a relative path is Python bytecode: `*.pyc`, `*.pyo` or anything below a `__pycache__` directory."""
    return name.endswith((".pyc", ".pyo")) or "__pycache__" in name.split("/")


def remove_bytecode(root: Path) -> None:
    """Remove Python bytecode below `root`."""
    for found in walk(root):
        if is_bytecode(found.name):
            found.path.unlink()
    for directory in sorted(root.rglob("__pycache__"), reverse=True):
        if directory.is_dir() and not directory.is_symlink():
            shutil.rmtree(directory)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Raises:
        FindingsError: the file cannot be written.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".kci-", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise FindingsError(f"cannot write {path}: {error.strerror}") from error


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def work_dir(beside: Path, purpose: str) -> Iterator[Path]:
    """A temporary directory on the file system of `beside`, so that a rename to `beside` is one step.

    Args:
        beside: the path that the result will be renamed to; its parent is made if it is missing.
        purpose: a word for the directory's name.

    Raises:
        FindingsError: the directory cannot be made.
    """
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=beside.parent, prefix=f".kci-{purpose}-"))
    except OSError as error:
        raise FindingsError(f"cannot make a directory beside {beside}: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def is_executable(path: Path) -> bool:
    """Whether the owner may execute the file."""
    return bool(path.stat().st_mode & stat.S_IXUSR)


def tree_error(rule: str, message: str, *, hint: str = "", path: str = "") -> FindingsError:
    """A FindingsError that carries the one finding it is about."""
    return FindingsError(message, hint=hint, diagnostics=[finding(rule, message, hint=hint, path=path)])
