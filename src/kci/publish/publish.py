"""The whole of publishing one tree: what it is of, where it goes, who publishes, and the upload."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from kci.config.discovery import find_settings
from kci.config.model import Build
from kci.config.reader import BUILD_TOML
from kci.config.settings import Publish
from kci.config.values import StaleVariants, is_branch
from kci.diagnostics import Diagnostic
from kci.errors import UsageError
from kci.plan.workspace import Workspace
from kci.publish.branch_plan import MAIN_VERSION, Release, TakeoverTerms, read_release, version_of
from kci.publish.hub import find_access, known_access
from kci.publish.hub_branch import HubKernel
from kci.publish.upload import Publication, PublishedBranch, Publisher
from kci.utils.atomic import Log
from kci.workflows.render import PUBLISH_FILE
from kci.workflows.repository import publish_jobs


class PublishRequest(msgspec.Struct, frozen=True):
    """What to publish."""

    tree: Path
    workspace: Workspace | None = None
    """The one kernel that the tree was made of; without it, only the tree itself says what it is."""
    repo_id: str = ""
    """Empty for what build.toml or kci.toml says."""
    branch: str = ""
    create_repo: bool = False
    dry_run: bool = False
    create_pr: bool = False
    """Whether to open pull requests, for publishers who may not write."""
    leave_out: StaleVariants | None = None
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


def tree_of(place: Path, kernel: Path | None) -> tuple[Path, Path | None]:
    """The tree and, where it is known, the kernel that a command line means; the tree is in `build/` of it."""
    sources = place if (place / BUILD_TOML).is_file() else kernel
    return place / "build" if sources == place else place, sources


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
    prune, leave_out = settings.prune, request.leave_out or settings.leave_out
    workspace = request.workspace
    if workspace is None:
        if prune or leave_out is StaleVariants.REMOVE:
            hint = f"name the directory of {release.manifest.kernel} with --kernel"
            raise UsageError("removing variants needs to know which ones the kernel should have", hint=hint)
        return TakeoverTerms(leave_out=leave_out, older=request.older)
    expected = frozenset(variant.name for variant in workspace.matrix().kernels[0].variants)
    return TakeoverTerms(expected, prune, leave_out, request.older, Path(workspace.only_kernel().directory))


_REPOSITORY = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?/[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
)


class HubBranch(msgspec.Struct, frozen=True):
    """A branch of a repository on the Hub."""

    repo_id: str
    branch: str
    mirror: bool = False
    """True if the main branch has the builds too."""


def target_of(
    kernel: str, version: int, settings: Publish, *, build: Build | None = None, repo_id: str = "", branch: str = ""
) -> HubBranch:
    """The repository and branch of a kernel; what the caller names goes before `build`, and that before `settings`.

    Raises UsageError: no repository is named, or what is named cannot be one.
    """
    hub = build.general.hub if build is not None else None
    prefix = settings.repo_prefix
    repo_id = repo_id or (hub and hub.repo_id) or (f"{prefix}/{kernel}" if prefix else "")
    named = branch or (hub and hub.branch) or settings.branch
    branch = (named or "v{version}").replace("{version}", str(version))
    if not repo_id:
        hint = "`repo-id` in [general.hub] of build.toml, `repo-prefix` in [publish] of kci.toml, or --repo-id"
        raise UsageError(f"it is not said where {kernel} is published", hint=hint)
    if not _REPOSITORY.fullmatch(repo_id):
        raise UsageError(f"{repo_id[:120]!r} is not a repository on the Hub", hint="write owner/name")
    if not is_branch(branch) or "{" in branch:
        raise UsageError(f"{branch[:120]!r} is not the name of a branch", hint="only {version} is replaced in it")
    if version_of(branch) not in (None, version):
        hint = 'leave the branch out, or write `branch = "v{version}"` where it is named'
        raise UsageError(f"{kernel} is version {version}, and {branch} is the branch of another version", hint=hint)
    return HubBranch(repo_id, branch, mirror=settings.mirror and version == MAIN_VERSION and not named)


def hub_settings(workspace: Workspace) -> list[str]:
    """What to set before the rendered workflow can publish, a sentence or two each, then every repository of the Hub.

    Nothing where kci.toml has no `[publish]`.
    """
    jobs = publish_jobs(workspace.settings)
    if jobs is None:
        return []
    tags = ", ".join(f"`{tag}`" for tag in jobs.tags)
    lines = [
        f"On GitHub, Settings > Environments: make `{jobs.environment}`, with required reviewers, and limit it to the "
        f"default branch and the tags {tags}. The jobs that publish wait for a reviewer.",
        "On the Hub, the settings of each repository below: add a trusted publisher for GitHub Actions with the owner "
        f"and name of this repository, the workflow `{PurePosixPath(PUBLISH_FILE).name}` and the environment "
        f"`{jobs.environment}`. No token is stored.",
        "The owner needs the Hub's approval to publish kernels, and each repository has to exist: a trusted publisher "
        "may write to one, and make none.",
    ]
    for kernel in workspace.kernels:
        settings = workspace.settings.settings.publish
        try:
            target = target_of(kernel.build.name, kernel.build.general.version, settings, build=kernel.build)
        except UsageError as error:
            lines.append(f"{kernel.build.name}: {error.message}; {error.hint}")
        else:
            lines.append(f"{kernel.build.name}: kernels/{target.repo_id}, branch {target.branch}")
    return lines
