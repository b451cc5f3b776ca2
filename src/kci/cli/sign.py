"""`kci sign`: an attestation over a whole tree."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import Command, FileName
from kci.cli._signing import ci_context
from kci.config.discovery import find_settings
from kci.tree.signing import sign_tree


@click.command("sign", cls=Command)
@click.argument(
    "trees", nargs=-1, required=True, type=FileName(path_type=Path, exists=True, file_okay=False), metavar="TREE..."
)
def command(trees: tuple[Path, ...]) -> None:
    """Sign each merged TREE with the identity of the CI run, by Sigstore. Prints the signatures that it wrote.

    A tree's attestation binds every file to its path, and the tree to kernel, version, repository and commits. It is
    a new file; the others do not change. Repository and commit are those of the run. Every
    variant gets a signature for the loader too.

    Examples:
        # sign a tree
        kci sign build
    """
    context = ci_context()
    for tree in trees:
        for written in sign_tree(tree, context, find_settings(tree.resolve().parent).trust_config):
            click.echo(written)
