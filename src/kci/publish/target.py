"""Where a tree is published: what was said, else what the kernel says, else what kci.toml says."""

from __future__ import annotations

import re

import msgspec

from kci.config.model import Build
from kci.config.settings import Publish
from kci.errors import UsageError
from kci.plan.settings_lints import is_branch
from kci.publish.branch_changes import MAIN_VERSION

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
    """The repository and branch of a kernel.

    Args:
        kernel: its name.
        version: its version.
        settings: `[publish]` of kci.toml.
        build: its build.toml, where that is there.
        repo_id: goes before all of them.
        branch: likewise.

    Raises:
        UsageError: no repository is named, or what is named cannot be one.
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


def version_of(branch: str) -> int | None:
    """The version that a branch is for by its name, `v2` for example; None where the name says nothing about that."""
    found = re.fullmatch(r"v([0-9]{1,19})", branch)
    return int(found[1]) if found else None
