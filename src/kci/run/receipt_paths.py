"""What decides about a build, as paths: what `kci.run.receipt` has to look at again.

Beside the files that compilers read, which they list themselves, it is every place where something else could be found:
directories in which files were looked for, the repository as far as git's answer depends on it, settings, kci itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path

from kci.config.settings import KCI_TOML
from kci.errors import KciError
from kci.files.git import run_git
from kci.files.walk import OUTPUT_DIRECTORIES, is_bytecode
from kci.plan.fingerprint import PACKAGE
from kci.run.build_leg import BuiltLeg
from kci.run.receipt import ChangedMeanwhileError, keep
from kci.workspace.workspace import Workspace

_GIT_CONFIG = ("/etc/gitconfig", "~/.gitconfig", "~/.config/git/config", "$XDG_CONFIG_HOME/git/config")
_ASIDE = (".git", "__pycache__")
_OF_WORKTREE = ("HEAD", "index", "config.worktree")
_OF_REPOSITORY = ("config", "packed-refs", "info/attributes", "info/exclude", "reftable", "shallow")


def keep_receipt(workspace: Workspace, arguments: Sequence[str], legs: Sequence[BuiltLeg], began_ns: int) -> bool:
    """Write the receipt of a build, so that the same words need not look at everything again while nothing changes.

    Args:
        workspace: what was built.
        arguments: the words after `kci`.
        legs: what it made.
        began_ns: the time before anything was read.

    Returns:
        whether there is one; where it cannot be written, the next build only takes a little longer.
    """
    watched = [leg.watched for leg in legs]
    if None in watched or any(leg.findings for leg in legs):
        return False  # nobody can tell what decided; or there is something to be said again
    kernel = os.path.abspath(workspace.only_kernel().directory)
    outputs = {os.path.abspath(leg.directory.parent) for leg in legs}
    try:
        decided = {*chain.from_iterable(filter(None, watched)), *_files_of(kernel, outputs), *_around(Path(kernel))}
        decided |= {*_of_settings(workspace), *_of_kci(), *os.get_exec_path()}
        absolute = {os.path.abspath(path) for path in decided} - {kernel, os.path.realpath(kernel)}  # it is listed
        keep(arguments, absolute, [str(leg.directory) for leg in legs], began_ns, {kernel: _not_sources(outputs)})
    except (ChangedMeanwhileError, KciError, OSError, ValueError):
        return False
    return True


def _not_sources(outputs: Collection[str]) -> list[str]:
    """Names at a kernel's top that come and go with what is built."""
    return [*_ASIDE, *OUTPUT_DIRECTORIES, *(os.path.basename(path) for path in outputs)]


def _files_of(kernel: str, outputs: Collection[str]) -> Iterator[str]:
    """The files and directories below a kernel's own, without what is built there."""
    for folder, folders, names in os.walk(kernel):
        if folder == kernel:
            folders[:] = [name for name in folders if name not in _not_sources(outputs)]
        else:
            yield folder
        folders[:] = [name for name in folders if name not in _ASIDE and f"{folder}/{name}" not in outputs]
        yield from (f"{folder}/{name}" for name in [*names, *folders] if not is_bytecode(name))


def _around(kernel: Path) -> Iterator[str]:
    """What git would say of a kernel, and where a kci.toml or a repository could appear."""
    for place in (kernel, *kernel.parents):
        yield f"{place}/.git" if not (place / ".git").is_dir() else f"{place}/.git/HEAD"
        yield f"{place}/{KCI_TOML}"
    yield from (os.path.expanduser(os.path.expandvars(name)) for name in _GIT_CONFIG)
    yield from _of_repository(kernel)


def _of_repository(kernel: Path) -> Iterator[str]:
    asked = ("--path-format=absolute", "--git-dir", "--git-common-dir", "--show-toplevel")
    found = os.fsdecode(run_git(kernel, "rev-parse", *asked) or b"").splitlines()
    if len(found) != 3:
        return
    own, common, top = found
    yield from (f"{own}/{name}" for name in _OF_WORKTREE)
    yield from (f"{common}/{name}" for name in _OF_REPOSITORY)
    head = Path(own, "HEAD").read_text(encoding="utf-8", errors="surrogateescape").strip()
    if head.startswith("ref: "):
        yield f"{common}/{head.removeprefix('ref: ')}"
    listed = run_git(Path(top), "ls-files", "-z") or b""
    yield from (f"{top}/{name}" for name in os.fsdecode(listed).split("\0") if name)


def _of_settings(workspace: Workspace) -> Iterator[str]:
    if workspace.catalog_file is not None:
        yield str(workspace.catalog_file)
    yield from (overlay.document.path for _, overlay in workspace.overlays)


def _of_kci() -> Iterator[str]:
    """kci, its Python, and the folders that a package is installed into."""
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield folder
        yield from (f"{folder}/{name}" for name in names)
    yield sys.executable
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    here = os.getcwd()
    yield from (path for path in sys.path if path and path != here)  # a directory to work in changes all the time
