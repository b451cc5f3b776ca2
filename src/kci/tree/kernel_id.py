"""The identity of a build: unique id, kernel id, and commit.

The kernel id is torch's op namespace, the native module's name and the key in `sys.modules`, so builds of different
sources must not share it (docs/format.md#kernel-id).
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import msgspec

from kci.config.values import python_name
from kci.errors import FindingsError, MissingToolError
from kci.utils.git import run_git
from kci.utils.walk import is_own, walk

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class GitState(msgspec.Struct, frozen=True):
    """The full commit id of a source, and whether tracked files differ from it."""

    commit: str
    dirty: bool

    def __post_init__(self) -> None:
        check_commit(self.commit)


def check_commit(commit: str) -> None:
    """Raise ValueError if it is not a full commit id."""
    if not _COMMIT.fullmatch(commit):
        raise ValueError(f"{commit!r} is not a full commit id of 40 or 64 hexadecimal digits")


def unique_id(kernel_dir: Path) -> str:
    """The part of a kernel id that changes with the source.

    In git: the first 7 digits of HEAD's root tree, with `_dirty` if tracked files changed. Elsewhere the reference
    draws 64 random bits; kci hashes the kernel's files, so that all legs agree and a rebuild gives the same bytes.

    Raises FindingsError: git refuses to read the repository, or a file cannot be read.
    """
    tree = _git(kernel_dir, "rev-parse", "--verify", "--quiet", "HEAD^{tree}")
    if tree:
        return tree[:7] + ("_dirty" if _dirty(kernel_dir) else "")
    return base64.b32encode(content_hash(kernel_dir)[:8]).decode().rstrip("=").lower()


def kernel_id(name: str, backend: str, unique: str) -> str:
    """`_<python name>_<backend>_<unique id>`, for example `_gated_norm_rocm_1a2b3c4`."""
    return f"_{python_name(name)}_{backend}_{unique}"


def provenance(kernel_dir: Path) -> GitState | None:
    """Commit of the kernel's source; None outside git."""
    commit = _git(kernel_dir, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return GitState(commit, _dirty(kernel_dir, submodules="untracked")) if commit else None


def committed(kernel_dir: Path) -> int | None:
    """Commit time of the kernel's source in seconds since 1970; None outside git."""
    said = _git(kernel_dir, "show", "--no-patch", "--no-show-signature", "--format=%ct", "HEAD", "--")
    return int(said) if said.isdecimal() else None


def is_ancestor(directory: Path, first: str, second: str) -> bool:
    """True if `first` is an ancestor of `second`; False if the repository does not know both."""
    base = _git(directory, "merge-base", "--end-of-options", first, second)
    return base == first != second


def _dirty(kernel_dir: Path, submodules: str = "all") -> bool:
    """`submodules` is what git ignores: all for the id, as the reference does; untracked files for provenance."""
    return bool(_git(kernel_dir, "status", "--porcelain", "--untracked-files=no", f"--ignore-submodules={submodules}"))


def _git(directory: Path, *arguments: str) -> str:
    """Empty without git, a repository or the object.

    Raises FindingsError: git refuses to read the repository. Going on would silently give another id.
    """
    try:
        return (run_git(directory, *arguments) or b"").decode("utf-8", "replace").strip()
    except MissingToolError:
        return ""


def content_hash(kernel_dir: Path) -> bytes:
    """Hash names and contents of a kernel's files, without hidden files, bytecode and build outputs.

    A linked directory counts as a link only: its files are in the kernel anyway, or no build takes them.
    """
    total = hashlib.sha256()
    for found in walk(kernel_dir):
        if not is_own(found.name):
            continue
        try:
            if found.regular:
                with found.path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            elif found.link:
                content = f"-> {found.path.readlink()}"
            else:
                continue
        except OSError as error:
            raise FindingsError(f"cannot read {found.path}: {error.strerror}") from error
        total.update(f"{found.name}\0{content}\0".encode())
    return total.digest()
