"""`kci completion`: the script that makes a shell complete kci's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from kci.cli import Command, kci

SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(list(SHELLS)), metavar=f"[{'|'.join(SHELLS)}]")
def command(shell: str) -> None:
    r"""Print the script that completes commands, options and kernels in a shell.

    \b
    bash, in ~/.bashrc:   eval "$(kci completion bash)"
    zsh, in ~/.zshrc:     eval "$(kci completion zsh)"
    fish:                 kci completion fish > ~/.config/fish/completions/kci.fish
    """
    complete = SHELLS[shell](kci, {}, "kci", "_KCI_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
