"""What two states of a repository offer to the users of its kernels: a directory, or a revision of git."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kci.config.reader import Kernel
from kci.config.revision import read_revision, resolve_commit
from kci.config.values import python_name
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.files.git import list_blobs, read_objects
from kci.files.walk import walk
from kci.plurals import count
from kci.sources.interface import Change, compare_interfaces
from kci.sources.op_rules import SUFFIXES
from kci.sources.source_rules import listed_sources

_SHOWN = 3


class InterfaceDiff(msgspec.Struct, frozen=True):
    """What changed for the users of one kernel."""

    kernel: str
    old_version: int
    new_version: int
    changes: tuple[Change, ...]

    @property
    def versions(self) -> str:
        """The version of both, or how it changed."""
        one, other = self.old_version, self.new_version
        return str(other) if one == other else f"{one} -> {other}"


class InterfaceProblem(msgspec.Struct, frozen=True):
    """What is wrong with a change for the users of one kernel."""

    kernel: str
    directory: str
    diagnostic: Diagnostic


def kernels_then(revision: str, place: str, unread: list[Diagnostic] | None = None) -> list[Kernel]:
    """The kernels that a revision has at or below a directory; see `read_revision` for `unread` and what it raises."""
    path = os.path.relpath(os.path.realpath(place))
    path = path if path.startswith("..") else f"./{path}"
    return read_revision(f"{revision}:{path}", missing=True, unread=unread)


def compare_kernels(old: Iterable[Kernel], new: Iterable[Kernel]) -> tuple[list[InterfaceDiff], list[InterfaceProblem]]:
    """The kernels on both sides whose interface differs, and what is wrong with that.

    Kernels are matched by name; one of a revision has `REV:PATH` as its directory. Findings are KCI452, a breaking
    change without a new version, and KCI453, an interface that the sources do not tell, without one. Users of the old
    version keep what they had, so a new version may change everything.
    """
    before = {kernel.build.name: kernel for kernel in old}
    found: list[InterfaceDiff] = []
    problems: list[InterfaceProblem] = []
    for kernel in sorted(new, key=lambda kernel: kernel.build.name):
        earlier = before.get(name := kernel.build.name)
        if earlier is None:
            continue
        versions = earlier.build.general.version, kernel.build.general.version
        try:
            one, other = _files(earlier), _files(kernel)
            changes = compare_interfaces(python_name(name), one, other) if one != other else []
        except FindingsError as error:
            if versions[0] != versions[1]:
                found.append(InterfaceDiff(name, *versions, (Change(name, f"is not compared: {error.message}", True),)))
                continue
            said = kernel.document.at_value(
                ("general", "name"), "KCI453", error.message, f"or `version = {versions[1] + 1}`"
            )
            problems.append(InterfaceProblem(name, kernel.directory, said))
            continue
        if changes:
            found.append(InterfaceDiff(name, *versions, tuple(changes)))
        breaking = [change for change in changes if change.breaking]
        if breaking and versions[0] == versions[1]:
            shown = "; ".join(f"`{change.name}` {change.what}" for change in breaking[:_SHOWN])
            more = f"; and {len(breaking) - _SHOWN} more" if len(breaking) > _SHOWN else ""
            message = f"{count(len(breaking), 'breaking change')} without a new version: {shown}{more}"
            hint = f"`version = {versions[1] + 1}`, or keep what callers use"
            said = kernel.document.at_value(("general", "version"), "KCI452", message, hint)
            problems.append(InterfaceProblem(name, kernel.directory, said))
    return found, problems


def _files(kernel: Kernel) -> dict[str, bytes]:
    """The Python of a kernel's package and the C++ that its build.toml names, by path in the kernel's directory."""
    wanted = {posixpath.normpath(name) for name in listed_sources(kernel.build)}
    package = f"torch-ext/{python_name(kernel.build.name)}/"

    def counts(name: str) -> bool:
        return name.endswith(".py") if name.startswith(package) else name in wanted and name.endswith(SUFFIXES)

    revision, colon, place = kernel.directory.partition(":")
    if not colon or Path(kernel.directory).is_dir():
        found = (item for item in walk(Path(kernel.directory)) if item.regular and not item.link)
        try:
            return {item.name: read_bounded(item.path) for item in found if counts(item.name)}
        except (OSError, ValueError) as error:
            raise FindingsError(f"a file of {kernel.build.name} cannot be read: {error}") from None
    blobs = list_blobs(Path(), resolve_commit(revision, Path()), [place] if place else ["."])
    named = {posixpath.relpath(path, place or "."): blob for path, blob in blobs.items() if blob.mode.startswith("100")}
    ids = {name: blob.id for name, blob in named.items() if counts(name)}
    contents = read_objects(Path(), sorted(set(ids.values())))
    return {name: contents[identity] for name, identity in ids.items() if identity in contents}
