"""The only caller of git.

It reads the repository that is meant, and runs nothing that the repository configures.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kci.diagnostics import printable
from kci.errors import FindingsError, MissingToolError, without_secrets
from kci.utils.cache import file_digest
from kci.utils.walk import LFS_VERSION, is_executable

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
"""Variables that redirect git to another repository, as in a hook."""

# A repository's configuration may name programs to run and places to fetch from.
_HARMLESS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "diff.external=",
    "log.showSignature=false",
)
_QUIET = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class GitRefusedError(FindingsError):
    """git cannot be run, does not end, or refuses a repository of another user."""


def _run(
    directory: Path,
    settings: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    git = shutil.which("git")
    if git is None:
        raise MissingToolError("git is not installed on this machine", "install git")
    own = {key: value for key, value in os.environ.items() if key not in _OTHER_REPOSITORY} | dict(
        environment
    )
    command = [
        git,
        *(part for setting in settings for part in ("-c", setting)),
        "-C",
        str(directory),
        *arguments,
    ]
    try:
        return subprocess.run(
            command, env=own, capture_output=True, check=False, timeout=_SECONDS, **how
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitRefusedError(
            f"git cannot be run in {directory}: {error}",
            "see what `git status` says, and whether the network is there",
        ) from error


def run_git(
    directory: Path, *arguments: str, settings: Sequence[str] = (), stdin: bytes | None = None
) -> bytes | None:
    """The output of a read-only git command with more `settings` (`-c`); None if it fails.

    Untrusted arguments come after `--end-of-options` or `--`. MissingToolError without git,
    GitRefusedError where None would pass for an absent repository.
    """
    done = _run(directory, (*_HARMLESS, *settings), arguments, _QUIET, input=stdin)
    if b"dubious ownership" in done.stderr:
        raise GitRefusedError(
            f"git refuses to read the repository of {directory}: it belongs to another user",
            f"git config --global --add safe.directory '{directory.resolve()}' (or its "
            "repository's root)",
        )
    return bytes(done.stdout) if done.returncode == 0 else None


def remote_git(
    directory: Path, *arguments: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a git command in a clone of kci's own or against a remote; `environment` adds variables
    such as a login.

    Untrusted arguments come after `--end-of-options` or `--`. MissingToolError without git,
    GitRefusedError on timeout.
    """
    own = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **environment}
    return _run(
        directory, ("core.hooksPath=/dev/null",), arguments, own, text=True, errors="replace"
    )


def ref_names(directory: Path) -> list[str]:
    """The branches and tags of a repository, with and without their remote's name."""
    kinds = ("refs/heads", "refs/tags", "refs/remotes")
    names = run_git(directory, "for-each-ref", "--format=%(refname:lstrip=2)", *kinds)
    listed = (names or b"").decode("utf-8", "replace").split()
    return sorted({*listed, *(name.partition("/")[2] for name in listed if "/" in name)})


def last_line(text: str) -> str:
    """The last line of a program's output, where git has the reason, printable and at most 300
    characters.
    """
    lines = [line.strip() for line in without_secrets(text).splitlines() if line.strip()]
    return printable(lines[-1], " ")[:300] if lines else ""


class Blob(NamedTuple):
    """A file, link or submodule in a commit."""

    mode: str
    """`100644`, `100755`, `120000` for a link, `160000` for a submodule."""
    id: str


def list_blobs(directory: Path, commit: str, paths: Sequence[str]) -> dict[str, Blob]:
    """The entries of a commit at or below some paths, which are relative to the
    repository's top.
    """
    blobs: dict[str, Blob] = {}
    for start in range(0, len(paths), _AT_ONCE):
        some = paths[start : start + _AT_ONCE]
        listed = run_git(
            directory,
            "--literal-pathspecs",
            "ls-tree",
            "-r",
            "-z",
            "--full-tree",
            commit,
            "--",
            *some,
        )
        for entry in (listed or b"").split(b"\0"):
            facts, _, name = entry.partition(b"\t")
            if name:
                mode, _, identity = facts.decode("ascii", "replace").split(" ", 2)
                blobs[os.fsdecode(name)] = Blob(mode, identity)
    return blobs


_AT_ONCE = 200


