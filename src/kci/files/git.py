"""The one way in which kci calls git: to read, in the repository that is meant, with nothing configured being run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

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


def run_git(directory: Path, *arguments: str) -> bytes | None:
    """What a git command prints, or None where it fails: no repository, or no such object.

    Args:
        directory: any directory of the repository.
        arguments: a command that only reads. What a user typed must come after `--end-of-options` or `--`.

    Raises:
        MissingToolError: git is not installed.
        GitRefusedError: see there. Going on would silently take the repository for none.
    """
    git = shutil.which("git")
    if git is None:
        raise MissingToolError("git is not installed on this machine", hint="install git")
    environment = {key: value for key, value in os.environ.items() if key not in _OTHER_REPOSITORY} | _QUIET
    options = [part for setting in _HARMLESS for part in ("-c", setting)]
    command = [git, *options, "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_SECONDS)
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
