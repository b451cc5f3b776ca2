"""Writing all of it, and what to say when that cannot be: the path that is at fault, and for a full disk what to do."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from kci.errors import ClientError

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_ANOTHER = "name a place that you can write; for kci's cache with --cache or KCI_CACHE"
_SAID = ("No space left on device", "Disk quota exceeded")


@contextmanager
def writing(place: str | os.PathLike[str]) -> Iterator[None]:
    """Have an error of the system that comes out of this say what could not be written.

    Raises:
        ClientError: instead of any `OSError`.
    """
    try:
        yield
    except OSError as error:
        message = f"cannot write {unwritten(error, place)}: {error.strerror or error}"
        raise ClientError(message, hint=room_hint(error) or _ANOTHER) from error


def unwritten(error: OSError, otherwise: str | os.PathLike[str]) -> str:
    """The path that could not be written.

    Args:
        error: why. A failed copy names the file that it read first and the one that it wrote after it.
        otherwise: what was being written, for an error that names nothing, as that of a write does.
    """
    named = (error.filename2 if error.errno in _FULL else None) or error.filename
    return os.fsdecode(named) if named is not None and not isinstance(named, int) else os.fspath(otherwise)


def room_hint(error: OSError, option: str = "") -> str:
    """What to do about a full disk; empty for another error. `option` names another place for it."""
    if error.errno not in _FULL:
        return ""
    return "free space there" + (f", or name another place with {option}" if option else ", or name another place")


def says_full(output: str) -> bool:
    """Whether a program that said this met a full disk."""
    return any(said in output for said in _SAID)


def program_hint(output: str, place: str | os.PathLike[str], option: str) -> str:
    """What to do about a program that met a full disk; empty if it met something else.

    Args:
        output: what it said.
        place: where it wrote; it may have wanted the folder for temporary files as well.
        option: the words that name another place.
    """
    if not says_full(output):
        return ""
    where = os.fspath(place)
    return f"free space in {where} or {tempfile.gettempdir()}; {option} names another place for the first"
