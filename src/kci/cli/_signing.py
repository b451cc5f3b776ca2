"""The options about signatures that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kci.config.find_settings import find_settings
from kci.errors import UsageError
from kci.tree.dsse import Signers, SigningContext
from kci.tree.signing import read_public_key


def context_options(command: Callable[..., Any]) -> Callable[..., Any]:
    of = "that the files were built from."
    command = click.option("--commit", default="", metavar="ID", help=f"The commit {of}")(command)
    return click.option("--repository", default="", metavar="OWNER/NAME", help=f"The repository {of}")(command)


def ci_context(repository: str, commit: str) -> SigningContext:
    """What a signature names: the options, else the run on GitHub."""
    return SigningContext(
        repository or os.environ.get("GITHUB_REPOSITORY", ""),
        commit or os.environ.get("GITHUB_SHA", ""),
        os.environ.get("GITHUB_WORKFLOW_REF", ""),
    )


def policy(path: Path, keys: Sequence[str], repository: str, commit: str) -> tuple[Signers, SigningContext]:
    """Who may sign, and what a signature must name: the options, else `[signing]` of the kci.toml above a path."""
    # A kci.toml inside of a tree is part of what is judged.
    found = find_settings(path.resolve().parent)
    signing = found.settings.signing
    named = [read_public_key(key) for key in keys] or [read_public_key(key, found.root) for key in signing.keys]
    if not named and not (repository or signing.repository):
        raise UsageError(
            "no signer is allowed", hint="give --key PUBLIC_KEY, or set `keys` or `repository` in [signing] of kci.toml"
        )
    context = SigningContext(repository or signing.repository or "", commit, signing.workflow or "")
    return Signers(tuple(named), found.trust_config), context
