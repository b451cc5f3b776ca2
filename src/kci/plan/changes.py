"""What git knows about a change: its files, and the commits between which it lies."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec

from kci.errors import rule_error
from kci.utils.git import GitRefusedError, ref_names, run_git
from kci.utils.suggest import suggestion

_DIFFERENCE = re.compile(
    rb"(.*)(?:\n[0-9a-f]{40,64}){2}\n(?:\^([0-9a-f]{40,64})\n)?(?:\^[0-9a-f]{40,64}\n)*", re.DOTALL
)
"""A repository's top directory, the two commits, and where their histories parted: at several places, or at none."""


class Changes(msgspec.Struct, frozen=True):
    """What differs between a base and the working tree."""

    root: Path
    """The repository's top directory."""
    base: str
    """The commit that is compared with: where the history of the base and of HEAD parted."""
    files: tuple[str, ...]
    """Paths relative to the root, sorted. A file that was renamed is there with both names."""


def changes_since(directory: Path, base: str) -> Changes:
    """The files that changed since the history of HEAD left a base, uncommitted and new files among them.

    Raises:
        MissingToolError: there is no git.
        FindingsError: it is no repository, there is no such base, or its history is not here (KCI312).
    """
    if base.startswith("-"):
        raise rule_error("KCI312", f"{base!r} is not a revision", hint="name a branch, a tag or a commit")
    found = _DIFFERENCE.fullmatch(_git(directory, "rev-parse", "--show-toplevel", f"{base}^{{commit}}...HEAD") or b"")
    if found is None:
        if _git(directory, "rev-parse", "--show-toplevel") is None:
            message, hint = f"{directory} is not in a git repository", "--affected needs one; plan without it"
        else:
            message = f"there is no commit {base!r} here"
            hint = suggestion(base, ref_names(directory)) or "fetch it: `fetch-depth: 0` of actions/checkout does"
        raise rule_error("KCI312", message, hint=hint)
    if not found[2]:
        hint = "fetch the whole history: `fetch-depth: 0` of actions/checkout does"
        raise rule_error("KCI312", f"HEAD and {base!r} have no common commit here", hint=hint)
    root, parted = Path(os.fsdecode(found[1])), found[2].decode()
    # Without rename detection a renamed file is one that went and one that came, so both of its names count.
    changed = _git(
        root, "diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
        "--ignore-submodules=none", parted, "--",
    )  # fmt: skip
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if changed is None or untracked is None:
        raise rule_error("KCI312", f"git cannot compare the files with {base!r}", hint="see what `git diff` says")
    names = {os.fsdecode(name) for name in (changed + untracked).split(b"\0") if name}
    return Changes(root, parted, tuple(sorted(names)))


def merged_into(directory: Path, head: str) -> str:
    """The newest commit of the branch that a pull request would be merged into: the first parent of HEAD.

    GitHub checks out a merge commit of its own for a pull request, made when the run starts. `head` is the pull
    request's own newest commit: its first parent would be another commit of the pull request.

    Raises:
        MissingToolError: there is no git.
        FindingsError: HEAD is no such merge commit, or its parents are not here (KCI312).
    """
    found = (_git(directory, "rev-parse", "HEAD^0", "HEAD^1", "HEAD^2") or b"").decode().split()
    if not found or found[0] == head:
        message = "HEAD is not the merge commit that GitHub makes of a pull request, so what it changes is unknown"
        hint = "check it out with `fetch-depth: 2` and no `ref`, as actions/checkout does, or name a commit"
        raise rule_error("KCI312", message, hint=hint)
    return found[1]


def clean_commit(directory: Path) -> str | None:
    """The commit of HEAD if the directory's tracked files are as it has them; None if not, or outside of git."""
    if shutil.which("git") is None:
        return None
    commit = _git(directory, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") or b""
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none")
    return commit.decode("ascii", "replace").strip() or None if changed == b"" else None


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        return run_git(directory, *arguments)
    except GitRefusedError as error:
        raise rule_error("KCI312", error.message, hint=error.hint) from error