def read_blob(directory: Path, commit: str, path: str, limit: int) -> bytes | None:
    """The content of a file in a commit, by its path from the top; None for no file, or one over
    `limit` bytes.
    """
    entry = list_blobs(directory, commit, [path]).get(path)
    if entry is None or not entry.mode.startswith("100"):
        return None
    size = run_git(directory, "cat-file", "-s", entry.id)
    fits = size is not None and int(size) <= limit
    return read_objects(directory, [entry.id]).get(entry.id) if fits else None


def read_objects(directory: Path, identities: Sequence[str]) -> dict[str, bytes]:
    """The content of blobs by id; missing ones are left out, as in a partial clone."""
    contents: dict[str, bytes] = {}
    batch = "".join(f"{identity}\n" for identity in identities)
    output, at = run_git(directory, "cat-file", "--batch", stdin=batch.encode()) or b"", 0
    while at < len(output):
        head, at = output[at : (end := output.index(b"\n", at))].split(b" "), end + 1
        if head[1] == b"blob":
            size = int(head[2])
            contents[head[0].decode()] = output[at : at + size]
            at += size + 1
    return contents


def changed_paths(top: Path, commit: str, *, submodules: str = "none") -> frozenset[str] | None:
    """The tracked paths that differ from a commit, relative to the repository's top; None if git
    cannot tell.

    `submodules` says what of them does not count: `none`, `untracked`, `all`. No filter runs: a
    repository configures them. A file of Git LFS is compared with its pointer; a file of another
    filter differs once it is written again.
    """
    listed = run_git(top, "config", "-z", "--name-only", "--get-regexp", r"^filter\.") or b""
    filters = sorted({key.rpartition(".")[0] for key in os.fsdecode(listed).split("\0") if key})
    if any("=" in name for name in filters):  # `-c` ends a name there
        raise GitRefusedError(
            f"{top} configures a filter with `=` in its name", "remove it: git config --edit"
        )
    off = [
        f"{name}.{setting}"
        for name in filters
        for setting in ("clean=", "process=", "required=false")
    ]
    kinds = ("--no-renames", f"--ignore-submodules={'all' if submodules == 'all' else 'dirty'}")
    staged = run_git(
        top, "diff", "--cached", "--name-only", "-z", "--no-relative", *kinds, commit, "--"
    )
    # `git diff` would write the index
    status = run_git(
        top, "status", "--porcelain", "-z", "--untracked-files=no", *kinds, settings=off
    )
    if staged is None or status is None:
        return None
    entries = (entry[3:] for entry in status.split(b"\0"))
    names = {os.fsdecode(name) for name in (*staged.split(b"\0"), *entries) if name}
    if (
        submodules != "all" and (top / ".gitmodules").is_file()
    ):  # git would look with the configuration of each
        index = (run_git(top, "ls-files", "--stage", "-z") or b"").split(b"\0")
        places = {
            os.fsdecode(entry.partition(b"\t")[2])
            for entry in index
            if entry.startswith(b"160000 ")
        }
        names |= {place for place in places - names if _is_dirty(top / place, submodules)}
    return frozenset(names - _same_as_pointer(top, commit, sorted(names)) if filters else names)


def _is_dirty(submodule: Path, submodules: str) -> bool:
    if not (submodule / ".git").exists():
        return False
    untracked = (
        run_git(submodule, "ls-files", "-z", "--others", "--exclude-standard")
        if submodules == "none"
        else b""
    )
    return bool(untracked) or changed_paths(submodule, "HEAD", submodules=submodules) != frozenset()


def _same_as_pointer(top: Path, commit: str, names: Sequence[str]) -> set[str]:
    blobs = list_blobs(top, commit, [name for name in names if (top / name).is_file()])

    def pointed(file: Path, like: Blob) -> Blob:
        text = b"%sv1\noid sha256:%s\nsize %d\n" % (
            LFS_VERSION,
            file_digest(file).encode(),
            file.stat().st_size,
        )
        kind = hashlib.sha256 if len(like.id) == 64 else hashlib.sha1
        return Blob(
            "100755" if is_executable(file) else "100644",
            kind(b"blob %d\0%s" % (len(text), text)).hexdigest(),
        )

    return {name for name, blob in blobs.items() if blob == pointed(top / name, blob)}
