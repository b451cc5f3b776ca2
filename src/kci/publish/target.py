"""Where a tree is published, and what has to be set there before CI can: environments, trusted publishers.

The command line goes before build.toml, and build.toml before kci.toml.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import msgspec

from kci.config.model import Build
from kci.config.settings import Publish
from kci.config.values import is_branch
from kci.errors import UsageError
from kci.publish.branch_changes import MAIN_VERSION, version_of
from kci.render.repository import publish_jobs
from kci.render.workflow import PUBLISH_FILE
from kci.workspace.workspace import Workspace

_REPOSITORY = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?/[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
)


class HubBranch(msgspec.Struct, frozen=True):
    """A branch of a repository on the Hub."""

    repo_id: str
    branch: str
    mirror: bool = False
    """Whether the main branch has the builds too."""


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
