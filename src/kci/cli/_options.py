"""What the options say that every command takes."""

from __future__ import annotations

import os
from typing import NamedTuple

import click


class Options(NamedTuple):
    """What the options that every command takes have set."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    plain: bool = False


def options() -> Options:
    """Those of the command that runs; the defaults outside of a command, and in a thread that did not begin it."""
    context = click.get_current_context(silent=True)
    return context.obj if context is not None and isinstance(context.obj, Options) else Options()


def colored(given: Options) -> bool | None:
    """Whether to color; None for where it is a terminal. See https://no-color.org for the variable."""
    if given.plain or given.color == "never":
        return False
    if given.color == "always":
        return True
    return False if os.environ.get("NO_COLOR") else None
