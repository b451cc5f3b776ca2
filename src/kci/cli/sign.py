"""`kci sign`: an attestation over a whole tree, or over artifacts."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import PATH, Command, FileName
from kci.cli._signing import ci_context, context_options
from kci.config.find_settings import find_settings
from kci.errors import UsageError
from kci.tree.signing import sign_artifact, sign_tree, sign_tree_as_run


@click.command("sign", cls=Command)
@click.argument("paths", nargs=-1, required=True, type=FileName(path_type=Path, exists=True), metavar="PATH...")
@click.option("--key", type=PATH, help="An ed25519 key, in PEM or for ssh.  [default: the identity of the CI run]")
@context_options
def command(paths: tuple[Path, ...], key: Path | None, repository: str, commit: str) -> None:
    """Sign each PATH: a merged tree, or an artifact. Prints the attestations that it wrote.

    A tree's attestation binds every file to its path, and the tree to kernel, version, repository and commits. It is
    a new file; the others do not change. In a GitHub run, repository and commit default to those of the run. Without a
    key, Sigstore signs a tree with the identity of the run, and every variant for the loader too.

    Examples:
        # sign a tree
        kci sign build --key key.pem
    """
    context = ci_context(repository, commit)
    for path in paths:
        if key is None:
            if not path.is_dir():
                raise UsageError(f"{path}: an artifact needs a key", hint="give --key, or sign it with actions/attest")
            for written in sign_tree_as_run(path, context, find_settings(path.resolve().parent).trust_config):
                click.echo(written)
            continue
        sign = sign_tree if path.is_dir() else sign_artifact
        click.echo(sign(path, key, context))
