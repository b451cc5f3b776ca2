"""The one way in which kci calls git: to read, in the repository that is meant, with nothing configured being run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kci.errors import FindingsError, MissingToolError

_SECONDS = 300

_OTHER_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
"""Variables that would make git answer for another repository, as they do inside a hook."""

# A repository's own configuration may name programs to run and places to fetch from; reading needs none of them.
_HARMLESS = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat", "diff.external=", "protocol.allow=never",
)  # fmt: skip
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


class GitRefusedError(FindingsError):
    """git cannot be run, does not end, or refuses a repository that belongs to another user."""


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in _OTHER_REPOSITORY} | dict(more)


def run_git(directory: Path, *arguments: str, given: bytes | None = None) -> bytes | None:
    """What a git command prints, or None where it fails: no repository, or no such object.

    Args:
        directory: any directory of the repository.
        arguments: a command that only reads. What a user typed must come after `--end-of-options` or `--`.
        given: what it reads from its standard input.

    Raises:
        MissingToolError: git is not installed.
        GitRefusedError: see there. Going on would silently take the repository for none.
    """
    git = shutil.which("git")
    if git is None:
        raise MissingToolError("git is not installed on this machine", hint="install git")
    options = [part for setting in _HARMLESS for part in ("-c", setting)]
    command = [git, *options, "-C", str(directory), *arguments]
    try:
        done = subprocess.run(
            command, input=given, env=_environment(_QUIET), capture_output=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitRefusedError(
            f"git cannot be run in {directory}: {error}", hint="see what `git status` says"
        ) from error
    if b"dubious ownership" in done.stderr:
        raise GitRefusedError(
            f"git refuses to read the repository of {directory}: it belongs to another user",
            hint=f"git config --global --add safe.directory '{directory.resolve()}' (or its repository's root)",
        )
    return done.stdout if done.returncode == 0 else None


def remote_git(
    directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a git command that talks to another repository, or works in a clone of kci's own.

    Args:
        directory: where.
        arguments: the command. What a user or a file named must come after `--end-of-options` or `--`.
        environment: more variables, such as those that authenticate.

    Raises:
        MissingToolError: git is not installed.
        GitRefusedError: it does not end.
    """
    surroundings = _environment({"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(environment or {})})
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(directory), *arguments]
    try:
        return subprocess.run(
            command, env=surroundings, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS
        )
    except FileNotFoundError:
        raise MissingToolError("git is not installed on this machine", hint="install git") from None
    except subprocess.TimeoutExpired:
        raise GitRefusedError(f"git {arguments[0]} does not end", hint="is the network there?") from None


def ref_names(directory: Path) -> list[str]:
    """The branches and tags of a repository, with and without the name of their remote."""
    kinds = ("refs/heads", "refs/tags", "refs/remotes")
    names = run_git(directory, "for-each-ref", "--format=%(refname:lstrip=2)", *kinds)
    listed = (names or b"").decode("utf-8", "replace").split()
    return sorted({*listed, *(name.partition("/")[2] for name in listed if "/" in name)})


def last_line(text: str) -> str:
    """What a program said last, printable and of a bounded length: git says the reason there."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(char if char.isprintable() else " " for char in lines[-1])[:300] if lines else ""


class Blob(NamedTuple):
    """An entry of a commit that is not a directory."""

    mode: str
    """As git writes it: `100644`, `100755`, `120000` for a link, `160000` for a submodule."""
    id: str


def list_blobs(directory: Path, commit: str, paths: Sequence[str]) -> dict[str, Blob]:
    """The entries of a commit at some paths, relative to the repository's top; of a directory all that is below it."""
    found: dict[str, Blob] = {}
    for start in range(0, len(paths), _AT_ONCE):
        some = paths[start : start + _AT_ONCE]
        listed = run_git(directory, "--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--", *some)
        for entry in (listed or b"").split(b"\0"):
            facts, _, name = entry.partition(b"\t")
            if name:
                mode, _, identity = facts.decode("ascii", "replace").split(" ", 2)
                found[os.fsdecode(name)] = Blob(mode, identity)
    return found


_AT_ONCE = 200
"""Paths on one command line, and objects in one answer."""


def read_blob(directory: Path, commit: str, path: str, limit: int) -> bytes | None:
    """What a file said in a commit; None if it was not there, no file, or larger than `limit` bytes.

    `path` is relative to the repository's top.
    """
    entry = list_blobs(directory, commit, [path]).get(path)
    if entry is None or not entry.mode.startswith("100"):
        return None
    size = run_git(directory, "cat-file", "-s", entry.id)
    return read_objects(directory, [entry.id]).get(entry.id) if size is not None and int(size) <= limit else None


def read_objects(directory: Path, identities: Sequence[str]) -> dict[str, bytes]:
    """The content of blobs by their full ids. One that is not here is left out: a partial clone has not all."""
    found: dict[str, bytes] = {}
    for start in range(0, len(identities), _AT_ONCE):
        asked = "".join(f"{identity}\n" for identity in identities[start : start + _AT_ONCE])
        said, at = run_git(directory, "cat-file", "--batch", given=asked.encode()) or b"", 0
        while at < len(said):
            head, at = said[at : (end := said.index(b"\n", at))].split(b" "), end + 1
            if head[1] == b"blob":  # and not `missing`, of which nothing follows
                size = int(head[2])
                found[head[0].decode()] = said[at : at + size]
                at += size + 1
    return found
