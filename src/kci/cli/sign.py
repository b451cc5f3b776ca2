"""`kci sign`: an attestation over a whole tree, or over artifacts."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import Command, Options
from kci.cli._signing import ci_context, context_options


@click.command("sign", cls=Command)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True), metavar="PATH...")
@click.option("--key", required=True, type=click.Path(path_type=Path), help="An ed25519 key in PEM, or an ssh key.")
@context_options
@click.pass_obj
def command(_state: Options, /, *, paths: tuple[Path, ...], key: Path, repository: str, commit: str) -> None:
    """Sign each PATH: a merged tree, or an artifact. Prints the attestations that were written.

    A tree's attestation binds every file to its path, and the tree to kernel, version, repository and commits. It is
    written beside the files; none of them changes. In a GitHub run the repository and commit are those of the run.
    """
    from kci.tree.dsse import SigningKey
    from kci.tree.signing import sign_artifact, sign_tree

    context = ci_context(repository, commit)
    for path in paths:
        sign = sign_tree if path.is_dir() else sign_artifact
        click.echo(sign(path, SigningKey(key), context))
