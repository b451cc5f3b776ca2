"""Which kernels a command is about: the directories named, or every kernel below them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from kci.config.reader import BUILD_TOML, Kernel, read_kernel
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, MissingToolError, UsageError


class FaultyKernel(msgspec.Struct, frozen=True):
    """A kernel that nothing can be planned for, and why."""

    path: str
    """Its directory."""
    kernel: str
    """Its name; empty if its build.toml cannot be read."""
    message: str
    diagnostics: tuple[Diagnostic, ...]


def find_kernels(arguments: Sequence[str]) -> list[str]:
    """The kernel directories that the arguments stand for, sorted, each once.

    A directory with a build.toml is a kernel; one without is searched for kernels below it, skipping hidden and
    git-ignored directories and whatever lies inside a kernel.

    Raises:
        UsageError: an argument is not a directory, or nothing was found.
    """
    found: dict[str, None] = {}
    for argument in arguments or (".",):
        directory = argument.rstrip("/") or argument[:1]
        if directory.endswith(f"/{BUILD_TOML}") or directory == BUILD_TOML:
            directory = os.path.dirname(directory) or "."  # noqa: PTH120
        path = Path(directory)
        if not directory or not os.path.isdir(path):  # noqa: PTH112  - of a name that is too long, False
            shown = argument[:200] or "an empty name"
            what = "this is a file, not a directory" if os.path.isfile(path) else "there is no such directory"  # noqa: PTH113
            raise UsageError(f"{shown}: {what}", hint="name a directory with a build.toml")
        if (path / BUILD_TOML).is_file():
            found[os.path.normpath(directory)] = None
            continue
        listed = _git_listed(path)
        files = _walked(path) if listed is None else listed
        below = [os.path.normpath(path / place) for place in outermost(files)]
        if not below:
            hint = "name a directory that holds a build.toml; `kci init NAME` begins a kernel"
            raise FindingsError(f"{argument}: no build.toml here or below", hint=hint)
        found |= dict.fromkeys(below)
    return sorted(found)


def read_each(arguments: Sequence[str]) -> tuple[list[Kernel], list[FaultyKernel]]:
    """Read every kernel that the arguments stand for, and set those aside whose build.toml is invalid.

    Raises:
        UsageError: see `find_kernels`.
    """
    kernels, faulty = [], []
    for directory in find_kernels(arguments):
        try:
            kernels.append(read_kernel(directory))
        except FindingsError as error:
            faulty.append(FaultyKernel(directory, "", error.message, error.diagnostics))
    return kernels, faulty


def refuse_faulty(faulty: Sequence[FaultyKernel], count: int) -> FindingsError:
    """The error about kernels whose build.toml is invalid, among `count` kernels."""
    if len(faulty) == 1:
        return FindingsError(faulty[0].message, diagnostics=faulty[0].diagnostics)
    every = [diagnostic for item in faulty for diagnostic in item.diagnostics]
    return FindingsError(f"{len(faulty)} of {count} build.toml are invalid", diagnostics=every)


def outermost(files: Iterable[str]) -> list[str]:
    """The directories of some build.toml that are not hidden and lie in no other such directory, sorted."""
    places = {Path(file).parent for file in files}
    found = {place for place in places if not any(part.startswith(".") for part in place.parts)}
    return sorted(place.as_posix() for place in found if found.isdisjoint(place.parents))


def _git_listed(top: Path) -> list[str] | None:
    """The build.toml files below a directory that git does not ignore; None outside of a repository."""
    from kci.files.git import GitRefusedError, run_git

    arguments = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f":(glob)**/{BUILD_TOML}")
    try:
        listed = run_git(top, *arguments)
    except (GitRefusedError, MissingToolError):
        listed = None
    if listed is None:
        return None
    names = filter(None, os.fsdecode(listed).split("\0"))
    return [name for name in names if (top / name).is_file()]


def _walked(top: Path) -> Iterator[str]:
    for directory, below, files in os.walk(top):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if BUILD_TOML in files:
            below.clear()
            yield os.path.relpath(os.path.join(directory, BUILD_TOML), top)  # noqa: PTH118
