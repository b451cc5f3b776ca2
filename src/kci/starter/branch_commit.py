"""One commit on a branch of its own, without touching the working tree, the index or the branch that is checked out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from kci.errors import FindingsError, UsageError
from kci.files.git import last_line, remote_git, run_git


def commit_on_branch(
    root: Path, files: Mapping[str, str], gone: Iterable[str], branch: str, message: str
) -> tuple[str, bool]:
    """Make a commit on top of HEAD, and a branch that points to it: the branch is the last thing that is written.

    Args:
        root: the root of the repository.
        files: texts by path.
        gone: paths that the commit removes.
        branch: its name; where it has just this content on top of HEAD, nothing is done.
        message: of the commit.

    Returns:
        The commit, and whether it is a new one; empty where HEAD has all of it already.

    Raises:
        UsageError: this is no repository with a commit, or the branch cannot be called so.
        FindingsError: the working tree has changes, the branch has something else, or git refuses.
    """
    head = _said(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        raise UsageError(f"{root} is no git repository with a commit", hint="without --apply kci writes the files")
    ref = f"refs/heads/{branch}"
    if run_git(root, "check-ref-format", ref) is None or branch.startswith("-"):
        raise UsageError(f"{branch[:60]!r} is not the name of a branch", hint="such as kci-adopt")
    if changes := _said(root, "status", "--porcelain", "--untracked-files=all", "-z"):
        first = changes.split("\0")[0][3:]
        hint = "commit or stash them: what kci has read is not what a commit on HEAD would be about"
        raise FindingsError(f"the working tree has changes, such as {first}; no commit was made", hint=hint)
    with tempfile.TemporaryDirectory() as place:
        work = {"GIT_INDEX_FILE": str(Path(place) / "index")}
        _done(root, work, "read-tree", head)
        for path, text in sorted(files.items()):
            content = Path(place) / "content"
            content.write_bytes(text.encode())
            blob = _done(root, work, "hash-object", "-w", "--no-filters", "--", str(content))
            _done(root, work, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
        for path in sorted(gone):
            _done(root, work, "update-index", "--force-remove", "--", path)
        tree = _done(root, work, "write-tree")
        if tree == _said(root, "rev-parse", f"{head}^{{tree}}"):
            return "", False
        there = _said(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if there:
            if _said(root, "rev-parse", f"{there}^{{tree}}", f"{there}^") == f"{tree}\n{head}":
                return there, False
            hint = f"look at it, then remove it with `git branch -D -- {branch}`, or name another with --branch"
            raise FindingsError(f"the branch {branch} is there, and is something else", hint=hint)
        commit = _done(root, work, "commit-tree", tree, "-p", head, "-m", message)
        _done(root, work, "update-ref", ref, commit, "0" * len(commit))
    return commit, True


def _said(root: Path, *arguments: str) -> str:
    return os.fsdecode(run_git(root, *arguments) or b"").strip("\n")


def _done(root: Path, environment: Mapping[str, str], *arguments: str) -> str:
    done = remote_git(root, "-c", "core.fsmonitor=false", *arguments, environment=environment)
    if done.returncode != 0:
        raise FindingsError(f"git {arguments[0]} failed: {last_line(done.stderr)}", hint="no branch was changed")
    return done.stdout.strip()
