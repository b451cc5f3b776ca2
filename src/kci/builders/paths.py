"""Paths that a kernel names: every one of them is checked before it is opened."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from kci.diagnostics import Diagnostic, finding, rules
from kci.errors import FindingsError, UnsafeError

BUILD_TOML = "build.toml"

# ninja ends a path at `|` and knows no way around it. nvcc hands paths to a shell inside double quotes, in which the
# others still have a meaning.
_UNQUOTABLE = '|"$`\\'


def inside(kernel_dir: Path, entry: str, what: str) -> Path:
    """The real path of something that build.toml names, which lies inside the kernel's directory.

    Links are followed first, so a link that leads out is refused as well. The path need not exist.

    Args:
        kernel_dir: the directory of build.toml.
        entry: the path as it is written, relative to that directory.
        what: what the path is, for the message, such as ``torch.src``.

    Raises:
        UnsafeError: the path is absolute or leads out of the directory.
        FindingsError: the path holds a character that a build file cannot carry.
    """
    pure, windows = PurePosixPath(entry), PureWindowsPath(entry)
    if pure.is_absolute() or windows.drive or windows.root:
        raise escape(f"{what} names the absolute path {entry!r}")
    if not entry or not is_plain(entry) or any(char in _UNQUOTABLE for char in entry):
        raise refused("KCI506", f"{what} names the path {entry!r}, which cannot be written into a build file")
    root = kernel_dir.resolve()
    real = (root / entry).resolve()
    if not real.is_relative_to(root):
        raise escape(f"{what} names {entry!r}, which leads out of the kernel's directory")
    return real


def source_file(kernel_dir: Path, entry: str, what: str) -> Path:
    """Like `inside`, for a file that must exist.

    Raises:
        UnsafeError: as `inside`.
        FindingsError: as `inside`, or the file is missing or no regular file.
    """
    real = inside(kernel_dir, entry, what)
    if not real.is_file():
        reason = "is not a regular file" if real.exists() else "does not exist"
        raise refused("KCI501", f"{what} names {entry!r}, which {reason}")
    return real


def is_plain(text: str) -> bool:
    """Whether a text has no control characters (line breaks, NUL) and so fits on one line of a build file."""
    return not any(ord(char) < 32 or ord(char) == 127 for char in text)


def refused(rule: str, message: str, path: str = BUILD_TOML) -> FindingsError:
    """The error for something in the kernel's directory that cannot be built."""
    diagnostic = _finding(rule, message, path)
    return FindingsError(message, hint=diagnostic.hint, diagnostics=[diagnostic])


def escape(message: str, path: str = BUILD_TOML) -> UnsafeError:
    """The error for a path that leads out of the kernel's directory."""
    diagnostic = _finding("KCI503", message, path)
    return UnsafeError(message, hint=diagnostic.hint, diagnostics=[diagnostic])


def _finding(rule: str, message: str, path: str) -> Diagnostic:
    return finding(rule, message, hint=rules()[rule].fix, path=path)
