"""Who signs, and who may have signed."""

from __future__ import annotations

import os
from pathlib import Path

from kci.config.discovery import find_settings
from kci.errors import UsageError
from kci.tree.sigstore import SigningContext


def ci_context() -> SigningContext:
    """What a signature names: the run on GitHub, or on GitLab."""
    known = os.environ.get
    return SigningContext(
        known("GITHUB_REPOSITORY") or known("CI_PROJECT_PATH", ""),
        known("GITHUB_SHA") or known("CI_COMMIT_SHA", ""),
        known("GITHUB_WORKFLOW_REF", ""),
    )


def policy(path: Path, repository: str = "", commit: str = "") -> tuple[Path | None, SigningContext]:
    """Which Sigstore is trusted, and what a signature must name: the options, else `[signing]` of the kci.toml above.

    UsageError: nobody may sign.
    """
    # A kci.toml inside of a tree is part of what is judged.
    found = find_settings(path.resolve().parent)
    signing = found.settings.signing
    if not (repository or signing.repository):
        raise UsageError("no signer is allowed", hint="give --repository, or set `repository` in [signing] of kci.toml")
    return found.trust_config, SigningContext(repository or signing.repository or "", commit, signing.workflow or "")
