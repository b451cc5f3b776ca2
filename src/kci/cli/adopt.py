"""`kci adopt`: a repository of kernels with a CI of its own moves to kci."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import PATH, Command, answer_forms
from kci.cli._adoption_tables import adoption_tables
from kci.cli._output import print_diagnostics
from kci.cli._tables import markdown
from kci.errors import UsageError
from kci.starter.adoption import adopt, write
from kci.starter.branch_commit import commit_on_branch


@click.command("adopt", cls=Command)
@click.argument("directory", type=PATH, metavar="[DIR]", default=".")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@click.option("--apply", "commit", is_flag=True,
              help="Make one commit on a branch; the working tree stays as it is.")  # fmt: skip
@click.option("--branch", default="kci-adopt", show_default=True, metavar="NAME", help="The branch of --apply.")
@click.option("--remove", is_flag=True, help="Also remove the files of which the report says that they can go.")
@answer_forms("table", "markdown")
def command(directory: Path, dry_run: bool, commit: bool, branch: str, remove: bool, output: str) -> int:
    """Move a repository of kernels, DIR, from its own CI to kci: write kci.toml and the workflows, and report.

    kci reads the workflows below .github, the files beside them, the flakes and the documentation. kci.toml gets what
    they say: runners, limits, signing, publishing, what is left to Nix; each value with its place. The report says
    what each workflow did and what does it now, which can go, what kci did not recognise, and what changes for each
    kernel.

    A kci.toml that is there stays as it is, and the report lists what was found and is not in it. Nothing is removed
    without --remove.

    Examples:
        # look at what would change
        kci adopt --dry-run
        # a commit on a branch, and the text of its pull request
        kci adopt --apply --format markdown > report.md
    """
    if dry_run and (commit or remove):
        raise UsageError("--dry-run writes nothing", hint="leave out --apply and --remove, or --dry-run")
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such directory", hint="name the root of the repository")
    adoption = adopt(directory)
    tables = adoption_tables(adoption)
    if commit:
        adoption.rendered.require_own()
        gone = adoption.removable if remove else []
        files = {path: text for path, text in adoption.files.items() if path not in gone}
        made, new = commit_on_branch(directory, files, gone, branch, _MESSAGE)
        said = f"{branch}: {made[:12]}, {'made' if new else 'there already'}" if made else "HEAD has all of it already"
    elif not dry_run:
        changed = write(adoption, remove=remove)
        said = "\n".join(f"{path}: {'written' if path in adoption.files else 'removed'}" for path in changed)
        said = said or "nothing to write: all of it is there"
    else:
        said = "nothing was written"
    shown = (f"{click.style(table.title, bold=True)}\n{table.text()}" for table in tables)
    click.echo(_unmentioned(markdown(tables)) if output == "markdown" else "\n\n".join(shown))
    click.echo(said, err=True)
    print_diagnostics([*adoption.rendered.told, *(item for kernel in adoption.unread for item in kernel.diagnostics)])
    return int(bool(adoption.unread))


def _unmentioned(text: str) -> str:
    """The text of a pull request that calls nobody: a step can be named after a team."""
    return text.replace("@", "@\N{ZERO WIDTH SPACE}")


_MESSAGE = """\
Build, verify and publish the kernels with kci

kci.toml has what the workflows of this repository said, each value with its place. The workflows were rendered from it
by `kci render`, which also keeps them up to date.
"""
