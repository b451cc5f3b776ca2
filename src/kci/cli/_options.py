"""What the options say that every command takes."""

from __future__ import annotations

import os
from typing import NamedTuple

import click


class Options(NamedTuple):
    """The options that every command takes."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"


def options() -> Options:
    """The options of the running command; the defaults outside of a command, and in other threads."""
    context = click.get_current_context(silent=True)
    return context.obj if context is not None and isinstance(context.obj, Options) else Options()


def colored(given: Options) -> bool | None:
    """Whether to color; None to color on a terminal. See https://no-color.org for the variable."""
    if given.color == "never":
        return False
    if given.color == "always":
        return True
    return False if os.environ.get("NO_COLOR") or dumb() else None


def dumb() -> bool:
    """True if the terminal only prints, and knows no escape sequences."""
    return os.environ.get("TERM") == "dumb"
