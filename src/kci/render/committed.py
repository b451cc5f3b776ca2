"""Reading the committed workflow files and writing the rendered ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from kci.errors import FindingsError, UnsafeError

_MAX_BYTES = 2_000_000


def read_committed(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """The text of those files that exist.

    Args:
        root: the root of the repository.
        paths: relative to it.

    Raises:
        UnsafeError: one of them, or a directory on the way, is a symbolic link or no regular file.
        FindingsError: one cannot be read, is not UTF-8, or is far larger than a workflow may be.
    """
    found = {}
    for path in sorted(paths):
        file = _inside(root, path)
        if not file.exists():
            continue
        try:
            if file.stat().st_size > _MAX_BYTES:
                raise FindingsError(f"{path}: larger than any workflow", hint="move it away and render again")
            found[path] = file.read_bytes().decode("utf-8")
        except OSError as error:
            raise FindingsError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise FindingsError(f"{path}: not UTF-8", hint="move it away and render again") from None
    return found


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write the files, each in one step, after all of them were prepared.

    Raises:
        UnsafeError: see `read_committed`.
        FindingsError: a file cannot be written.
    """
    prepared: list[tuple[Path, Path]] = []
    try:
        for path in sorted(files):
            target = _inside(root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            prepared.append((Path(name), target))
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(files[path])
            Path(name).chmod(0o644)
        for temporary, target in prepared:
            temporary.replace(target)
    except OSError as error:
        raise FindingsError(f"{error.filename or root}: cannot be written: {error.strerror or error}") from None
    finally:
        for temporary, _ in prepared:
            temporary.unlink(missing_ok=True)


def remove_files(root: Path, paths: Iterable[str]) -> None:
    """Remove files that kci wrote.

    Raises:
        UnsafeError: see `read_committed`.
        FindingsError: a file cannot be removed.
    """
    for path in paths:
        try:
            _inside(root, path).unlink()
        except OSError as error:
            raise FindingsError(f"{path}: cannot be removed: {error.strerror or error}") from None


def _inside(root: Path, path: str) -> Path:
    """The file, if nothing on the way to it leads elsewhere."""
    current = root
    parts = Path(path).parts
    for index, part in enumerate(parts):
        current = current / part
        last = index == len(parts) - 1
        if current.is_symlink() or (current.exists() and not (current.is_file() if last else current.is_dir())):
            kind = "file" if last else "directory"
            raise UnsafeError(f"{current}: not a plain {kind}", hint="remove it; kci does not write through links")
    return current
