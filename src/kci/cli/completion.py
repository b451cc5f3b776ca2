"""`kci completion`: the script that makes a shell complete kci's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from kci.cli import COMPLETE, Command, kci


class _Values(ShellComplete):
    """Completes `--option=va` as `--option va`, which click leaves to the shells."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        name, equals, _ = incomplete.partition("=")
        found = super().get_completions(args, incomplete)
        if not (equals and name.startswith("--")):
            return found
        return [CompletionItem(f"{name}={item.value}", item.type, item.help) for item in found]


class BashValues(_Values, BashComplete):
    """For bash, which makes three words of `--option=va` and replaces the last."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        if incomplete == "=":
            incomplete = ""
        elif args and args[-1] == "=":
            args.pop()
        joined: list[str] = []
        for word in args:
            if joined and (word == "=" or joined[-1].endswith("=")):
                joined[-1] += word
            else:
                joined.append(word)
        return joined, incomplete


class FishValues(_Values, FishComplete):
    """For fish. An explanation may have a comma."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


class ZshValues(_Values, ZshComplete):
    """For zsh."""


SHELLS: dict[str, type[ShellComplete]] = {"bash": BashValues, "fish": FishValues, "zsh": ZshValues}


def register() -> None:
    """Make click use these."""
    for shell, complete in SHELLS.items():
        add_completion_class(complete, shell)


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(list(SHELLS)), metavar=f"[{'|'.join(SHELLS)}]")
def command(shell: str) -> None:
    """Print the script that makes a shell complete commands, options, their values and kernels.

    Examples:
        # in ~/.bashrc
        eval "$(kci completion bash)"
        # in ~/.zshrc
        eval "$(kci completion zsh)"
        # for fish, once
        kci completion fish > ~/.config/fish/completions/kci.fish
    """
    complete = SHELLS[shell](kci, {}, "kci", COMPLETE)
    click.echo(complete.source_template % complete.source_vars())
