"""Kernels of a git revision, read from the object store without checking anything out."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from kci.config.discover import outermost
from kci.config.document import MAX_BYTES
from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, UsageError, rule_error
from kci.files.git import read_blob, ref_names, run_git
from kci.suggest import suggestion


def read_revision(
    spec: str, directory: Path | None = None, *, missing: bool = False, unread: list[Diagnostic] | None = None
) -> list[Kernel]:
    """Read the kernels that a revision has at or below a path.

    Args:
        spec: `REV:PATH` as git writes it: the path is relative to the top of the repository, or to the working
            directory where it starts with `./`. It is a kernel, its build.toml, or a directory with kernels below it.
        directory: any directory of the repository; the working directory by default.
        missing: whether a path without kernels is fine, as that of a new kernel is before it came.
        unread: takes what is wrong with a build.toml there, which is then no reason to raise.

    Returns:
        The kernels, sorted by directory; a kernel's directory is given as `REV:PATH`.

    Raises:
        UsageError: there is no such revision or path, or this is not a repository.
        FindingsError: a build.toml there is not valid.
        MissingToolError: git is not installed.
    """
    revision, _, path = spec.partition(":")
    directory = directory or Path()
    commit = resolve_commit(revision, directory)
    path = _from_top(path, directory)
    files = _build_files(commit, path, directory)
    if not files and not missing:
        hint = f"`git ls-tree -r --name-only {revision}` lists what is there"
        raise UsageError(f"{revision} has no {BUILD_TOML} at or below {path or 'its top'!r}", hint=hint)
    kernels: list[Kernel] = []
    problems: list[Diagnostic] = [] if unread is None else unread
    for file in files:
        place = posixpath.dirname(file)
        try:
            raw = read_blob(directory, commit, file, MAX_BYTES)
            if raw is None:
                message = f"{file}: the file is larger than {MAX_BYTES // 2**20} MiB, or no file"
                raise rule_error("KCI002", message, path=file)
            kernels.append(_parsed(raw, f"{revision}:{place}", f"{revision}:{file}"))
        except FindingsError as error:
            problems += error.diagnostics
    if problems and unread is None:
        raise FindingsError(f"{spec}: {problems[0].message}", diagnostics=problems)
    return kernels


def _parsed(raw: bytes, place: str, shown_as: str) -> Kernel:
    """A kernel; one that has to be rewritten first as `kci update` would write it, which nobody can do to a commit."""
    try:
        return parse_kernel(raw, place, shown_as)
    except FindingsError as error:
        if {item.rule for item in error.diagnostics} != {"KCI108"}:
            raise
    from kci.config.update import plan_update

    return parse_kernel(plan_update(raw, place, shown_as).after, place, shown_as)


def resolve_commit(revision: str, directory: Path) -> str:
    """The full id of a commit. What comes after works with the id alone, which cannot be taken for an option.

    Raises:
        UsageError: the text names no commit of the repository.
        MissingToolError: git is not installed.
    """
    if not revision or revision.startswith("-") or any(not char.isprintable() for char in revision):
        raise UsageError(f"{revision!r} is not a revision", hint="name a branch, a tag or a commit, as in main:kernels")
    found = run_git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found is None:
        fetch = "fetch it first; a shallow clone has only the newest commits"
        hint = suggestion(revision, ref_names(directory)) or fetch
        raise UsageError(f"there is no commit {revision!r} here", hint=hint)
    return found.decode("ascii", "replace").strip()


def _from_top(path: str, directory: Path) -> str:
    """A path relative to the top of the repository, without a build.toml at its end."""
    if path.startswith(("./", "../")) or path in (".", ".."):
        prefix = run_git(directory, "rev-parse", "--show-prefix")
        path = posixpath.join(os.fsdecode(prefix or b"").strip("\n"), path)
    path = posixpath.normpath(path) if path else "."
    if path == ".." or path.startswith(("../", "/")):
        raise UsageError(f"{path!r} is outside of the repository", hint="name a path below its top")
    if path == BUILD_TOML or path.endswith(f"/{BUILD_TOML}"):
        path = posixpath.dirname(path)
    return "" if path == "." else path


def _build_files(commit: str, path: str, directory: Path) -> list[str]:
    """The outermost build.toml files of a commit at or below a path; hidden directories do not count."""
    tree = f"{commit}:{path}" if path else commit
    listed = run_git(directory, "ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
    if listed is None:
        return []
    files = [name for name in map(os.fsdecode, listed.split(b"\0")) if posixpath.basename(name) == BUILD_TOML]
    return [posixpath.normpath(posixpath.join(path, place, BUILD_TOML)) for place in outermost(files)]
