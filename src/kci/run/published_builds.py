"""Builds that benchmarks are run on beside those of this machine: of another tree, or of a repository on the Hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kci.errors import FindingsError, UsageError
from kci.hub.fetched import NothingEarlierError, PublishedVariants
from kci.matrix.names import parse_variant_name, this_system
from kci.publish.publish_tree import HubBranch, target_of
from kci.tree.leg_record import read_sealed
from kci.tree.metadata import FILE_NAME
from kci.workspace.workspace import Workspace

HUB = "hub:"
"""Before a repository on the Hub, `hub:OWNER/NAME@REVISION`; `hub:` alone is the one of the kernel."""


def published_tree(place: str, names: Sequence[str], workspace: Workspace | None, into: Path) -> Path:
    """A tree with variants of a repository: those named, else all for this system. Raises as `PublishedVariants`."""
    found = PublishedVariants(*_asked(place, workspace))
    chosen = names or [name for name in found.names if parse_variant_name(name).system in (None, this_system())]
    if not chosen:
        raise FindingsError(f"{found} has no variant for {this_system()}", hint=f"it has {', '.join(found.names[:5])}")
    for name in chosen:
        found.fetch(name, into)
    return into


def other_build(place: str, variant_dir: Path, workspace: Workspace | None, into: Path) -> tuple[str, Path]:
    """Another build of a variant: where it is from, and its directory, which may be made in a folder.

    Of a repository without a revision that is the last release, the newest build that is another one.

    Raises:
        NothingEarlierError: the last release was asked for, and there is none.
        FindingsError: there is no such tree, it is not whole, or the repository cannot be read.
        UsageError: the place does not say which kernel's repository.
    """
    name = variant_dir.name
    if not place.startswith(HUB):
        directory = next((path for path in (Path(place), Path(place, name), Path(place, "build", name))
                          if (path / FILE_NAME).is_file()), None)  # fmt: skip
        if directory is None:
            raise FindingsError(f"{place} has no {name} to compare with", hint="name a tree that has it, or `hub:`")
        read_sealed(directory, name=name)
        return place, directory
    from huggingface_hub.errors import RevisionNotFoundError

    repo_id, revision = _asked(place, workspace)
    published = PublishedVariants(repo_id, revision)
    if "@" in place:
        return str(published), published.fetch(name, into)
    try:
        return published.before(variant_dir, into)
    except NothingEarlierError as nothing:
        version = read_sealed(variant_dir).metadata.version
        if revision != f"v{version}" or version < 2:
            raise
        try:
            earlier = PublishedVariants(repo_id, f"v{version - 1}", published.client)
        except FindingsError as error:
            raise (nothing if isinstance(error.__cause__, RevisionNotFoundError) else error) from None
        if name not in earlier.names:
            raise
    return str(earlier), earlier.fetch(name, into)


def _asked(place: str, workspace: Workspace | None) -> tuple[str, str]:
    repo_id, at, revision = place.removeprefix(HUB).partition("@")
    if at and repo_id:
        return repo_id, revision
    if workspace is None:
        hint = "name the kernel with --kernel, or a revision: hub:OWNER/NAME@REVISION"
        raise UsageError(f"{place!r} does not say which revision", hint=hint)
    build = workspace.only_kernel().build
    target: HubBranch = target_of(
        build.name, build.general.version, workspace.settings.settings.publish, build=build, repo_id=repo_id
    )
    return target.repo_id, revision or target.branch
