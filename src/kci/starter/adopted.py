"""What is taken over from an existing project: its files in their new form, and what is left to do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kci.errors import FindingsError, UsageError
from kci.files.bounded_json import read_bounded
from kci.files.walk import is_own, walk

MOST_FILES = 20_000
MOST_BYTES = 256 * 1024 * 1024


class Adopted(msgspec.Struct, frozen=True):
    """Files of a new kernel, and the account of where they come from."""

    name: str
    files: dict[str, bytes]
    taken: tuple[str, ...]
    """What was taken over, a line each."""
    left: tuple[str, ...]
    """What is left to do, a line each."""


def read_project(root: Path) -> tuple[dict[str, bytes], list[str]]:
    """The plain files of a project without hidden ones and what was built; and the links, which are not followed.

    Raises:
        UsageError: there is no such directory.
        FindingsError: a file cannot be read, or there is more than the sources of a kernel.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: there is no such directory", hint="name the directory of the project with --from")
    files: dict[str, bytes] = {}
    links: list[str] = []
    room = MOST_BYTES
    for entry in walk(root):
        if not is_own(entry.name):
            continue
        if entry.link:
            links.append(entry.name)
        elif entry.regular:
            try:
                files[entry.name] = read_bounded(entry.path, room)
            except OSError as error:
                raise FindingsError(f"{entry.path}: cannot be read: {error.strerror}") from None
            except ValueError:
                raise _too_much(root) from None
            room -= len(files[entry.name])
        if len(files) > MOST_FILES:
            raise _too_much(root)
    return files, links


def _too_much(root: Path) -> FindingsError:
    hint = "name the directory of one kernel, without what was built from it"
    return FindingsError(f"{root} holds more than the sources of a kernel", hint=hint)
