"""The settings of a repository on GitHub that the rendered workflows count on, and that no file can make."""

from __future__ import annotations

from kci.config.settings import Settings
from kci.config.values import Forks


def settings_text(settings: Settings) -> list[str]:
    """What to set, a sentence or two each; the same for every repository but for what its kci.toml says."""
    lines = [
        "Settings > Branches, or Rules > Rulesets: require the status check `kci` on the branch that releases. It is "
        "red unless all that was planned was built, merged and verified.",
        "Settings > Actions > General > Fork pull request workflows: require approval for all external contributors. "
        "Their code then runs only after somebody has read it.",
        "Settings > Actions > General > Workflow permissions: read repository contents. Each job asks for what it "
        "needs.",
    ]
    if _own_runners(settings):
        lines.append(
            "Settings > Actions > Runners: register the self-hosted runners that [runners] of kci.toml names. In a "
            "public repository, let them run nothing of forks, and prefer ones that are made new for every job."
        )
    if settings.pull_request.forks is Forks.DISPATCH:
        lines += [
            "Settings > Environments: make `kci-own-machines`, with required reviewers and limited to the default "
            "branch. It is asked before a commit of a fork reaches a self-hosted runner.",
            "Require the commit status `kci/own-machines` beside the status check `kci`. It is missing, and so the "
            "merge waits, until somebody has started kci-own-machines.yml for the very commit.",
        ]
    lines.append(
        "To use the merge queue: Settings > Branches > Require merge queue. The workflow is already triggered by it."
    )
    return lines


def _own_runners(settings: Settings) -> bool:
    return settings.runners != type(settings.runners)()
