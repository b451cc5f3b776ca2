"""The whole of publishing one tree: what it is of, where it goes, who publishes, and the upload."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kci.config.find_settings import find_settings
from kci.config.reader import BUILD_TOML
from kci.config.settings import Publish
from kci.config.values import LeaveOut
from kci.diagnostics import Diagnostic
from kci.errors import UsageError
from kci.files.replace import Log
from kci.hub.client import find_access, known_access
from kci.publish.branch_changes import TakeoverTerms
from kci.publish.hub import HubKernel
from kci.publish.release import Release, read_release
from kci.publish.target import HubBranch, target_of
from kci.publish.upload import Publication, PublishedBranch, Publisher
from kci.workspace.workspace import Workspace


class PublishRequest(msgspec.Struct, frozen=True):
    """What is to be published."""

    tree: Path
    workspace: Workspace | None = None
    """The one kernel that the tree was made of; without it, only the tree itself says what it is."""
    repo_id: str = ""
    """Empty for what build.toml or kci.toml says."""
    branch: str = ""
    prune: bool = False
    """Whether variants that the kernel should no longer have are removed from the branch, as `[publish]` may say."""
    create_repo: bool = False
    dry_run: bool = False
    create_pr: bool = False
    """Whether to open pull requests, for publishers who may not write."""
    leave_out: LeaveOut | None = None
    """What becomes of variants on the branch that the tree leaves out; None for what `[publish]` says."""
    older: bool = False


class PublishedTree(msgspec.Struct, frozen=True):
    """What was done, or in a dry run would be."""

    kernel: str
    version: int
    target: HubBranch
    publication: Publication
    dry_run: bool

    @property
    def branches(self) -> list[PublishedBranch]:
        """In the order in which they were published."""
        card = self.publication.card
        return [self.publication.builds, *([card] if card is not None else [])]

    @property
    def url(self) -> str:
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        return f"{endpoint}/kernels/{self.target.repo_id}/tree/{self.target.branch}"

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form (schema 1), for `msgspec.json.encode`."""
        answer: dict[str, Any] = {"schema": 1, "kernel": self.kernel, "version": self.version}
        answer |= {"repo_id": self.target.repo_id, "url": self.url, "dry_run": self.dry_run}
        return answer | {"builds": self.publication.builds, "card": self.publication.card}


def tree_of(place: Path, kernel: Path | None = None, tree: Path | None = None) -> tuple[Path, Path | None]:
    """The tree and, where it is known, the kernel that a command line means; the tree is in `build/` of it."""
    sources = place if (place / BUILD_TOML).is_file() else kernel
    return tree or (place / "build" if sources == place else place), sources


def publish_tree(
    request: PublishRequest,
    log: Log = lambda _line: None,
    report: Callable[[Diagnostic], None] = lambda _finding: None,
) -> PublishedTree:
    """Publish a tree; `report` takes findings about it that do not stop that.

    Raises:
        UsageError: it is not said where it goes, or the kernel is another one than the tree's.
        FindingsError: the tree may not be published, or the Hub does not take it.
        UnsafeError: the tree holds a link.
        MissingToolError: there is no token, or huggingface_hub is not installed.
    """
    workspace = request.workspace
    kernel = workspace.only_kernel() if workspace is not None else None
    release = read_release(request.tree, Path(kernel.directory) if kernel is not None else None, report)
    name, version = release.manifest.kernel, release.manifest.version
    build = kernel.build if kernel is not None else None
    if build is not None and (build.name, build.general.version) != (name, version):
        told = f"{request.tree} is {name} version {version}, not {build.name} version {build.general.version}"
        raise UsageError(told, hint="name the kernel that the tree was made of")
    settings = (workspace.settings if workspace is not None else find_settings(Path())).settings.publish
    target = target_of(name, version, settings, build=build, repo_id=request.repo_id, branch=request.branch)
    terms = _terms(request, settings, release)
    access = known_access() if request.dry_run else find_access(target.repo_id)
    hub = HubKernel(target.repo_id, access)
    if request.create_repo and not request.dry_run:
        hub.create_repository()
    publisher = Publisher(hub, target.repo_id, dry_run=request.dry_run, propose=request.create_pr, log=log)
    done = publisher.publish(release, target.branch, terms, mirror=target.mirror)
    return PublishedTree(name, version, target, done, request.dry_run)


def _terms(request: PublishRequest, settings: Publish, release: Release) -> TakeoverTerms:
    prune, leave_out = request.prune or settings.prune, request.leave_out or settings.leave_out
    workspace = request.workspace
    if workspace is None:
        if prune or leave_out is LeaveOut.REMOVE:
            hint = f"name the directory of {release.manifest.kernel} with --kernel"
            raise UsageError("removing variants needs to know which ones the kernel should have", hint=hint)
        return TakeoverTerms(leave_out=leave_out, older=request.older)
    expected = frozenset(variant.name for variant in workspace.matrix().kernels[0].variants)
    return TakeoverTerms(expected, prune, leave_out, request.older, Path(workspace.only_kernel().directory))
