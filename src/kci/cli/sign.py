"""`kci sign`: signs trees with Sigstore."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kci.cli import FOLDER, kci_command
from kci.cli._output import answer
from kci.config.discovery import find_settings
from kci.tree.sigstore import SigningContext
from kci.tree.top_level import sign_tree


@kci_command
@click.argument("trees", nargs=-1, required=True, type=FOLDER, metavar="TREE...")
def command(trees: tuple[Path, ...]) -> None:
    """Sign each merged TREE with the identity of the CI run, by Sigstore.

    Prints the signatures that it wrote.

    A tree's attestation binds every file to its path, and the tree to kernel, version, repository
    and commits. It is a new file; the others do not change. Repository and commit are those of the
    run. Every variant gets a signature for the loader too.

    Examples:
        # sign a tree
        kci sign build
    """
    context = ci_context()
    for tree in trees:
        for written in sign_tree(tree, context, find_settings(tree.resolve().parent).trust_config):
            answer(written)


def ci_context() -> SigningContext:
    """The signing context of the run on GitHub or GitLab."""
    variable = os.environ.get
    return SigningContext(
        variable("GITHUB_REPOSITORY") or variable("CI_PROJECT_PATH", ""),
        variable("GITHUB_SHA") or variable("CI_COMMIT_SHA", ""),
        variable("GITHUB_WORKFLOW_REF", ""),
    )
