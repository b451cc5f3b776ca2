"""The repository and branch on the Hub that a kernel is published to, and their requirements."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import PurePosixPath

from msgspec.structs import replace

from kci.config.discovery import FaultyKernel
from kci.config.model import Build
from kci.config.settings import Publish
from kci.config.values import PLACEHOLDER_OWNER, PublishOn, is_branch
from kci.errors import UsageError
from kci.plan.workspace import Workspace
from kci.publish.branch_plan import MAIN_VERSION, branch_version
from kci.utils.bounded_json import MAX_BYTES, strict_object
from kci.utils.frozen import Frozen
from kci.workflows.render import PUBLISH_FILE
from kci.workflows.repository import publish_jobs


def endpoint() -> str:
    """The address of the Hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


_REPOSITORY = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?/[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
)


class HubBranch(Frozen):
    """A branch of a repository on the Hub."""

    repo_id: str
    branch: str
    mirror: bool = False


def target_of(
    kernel: str,
    version: int,
    settings: Publish,
    *,
    build: Build | None = None,
    repo_id: str = "",
    branch: str = "",
) -> HubBranch:
    """The repository and branch of a kernel: arguments, then `build`, then `settings`; UsageError
    if none names one.
    """
    hub, prefix = build.general.hub if build else None, settings.repo_prefix
    repo_id = repo_id or (hub and hub.repo_id) or (f"{prefix}/{kernel}" if prefix else "")
    branch_name = branch or (hub and hub.branch) or settings.branch
    branch = (branch_name or "v{version}").replace("{version}", str(version))
    if not repo_id:
        hint = (
            "`repo-id` in [general.hub] of build.toml, `repo-prefix` in [publish] of kci.toml, or "
            "--repo-id"
        )
        raise UsageError(f"nothing says where {kernel} is published", hint)
    if repo_id.startswith(f"{PLACEHOLDER_OWNER}/"):
        raise UsageError(
            f"{repo_id} is what `kci init` wrote", "write your account on the Hub into `repo-id`"
        )
    if not _REPOSITORY.fullmatch(repo_id):
        raise UsageError(f"{repo_id[:120]!r} is not a repository on the Hub", "write owner/name")
    if not is_branch(branch) or "{" in branch:
        raise UsageError(
            f"{branch[:120]!r} is not the name of a branch", "only {version} is replaced in it"
        )
    if branch_version(branch) not in (None, version):
        hint = 'leave the branch out, or write `branch = "v{version}"` where it is named'
        raise UsageError(
            f"{kernel} is version {version}, and {branch} is the branch of another version", hint
        )
    return HubBranch(
        repo_id, branch, mirror=settings.mirror and version == MAIN_VERSION and not branch_name
    )


def require_branches(workspace: Workspace) -> Workspace:
    """Set aside the kernels whose pull requests on the Hub lack their branch; one that cannot be
    asked for counts.
    """
    settings, lacking = workspace.settings.settings.publish, []
    for kernel in workspace.kernels:
        build = kernel.build
        if not settings.proposes(build.name):
            continue
        target = target_of(build.name, build.general.version, settings, build=build)
        try:
            place = f"{endpoint()}/api/kernels/{target.repo_id}/refs"
            with urllib.request.urlopen(place, timeout=30) as answer:  # noqa: S310
                heads = [head["name"] for head in strict_object(answer.read(MAX_BYTES))["branches"]]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if target.branch not in heads:
            message = (
                f"kernels/{target.repo_id} has no branch {target.branch}, which a pull request is "
                "against"
            )
            found = kernel.document.at_value(
                ("general", "version"), "KCI816", message, "ask its owner to make the branch"
            )
            lacking.append(FaultyKernel(kernel.directory, build.name, message, (found,)))
    faulty = {item.path for item in lacking}
    sound = tuple(kernel for kernel in workspace.kernels if kernel.directory not in faulty)
    return replace(workspace, kernels=sound, unread=(*workspace.unread, *lacking))


def hub_settings(workspace: Workspace) -> list[str]:
    """Instructions for the publish workflow, then each Hub repository; empty without `[publish]` in
    kci.toml.
    """
    jobs = publish_jobs(workspace.settings)
    if not jobs:
        return []
    tags = ", ".join(f"`{tag}`" for tag in jobs.tags)
    limit = "the default branch" + (f" and the tags {tags}" if jobs.on is PublishOn.TAG else "")
    lines = [
        f"On GitHub, Settings > Environments: make `{jobs.environment}`, with required reviewers, "
        f"and limit it to {limit}. The jobs that publish wait for a reviewer.",
        "On the Hub, the settings of each repository below: add a trusted publisher for GitHub "
        "Actions with the owner and name of this repository, the workflow "
        f"`{PurePosixPath(PUBLISH_FILE).name}` and the environment `{jobs.environment}`. No token "
        "is stored.",
        "The owner needs the Hub's approval to publish kernels, and each repository has to exist: "
        "a trusted publisher may write to one, and make none.",
    ]
    for build in (kernel.build for kernel in workspace.kernels):
        try:
            target = target_of(
                build.name, build.general.version, workspace.settings.settings.publish, build=build
            )
            lines.append(f"{build.name}: kernels/{target.repo_id}, branch {target.branch}")
        except UsageError as error:
            lines.append(f"{build.name}: {error.message}; {error.hint}")
    return lines
