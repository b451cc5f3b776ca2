"""What publishing from CI needs that no file says: an environment on GitHub, and trusted publishers on the Hub."""

from __future__ import annotations

from pathlib import PurePosixPath

from kci.errors import UsageError
from kci.publish.target import target_of
from kci.render.repository import publish_jobs
from kci.render.workflow import PUBLISH_FILE
from kci.workspace.workspace import Workspace


def hub_settings(workspace: Workspace) -> list[str]:
    """What to set before the rendered workflow can publish, a sentence or two each, then every repository of the Hub.

    Args:
        workspace: the kernels, and kci.toml.

    Returns:
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
